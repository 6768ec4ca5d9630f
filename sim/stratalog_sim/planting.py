"""Plants a bug: patches attributes for as long as it is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

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


class PlayedWorld(Protocol):
    def play(self) -> None:
        """Raises AssertionError when a promise is broken."""

    def history(self, last: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Found:
    """Which seed it took, and what it broke."""

    seed: int
    promise: str
    history: list[str]


def find_planted(
    make_patches: Callable[[], list[Patch]], world_of: Callable[[int], PlayedWorld], seeds: range
) -> Found | None:
    """Play until it breaks something. None: these seeds do not find it."""
    with planted(make_patches):
        for seed in seeds:
            world = world_of(seed)
            try:
                world.play()
            except AssertionError as failure:
                return Found(seed, str(failure), world.history(40))
    return None
