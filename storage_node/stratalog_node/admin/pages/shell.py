"""The document around each page: head, the way to the other pages, tables, and links that hold whatever a name holds.

Pure. Everything that comes in as text is escaped here; `Markup` is what was made by these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NewType
from urllib.parse import quote

from stratalog.telemetry.page_style import PAGE_STYLE
from stratalog.telemetry.printable import printable

Markup = NewType("Markup", str)
"""HTML that is safe to put into a page."""

_WAYS: Final = (("/", "node"), ("/topics", "topics"), ("/groups", "groups"), ("/clients", "clients"))
_REFRESH: Final = '<meta http-equiv="refresh" content="5">'


def text(shown: object) -> Markup:
    """Whatever others wrote, as text and nothing else."""
    return Markup(escape(printable(str(shown))))


def joined(*pieces: Markup) -> Markup:
    return Markup("".join(pieces))


def link(path: Sequence[object], shown: object, **query: object) -> Markup:
    """To another page of this node; `path` are its parts, which may hold any characters."""
    place = "/" + "/".join(quote(str(part), safe="") for part in path)
    asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    return Markup(f'<a href="{escape(place + (f"?{asked}" if asked else ""))}">{text(shown)}</a>')


def table(heads: Sequence[str], rows: Iterable[Sequence[Markup]]) -> Markup:
    """A head that begins with `#` stands over numbers, one that begins with `~` is left out on narrow screens."""
    kinds = [("n" if head.startswith("#") else "wide" if head.startswith("~") else "") for head in heads]
    first = "".join(
        f'<th class="{kind}">{escape(head.lstrip("#~"))}</th>' for head, kind in zip(heads, kinds, strict=True)
    )
    lines = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return Markup(f'<div class="scroll"><table><tr>{first}</tr>{lines}</table></div>')


def note(words: str) -> Markup:
    return Markup(f'<p class="muted">{text(words)}</p>')


def document(title: str, body: Markup, *, here: str, is_live: bool = True) -> str:
    """`here` is the way that this page is under; a live page comes again every five seconds."""
    ways = " ".join(f"<b>{shown}</b>" if place == here else f'<a href="{place}">{shown}</a>' for place, shown in _WAYS)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{_REFRESH if is_live else ""}'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{text(title)}</title>'
        f"<style>{PAGE_STYLE}</style></head><body><nav>{ways}</nav>{body}</body></html>\n"
    )
