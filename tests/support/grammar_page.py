"""Reads bytes by the grammar of docs/formats.md alone, without the code: so that the page is proven, not believed.

Understands what section 1 of the page lists: `name:type`, productions, `x{n}`, `0{n}`, `0{to n}`, `preamble(M)`,
`envelope(M) of:`; comments in brackets. Productions that hold batches or `...` are prose, and are not read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from uuid import UUID

_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
_RULE = re.compile(r"^(\w+) *:= (.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` \| (\d+) \|", re.MULTILINE)
_TOKEN = re.compile(
    r"0\{to (?P<to>\d+)\}|0\{(?P<zeros>\d+)\}|(?P<frame>preamble|envelope)\((?P<magic>\w+)\)(?: of:)?"
    r"|(?P<field>\w+):(?P<type>[a-z0-9]+)(?:\((?P<limit>\d+)\))?(?:=(?P<value>\d+))?(?:\{(?P<times>\w+)\})?"
    r"|(?P<many>\w+)\{(?P<count>\w+)\}|(?P<rule>\w+)"
)
_INTEGERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i16": "h", "i32": "i", "i64": "q"}

Value = int | str | bytes | UUID


@dataclass
class Reading:
    """Where we are in the bytes, and the fields met so far, in order."""

    data: bytes
    at: int = 0
    fields: list[tuple[str, Value]] = field(default_factory=list)
    places: list[tuple[int, str]] = field(default_factory=list)
    """(where, type) of each of `fields`."""

    def read_bytes(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        assert len(piece) == size, f"the page asks for {size} bytes at {self.at}, {len(piece)} are there"
        self.at += size
        return piece

    def count(self, name: str) -> int:
        """What the last field of this name said: how often something follows."""
        return int(str(self.values(name)[-1]))

    def lie(self, name: str, value: int, nth: int = 0) -> bytes:
        """The bytes with another number in the nth field of that name."""
        at, kind = [place for place, (known, _) in zip(self.places, self.fields, strict=True) if known == name][nth]
        damaged = bytearray(self.data)
        struct.pack_into(">" + _INTEGERS[kind], damaged, at, value)
        return bytes(damaged)

    def values(self, name: str) -> list[Value]:
        return [value for known, value in self.fields if known == name]


class GrammarPage:
    def __init__(self, text: str) -> None:
        blocks = "\n".join(_BLOCK.findall(text))
        self.rules = {name: re.sub(r"\[[^\]]*\]", " ", body) for name, body in _RULE.findall(blocks)}
        self.tables = {name: int(value) for name, value in _ROW.findall(text)}

    def read(self, rule: str, data: bytes) -> Reading:
        """Read `data`, which must be exactly one `rule`."""
        reading = Reading(data)
        self._rule(rule, reading)
        assert reading.at == len(data), f"{rule}: the page ends at byte {reading.at}, the bytes at {len(data)}"
        return reading

    def fixed_size(self, rule: str) -> int:
        """The size of a rule without texts and repetitions."""
        total = 0
        for token in _TOKEN.finditer(self.rules[rule]):
            if token["type"] in _INTEGERS:
                total += struct.calcsize(_INTEGERS[token["type"]])
            elif token["type"] or token["zeros"]:
                total += {"uuid": 16, "digest": 16}.get(token["type"] or "", 0) or int(token["limit"] or token["zeros"])
            elif token["frame"]:
                total += 16
            elif token["rule"]:
                total += 16 if token["rule"] == "digest" else self.fixed_size(token["rule"])
        return total

    def _rule(self, rule: str, reading: Reading) -> None:
        start = reading.at
        for token in _TOKEN.finditer(self.rules[rule]):
            if token["to"]:
                padding = reading.read_bytes(start + int(token["to"]) - reading.at)
                assert not any(padding), f"{rule}: padding is not zero"
            elif token["zeros"]:
                assert not any(reading.read_bytes(int(token["zeros"])))
            elif token["frame"]:
                self._frame(token["frame"], token["magic"].encode(), reading)
            elif token["field"]:
                for _ in range(reading.count(token["times"]) if token["times"] else 1):
                    self._field(token, reading)
            elif token["many"]:
                for _ in range(reading.count(token["count"])):
                    self._rule(token["many"], reading)
            elif token["rule"] == "digest":
                reading.places.append((reading.at, "digest"))
                reading.fields.append(("digest", reading.read_bytes(16)))
            else:
                self._rule(token["rule"], reading)

    def _frame(self, frame: str, magic: bytes, reading: Reading) -> None:
        start = reading.at
        self._rule("preamble", reading)
        assert reading.data[start : start + 8] == magic
        if frame == "envelope":
            size = struct.unpack(">q", reading.read_bytes(8))[0]
            assert size == len(reading.data) - reading.at

    def _field(self, token: re.Match[str], reading: Reading) -> None:
        kind = token["type"]
        value: Value
        reading.places.append((reading.at, kind))
        if kind in _INTEGERS:
            form = struct.Struct(">" + _INTEGERS[kind])
            value = form.unpack(reading.read_bytes(form.size))[0]
        elif kind == "text":
            size = struct.unpack(">H", reading.read_bytes(2))[0]
            assert size <= int(token["limit"])
            value = reading.read_bytes(size).decode()
        elif kind == "uuid":
            value = UUID(bytes=reading.read_bytes(16))
        else:
            value = reading.read_bytes(16 if kind == "digest" else int(token["limit"]))
        if token["value"]:
            assert value == int(token["value"]), token["field"]
        reading.fields.append((token["field"], value))
