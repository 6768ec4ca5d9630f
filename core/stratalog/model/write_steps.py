"""Large writes in steps.

The page cache takes a write in folios as large as the write and its place in the file allow. Large ones come from large
free blocks: those are rare where memory is in pieces, and on a virtual machine often not backed by memory yet, so that
the write pays for it (docs/decisions/0016-memory-and-waits-beside-uploads.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def in_steps(
    buffers: Sequence[memoryview | bytes], step_bytes: int, most_buffers: int, position: int = 0
) -> Iterator[list[memoryview]]:
    """The same bytes, not copied, as lists of buffers, one list per write. A write ends at the next multiple of
    `step_bytes` in the file, or earlier if it has `most_buffers`; the first begins at `position`."""
    group: list[memoryview] = []
    left_bytes = step_bytes - position % step_bytes
    for whole in buffers:
        buffer, at = memoryview(whole), 0
        while at < buffer.nbytes:
            some = buffer[at : at + left_bytes]
            group.append(some)
            at += some.nbytes
            left_bytes -= some.nbytes
            if not left_bytes or len(group) == most_buffers:
                yield group
                group, left_bytes = [], left_bytes or step_bytes
    if group:
        yield group
