"""What a request names, each thing once: work and memory follow the distinct things, however often one is named.

As Kafka does: questions about a thing that is named repeatedly are answered once, changes to it are refused once
(`topic_answers.repeated`), for which one counts is unclear. Requests of thousands of things are worked off in slices,
so that the other connections go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")

_SLICE = 256


class Pace:
    """Lets the loop go on after every few hundred entries, which take it a millisecond or two."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    async def step(self, entries: int = 1) -> None:
        """So many entries of an answer were made, or looked for."""
        self._done += entries
        if self._done >= _SLICE:
            self._done = 0
            await asyncio.sleep(0)


def first_of_each(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, Thing]:
    """The things in their order, without those whose key came before."""
    found: dict[Key, Thing] = {}
    for thing in things:
        found.setdefault(key(thing), thing)
    return found


def partitions_asked(
    topics: Iterable[Any], topic_name: Callable[[Any], str], partition_index: Callable[[Any], int]
) -> dict[str, dict[int, list[Any]]]:
    """By topic and partition, all that a request asks about it; more than one entry where it is named repeatedly."""
    asked: dict[str, dict[int, list[Any]]] = {}
    for topic in topics:
        partitions = asked.setdefault(topic_name(topic), {})
        for one in topic.partitions:
            partitions.setdefault(partition_index(one), []).append(one)
    return asked
