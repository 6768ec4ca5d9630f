"""Pages as HTML, by jinja2: every value is escaped, for all of them may be others' text. Loaded on first use."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.ui.lists import SIZES, address, place
from stratalog.ui.page import SECTIONS, Page
from stratalog.ui.words import FILTERS

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE: Final = Path(__file__).parent
STATIC: Final = {"ui.css": "text/css", "icon.svg": "image/svg+xml", "refresh.js": "text/javascript"}


@cache
def static_file(name: str) -> bytes:
    return (_HERE / "static" / name).read_bytes()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalize,
    )
    made.filters.update(FILTERS)
    made.globals.update(address=address, place=place, sections=SECTIONS, sizes=SIZES)
    made.globals["m"] = made.get_template("macros.html").module
    return made


def _finalize(value: object) -> object:
    """What steers a reader is spelled out in every text, whichever template forgets it."""
    from markupsafe import Markup

    from stratalog.telemetry.printable import printable_lines

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable_lines(value)


def render(page: Page, twin: str, who: str = "") -> str:
    """`twin`: the address of its JSON. `who`: the person who has logged in, empty for none."""
    template = _environment().get_template(page.template)
    return template.render({**page.extra, **page.data, "page": page, "twin": twin, "who": who})
