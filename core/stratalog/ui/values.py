"""Bytes of records as people read them: JSON indented, text as it is, other bytes in hexadecimal. Pure.

Nothing is changed on the way: numbers, repeated keys and their order stay as they were written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from stratalog.admin_api.node_views import Bytes
from stratalog.telemetry.printable import printable, printable_lines

_LONGEST_PREVIEW: Final = 160
_HEX_BYTES: Final = 4 << 10
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")


@dataclass(frozen=True, slots=True)
class Shown:
    kind: str
    """`null`, `empty`, `json`, `text` or `binary`."""
    preview: str
    """On one line."""
    text: str
    size: int
    is_cut: bool


def show(data: Bytes | None) -> Shown:
    if data is None:
        return Shown("null", "null", "", 0, False)
    raw = data.raw
    is_cut = len(raw) < data.size
    if not data.size:
        return Shown("empty", "empty", "", 0, False)
    text = _decoded(raw, is_cut)
    if text is None:
        shown = raw[:_HEX_BYTES]
        return Shown("binary", _short(raw[:48].hex(" ")), _hex_lines(shown), data.size, len(shown) < data.size)
    if not is_cut and (indented := indented_json(text)) is not None:
        return Shown("json", _short(text), printable_lines(indented), data.size, False)
    return Shown("text", _short(text), printable_lines(text), data.size, is_cut)


def indented_json(text: str) -> str | None:
    """A JSON object or list over several lines; None for other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth = 0
    before = ""
    for token in _TOKEN.findall(text):
        if token in _CLOSING:
            depth -= 1
            if before not in _OPENING:
                out.append(_line(depth))
        elif before in _OPENING or before == ",":
            out.append(_line(depth))
        out.append(": " if token == ":" else token)
        depth += token in _OPENING
        before = token
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, 40)


def _decoded(raw: bytes, is_cut: bool) -> str | None:
    """As text; None for bytes that are not text. A cut may have split a character."""
    for end in range(len(raw), max(len(raw) - 4, 0) - 1, -1) if is_cut else (len(raw),):
        try:
            text = raw[:end].decode()
        except UnicodeDecodeError:
            continue
        controls = sum(character < " " and character not in "\t\n\r" for character in text[:4_000])
        return text if controls * 10 <= len(text[:4_000]) else None
    return None


def _short(text: str) -> str:
    line = " ".join(text[: 4 * _LONGEST_PREVIEW].split())
    cut = line[:_LONGEST_PREVIEW]
    return printable(cut) + ("…" if len(line) > _LONGEST_PREVIEW or len(text) > 4 * _LONGEST_PREVIEW else "")


def _hex_lines(raw: bytes) -> str:
    lines = []
    for at in range(0, len(raw), 16):
        row = raw[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(lines)
