"""The keys below a store's prefix, and the limits that etcd sets: docs/meta-store.md in code. Pure.

A key here is without its prefix. Record keys are `encoding`'s, behind `r/`. A value that etcd would not take is cut
into slices behind `l/`, and a mark replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from stratalog.model.errors import Corrupt

HEAD: Final = b"head/"
"""Leader and turn, side by side: one range reads both in one moment. etcd without space serves ranges only."""
LEADER: Final = HEAD + b"leader"
TURN: Final = HEAD + b"turn"
REDO: Final = b"redo"
REDO_PARTS: Final = b"redo/"
RECORDS: Final = b"r/"
LONG_VALUES: Final = b"l/"

MAX_OPERATIONS: Final = 127
"""In one transaction, beside the one that moves `turn`: etcd takes 128 (`--max-txn-ops`)."""
MAX_BYTES: Final = 1_000_000
"""Of keys and values in one transaction: etcd takes 1.5 MiB with all around it (`--max-request-bytes`)."""
SLICE_BYTES: Final = 900_000
"""Of a long value, or of a redo record, in one key."""
OPERATION_BYTES: Final = 32
"""What an operation takes on the wire beside its key and value, prefix not counted: prefixes are short."""
_LONG_MARK: Final = b"~"
"""No record begins so: they are JSON arrays."""
_NUMBER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """One key, or with `end` every key from `key` to below it."""

    key: bytes
    end: bytes = b""


Operation: TypeAlias = Put | Delete


def size_of(operation: Operation) -> int:
    """Bytes that an operation counts for against MAX_BYTES."""
    match operation:
        case Put(key, value):
            return OPERATION_BYTES + len(key) + len(value)
        case Delete(key, end):
            return OPERATION_BYTES + len(key) + len(end)


def numbered(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(_NUMBER_BYTES, "big")


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`."""
    assert prefix and prefix[-1] < 0xFF
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def operations_for(key: bytes, value: bytes | None, long_keys: set[bytes]) -> list[Operation]:
    """The operations that put `value` under a record's key, or delete it. Adds to `long_keys` a key that has slices
    from now on.

    `long_keys` may hold keys that have none any more: deleting what is not there does no harm.
    """
    operations: list[Operation] = []
    slices = 0
    if value is None:
        operations.append(Delete(RECORDS + key))
    elif len(value) <= SLICE_BYTES:
        operations.append(Put(RECORDS + key, value))
    else:
        for slices, start in enumerate(range(0, len(value), SLICE_BYTES), 1):
            operations.append(Put(numbered(LONG_VALUES + key, slices - 1), value[start : start + SLICE_BYTES]))
        operations.append(Put(RECORDS + key, _LONG_MARK + str(slices).encode()))
    if key in long_keys:
        operations.append(
            Delete(numbered(LONG_VALUES + key, slices), numbered(LONG_VALUES + key, 2 ** (8 * _NUMBER_BYTES) - 1))
        )
    if slices:
        long_keys.add(key)
    return operations


def is_long(value: bytes) -> bool:
    return value.startswith(_LONG_MARK)


def whole_records(
    records: Iterable[tuple[bytes, bytes]], slices: Mapping[bytes, bytes], source: str
) -> Iterator[tuple[bytes, bytes]]:
    """Records as they were put, in their order; `slices` by whole keys. Raises Corrupt for a missing slice."""
    for stored_key, value in records:
        key = stored_key.removeprefix(RECORDS)
        if is_long(value):
            try:
                value = b"".join(
                    slices[numbered(LONG_VALUES + key, number)] for number in range(int(value.removeprefix(_LONG_MARK)))
                )
            except (KeyError, ValueError) as error:
                raise Corrupt(
                    f"the long metadata record {key!r} is not whole: put the store back from a snapshot",
                    source=source,
                    position=0,
                ) from error
        yield key, value
