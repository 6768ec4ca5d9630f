"""Cuts a turn of commands into transactions that etcd takes, at the boundaries of commands. Pure.

As many whole commands as fit share one transaction. A command that fits into none goes into a redo record (`redo`).
In one transaction etcd takes each key once, so of several writes of a key the last one is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.stored.encoding import Item
from stratalog_meta.stores.etcd.layout import MAX_BYTES, MAX_OPERATIONS, Operation, operations_for, size_of


@dataclass(frozen=True, slots=True)
class Together:
    """Whole commands that one transaction makes durable: the next `commands` of the turn."""

    commands: int
    operations: list[Operation]


@dataclass(frozen=True, slots=True)
class Large:
    """One command that no transaction can hold: its operations, each key once, in any order."""

    operations: list[Operation]


Step: TypeAlias = Together | Large


def split(commands: Iterable[Sequence[Item]], long_keys: set[bytes]) -> Iterator[Step]:
    """The steps of a turn, in the order of its commands.

    `long_keys` are the record keys that may have slices (see `layout.operations_for`); it grows with what is taken.
    """
    waiting: dict[bytes, bytes | None] = {}
    count = operations = size = 0
    for items in commands:
        own = dict(items)
        more, more_bytes = _weight(own, long_keys)
        repeated, _ = _weight({key: None for key in own if key in waiting}, long_keys)
        if _fits(operations + more - repeated, size + more_bytes):
            waiting.update(own)
            count, operations, size = count + 1, operations + more - repeated, size + more_bytes
            continue
        if count:
            yield Together(count, _operations(waiting, long_keys))
        if _fits(more, more_bytes):
            waiting, count, operations, size = own, 1, more, more_bytes
        else:
            yield Large(_operations(own, long_keys))
            waiting, count, operations, size = {}, 0, 0, 0
    if count:
        yield Together(count, _operations(waiting, long_keys))


def chunks(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Operations in runs that fit into one transaction each."""
    chunk: list[Operation] = []
    size = 0
    for operation in operations:
        more = size_of(operation)
        if chunk and (len(chunk) >= MAX_OPERATIONS or size + more > MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(operation)
        size += more
    if chunk:
        yield chunk


def _operations(items: dict[bytes, bytes | None], long_keys: set[bytes]) -> list[Operation]:
    return [operation for key, value in items.items() for operation in operations_for(key, value, long_keys)]


def _weight(items: dict[bytes, bytes | None], long_keys: set[bytes]) -> tuple[int, int]:
    """How many operations, and bytes."""
    operations = _operations(items, set(long_keys) & items.keys())
    return len(operations), sum(map(size_of, operations))


def _fits(operations: int, size_bytes: int) -> bool:
    return operations <= MAX_OPERATIONS and size_bytes <= MAX_BYTES
