"""An immutable sequence of remote parts; appending to it copies nothing.

A quiet segment that is uploaded by time gathers thousands of parts, one commit each; copying a tuple per commit would
take quadratic time, and as much memory again for every version that is still referenced. A `PartList` is a view of the
first `len` entries of a buffer that its later versions share.

Invariant: an entry below a view's length never changes, so every view is immutable.
Threads: one thread appends; any thread reads.
Cost: `appended` O(1); a second continuation of the same view copies once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from stratalog.model.segment import RemotePart


class PartList(Sequence["RemotePart"]):
    """Committed parts, contiguous by offset. Equal to any sequence, a tuple too, of the same parts."""

    __slots__ = ("_buffer", "_length")

    def __init__(self, parts: Iterable[RemotePart] = ()) -> None:
        self._buffer: list[RemotePart] = list(parts)
        self._length = len(self._buffer)

    def appended(self, part: RemotePart) -> PartList:
        """This list and one more part; this one stays as it is."""
        buffer = self._buffer
        if len(buffer) != self._length:
            buffer = buffer[: self._length]
        buffer.append(part)
        longer = PartList.__new__(PartList)
        longer._buffer = buffer
        longer._length = self._length + 1
        return longer

    def first(self, count: int) -> PartList:
        """An earlier version of this list, of `count` parts; it shares the buffer."""
        assert 0 <= count <= self._length
        shorter = PartList.__new__(PartList)
        shorter._buffer = self._buffer
        shorter._length = count
        return shorter

    def replaced(self, start: int, count: int, parts: Sequence[RemotePart]) -> PartList:
        """A list of its own in which `parts` stand for the `count` ones from index `start` on."""
        entries = self._buffer[: self._length]
        entries[start : start + count] = parts
        return PartList(entries)

    def shared_with(self, earlier: PartList) -> int:
        """How many first parts are known to be those of an earlier version of this list; 0 when it was rebuilt."""
        return min(self._length, earlier._length) if self._buffer is earlier._buffer else 0

    def find(self, base_offset: int) -> int:
        """Index of the first part whose base offset is at or above `base_offset`."""
        return bisect_left(self._buffer, base_offset, 0, self._length, key=lambda part: part.base_offset)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> RemotePart: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RemotePart, ...]: ...

    def __getitem__(self, index: int | slice) -> RemotePart | tuple[RemotePart, ...]:
        if isinstance(index, slice):
            return tuple(self._buffer[: self._length][index])
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(f"part {index} of {self._length}")
        return self._buffer[position]

    def __iter__(self) -> Iterator[RemotePart]:
        return islice(self._buffer, self._length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartList | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"PartList({list(self)!r})"
