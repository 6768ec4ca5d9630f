"""Plants a bug: patches attributes for as long as it is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

Patch: TypeAlias = tuple[Any, str, Any]
"""Whose attribute, its name, and what it is while the bug is there."""


@contextmanager
def planted(make_patches: Callable[[], list[Patch]]) -> Iterator[None]:
    """The bug is there until the end of the block."""
    patches = make_patches()
    before = [(where, name, vars(where)[name]) for where, name, _ in patches]
    try:
        for where, name, changed in patches:
            setattr(where, name, changed)
        yield
    finally:
        for where, name, was in before:
            setattr(where, name, was)
