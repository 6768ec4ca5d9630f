"""The distinct entries of a request: work and memory depend on the distinct ones, however often each is repeated.

As in Kafka, a repeated question is answered once, and a repeated change is refused once (`topic_answers.named_twice`),
because it is unclear which one counts. Requests with thousands of entries are processed on a thread, so that the event
loop serves other connections meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from stratalog_node.serve.connections.off_loop import off_loop

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")


async def first_of_each(
    things: Sequence[Thing], key: Callable[[Thing], Key]
) -> tuple[dict[Key, Thing], frozenset[Key]]:
    """The things in their order, without those whose key came before; and the keys that came more than once."""

    def group() -> tuple[dict[Key, Thing], frozenset[Key]]:
        found: dict[Key, Thing] = {}
        repeated = []
        for thing in things:
            name = key(thing)
            if name in found:
                repeated.append(name)
            else:
                found[name] = thing
        return found, frozenset(repeated)

    return await off_loop(len(things), group)


async def partitions_asked(
    topics: Sequence[Any], topic_name: Callable[[Any], str], partition_index: Callable[[Any], int]
) -> dict[str, dict[int, list[Any]]]:
    """By topic and partition, all that a request asks about it; more than one entry where it is named repeatedly."""

    def group() -> dict[str, dict[int, list[Any]]]:
        asked: dict[str, dict[int, list[Any]]] = {}
        for topic in topics:
            partitions = asked.setdefault(topic_name(topic), {})
            for one in topic.partitions:
                partitions.setdefault(partition_index(one), []).append(one)
        return asked

    return await off_loop(sum(1 + len(topic.partitions) for topic in topics), group)
