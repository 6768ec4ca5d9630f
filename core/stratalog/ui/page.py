"""What a page is made of before it is shown: a template and the data of it, which are also its JSON twin. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Query: TypeAlias = Mapping[str, str]

SECTIONS: Final = (
    ("/", "Cluster"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/clients", "Clients"),
    ("/nodes", "Nodes"),
    ("/troubles", "Troubles"),
)


@dataclass(frozen=True, slots=True)
class Page:
    template: str
    title: str
    section: str
    """The path of the section that it belongs to."""
    data: Mapping[str, Any]
    """What the template shows; all of it can be written as JSON."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What only the template needs."""
    trail: tuple[tuple[str, str], ...] = ()
    """Pages above this one: address and title."""
    is_live: bool = True
    """It is asked for again every few seconds."""
