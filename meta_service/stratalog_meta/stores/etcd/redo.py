"""A command that is larger than a transaction: first written down whole, then carried out. Pure.

Its operations lie as bytes in parts, and count from the moment on in which the record that names the parts is put.
Whoever loads the store and finds that record carries it out again from the beginning: each operation may be done twice.
Nothing else is written between the record and its removal, so doing them again overwrites nothing newer.

    part 0 .. part n-1      the bytes of all operations, cut anywhere
    record                  JSON: format, number of parts, number of bytes, xxh3_128 of the bytes (hex)
    operation               kind (1: put, 2: delete), key size (4), key, rest size (4), rest: the value, or the end
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_128_hexdigest

from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog_meta.stores.etcd.layout import SLICE_BYTES, Delete, Operation, Put

FORMAT: Final = 1
_PUT: Final = 1
_DELETE: Final = 2
_SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class WrittenDown:
    """A command ready to be put: its parts, then its record."""

    parts: list[bytes]
    record: bytes


def write_down(operations: Iterable[Operation]) -> WrittenDown:
    data = b"".join(map(_bytes_of, operations))
    parts = [data[start : start + SLICE_BYTES] for start in range(0, len(data), SLICE_BYTES)]
    record = json.dumps([FORMAT, len(parts), len(data), xxh3_128_hexdigest(data)], separators=(",", ":")).encode()
    return WrittenDown(parts, record)


def part_count(record: bytes, source: str) -> int:
    """How many parts a record names. Raises Corrupt, InvalidRequest for another format."""
    return _fields(record, source)[0]


def read_back(record: bytes, parts: Sequence[bytes], source: str) -> list[Operation]:
    """The operations of a record with its parts. Raises Corrupt where they do not fit together."""
    _, size_bytes, digest = _fields(record, source)
    data = b"".join(parts)
    if len(data) != size_bytes or xxh3_128_hexdigest(data) != digest:
        raise _corrupt(f"its parts hold {len(data)} bytes that are not the {size_bytes} it names", source)
    try:
        return list(_operations(data))
    except (ValueError, IndexError) as error:
        raise _corrupt(f"its operations cannot be read ({error})", source) from error


def _fields(record: bytes, source: str) -> tuple[int, int, str]:
    try:
        form, *fields = json.loads(record)
        if form != FORMAT:
            raise InvalidRequest(
                f"{source} holds a redo record in format {form}, this version reads {FORMAT}: start a newer version"
            )
        parts, size_bytes, digest = fields[:3]
        return int(parts), int(size_bytes), str(digest)
    except (ValueError, TypeError) as error:
        raise _corrupt(f"it cannot be read ({error})", source) from error


def _bytes_of(operation: Operation) -> bytes:
    match operation:
        case Put(key, rest):
            kind = _PUT
        case Delete(key, rest):
            kind = _DELETE
    return b"".join(
        (bytes((kind,)), len(key).to_bytes(_SIZE_BYTES, "big"), key, len(rest).to_bytes(_SIZE_BYTES, "big"), rest)
    )


def _operations(data: bytes) -> Iterator[Operation]:
    at = 0
    while at < len(data):
        kind = data[at]
        key, at = _sized(data, at + 1)
        rest, at = _sized(data, at)
        if kind not in (_PUT, _DELETE):
            raise ValueError(f"unknown kind {kind}")
        yield Put(key, rest) if kind == _PUT else Delete(key, rest)


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    begins = at + _SIZE_BYTES
    ends = begins + int.from_bytes(data[at:begins], "big")
    if ends > len(data):
        raise ValueError("it ends too early")
    return data[begins:ends], ends


def _corrupt(reason: str, source: str) -> Corrupt:
    return Corrupt(f"the redo record: {reason}: put the store back from a snapshot", source=source, position=0)
