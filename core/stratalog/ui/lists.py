"""The state of a list in the address of its page: search, order, page, rows of a page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

from stratalog.model.errors import InvalidRequest
from stratalog.model.views.cluster_lists import ListAsk

SIZES: Final = (25, 50, 100, 250)
_LONGEST_SEARCH: Final = 300


def place(*parts: object) -> str:
    """The path of a page; the parts may hold any characters."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def address(path: str, **query: object) -> str:
    """A page with what its address says; what is empty is left out."""
    asked = {name: value for name, value in query.items() if value not in ("", None, False)}
    return path + ("?" + urlencode(asked) if asked else "")


def number(text: str, name: str, most: int = 2**63 - 1) -> int:
    """Raises InvalidRequest."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise InvalidRequest(f"{name}={text[:40]!r}: expected a number from 0 to {most}")
    return int(text)


@dataclass(frozen=True, slots=True)
class ListState:
    """Where a list is looked at. `kept` are the other parameters of the page."""

    path: str
    search: str = ""
    sort: str = ""
    is_descending: bool = False
    page: int = 1
    size: int = 50
    kept: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str, query: Mapping[str, str], **kept: str) -> ListState:
        """Raises InvalidRequest."""
        size = number(query.get("size", "50"), "size", max(SIZES))
        return cls(
            path,
            query.get("search", "")[:_LONGEST_SEARCH].strip(),
            query.get("sort", ""),
            query.get("order", "") == "desc",
            max(1, number(query.get("page", "1"), "page", 10**7)),
            max(1, size),
            {name: value for name, value in kept.items() if value},
        )

    @property
    def ask(self) -> ListAsk:
        return ListAsk(self.search, self.sort, self.is_descending, (self.page - 1) * self.size, self.size)

    def href(self, **changes: object) -> str:
        """The same list, looked at otherwise."""
        state: dict[str, object] = {
            **self.kept,
            "search": self.search,
            "sort": self.sort,
            "order": "desc" if self.is_descending else "",
            "page": self.page if self.page > 1 else "",
            "size": self.size if self.size != 50 else "",
        }
        return address(self.path, **{**state, **changes})

    def sorted_by(self, column: str, *, is_number: bool) -> str:
        """Numbers begin with the largest."""
        is_here = self.sort == column
        is_descending = not self.is_descending if is_here else is_number
        return self.href(sort=column, order="desc" if is_descending else "", page="")

    def pages(self, total: int) -> int:
        return max(1, -(-total // self.size))
