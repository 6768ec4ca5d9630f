"""Checks each change of a machine's life against its table, while the machines are interpreted.

Costs nothing in the product: the check replaces the field of the class for the time of a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any


@contextmanager
def checked_transitions(
    machine: type, table: Mapping[Any, frozenset[Any]], seen: set[tuple[Enum, Enum]], name: str = "life"
) -> Iterator[None]:
    """Within it, each assignment to the field `name` is checked, and each change is added to `seen`."""
    field: Any = vars(machine)[name]
    begun = object()

    def get(self: Any) -> Any:
        return field.__get__(self)

    def put(self: Any, life: Any) -> None:
        try:
            before = field.__get__(self)
        except AttributeError:
            before = begun  # its first life
        if before is not begun and before is not life:
            assert life in table[before], f"{machine.__name__}: {before.name} becomes {life.name}"
            seen.add((before, life))
        field.__set__(self, life)

    setattr(machine, name, property(get, put))
    try:
        yield
    finally:
        setattr(machine, name, field)
