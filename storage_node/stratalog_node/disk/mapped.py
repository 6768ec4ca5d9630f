"""Ranges of files mapped into memory: what a socket sends of one goes from the page cache straight into its buffers.

Only system calls may touch the bytes. A page that cannot be had then fails the call (EFAULT); read by this process it
would be a signal that ends it. The mapping goes with the last view of it.
Requires: the file is pinned while there is a view, so that nobody frees its bytes in steps.
Cost: six system calls and a page fault for each 64 KiB.
"""

from __future__ import annotations

import mmap

from stratalog_node.disk.files import SegmentFile

_WHOLE_PAGES = ~(mmap.ALLOCATIONGRANULARITY - 1)


def map_range(file: SegmentFile, position: int, size_bytes: int) -> memoryview | None:
    """A view of the range, or None where it cannot be mapped: the file is shorter, or there is no room for it. On the
    event loop. Raises: NotFound, Unavailable."""
    fd = file.fd()
    begin = position & _WHOLE_PAGES
    try:
        pages = mmap.mmap(fd, position - begin + size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=begin)
    except (OSError, ValueError):
        return None
    return memoryview(pages)[position - begin :]
