"""Large objects past the page cache (O_DIRECT): whoever puts one has its bytes on its own disk, and reads them there.

Through the page cache each byte is copied once more, into pages that push out what is read (decision 0029). Past it,
the kernel asks for whole blocks, in memory too. What lies at a block's boundary in the file and in memory is written
from where it is; the rest, as a part's header and its index, is copied into blocks. The last one is filled up with
zeros, and the file is cut to its length afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Final

BLOCK_BYTES: Final = 512
"""A disk's smallest block, and what a part's header fills. Where blocks are larger, the kernel refuses the write."""
_LEAST_RUN_BYTES: Final = 64 << 10
"""What is shorter is copied: it costs less than a further buffer of a write."""
_MOST_BUFFERS: Final = 1_000
_REFUSED: Final = (errno.EINVAL, errno.EOPNOTSUPP)


class DirectRefused(Exception):
    """The disk or its file system does not take such writes. The file is empty, and open as it was."""


def in_blocks(buffers: Sequence[memoryview], block_bytes: int = BLOCK_BYTES) -> list[memoryview] | None:
    """The same bytes and zeros up to a block's end, in buffers of whole blocks at a block's boundary in memory; None
    when more than an eighth would have to be copied for that."""
    most_bytes = sum(buffer.nbytes for buffer in buffers) // 8
    runs: list[memoryview] = []
    rest = bytearray()
    for buffer in buffers:
        if buffer.nbytes >= _LEAST_RUN_BYTES and not len(rest) % block_bytes and _begins_at(buffer, block_bytes):
            whole = buffer.nbytes // block_bytes * block_bytes
            if rest:
                runs.append(_copied(rest, block_bytes))
            runs.append(buffer[:whole])
            buffer, rest = buffer[whole:], bytearray()
        if (most_bytes := most_bytes - buffer.nbytes) < 0:
            return None
        rest += buffer
    return [*runs, _copied(rest, block_bytes)] if rest else runs


def write_direct(descriptor: int, blocks: Sequence[memoryview], size_bytes: int) -> None:
    """Write what `in_blocks` gave to an empty file, and cut it to `size_bytes`. Not flushed.

    Raises: DirectRefused; OSError, and then a part may be written.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        _write_all(descriptor, list(blocks))
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        os.ftruncate(descriptor, 0)
        raise DirectRefused(str(error)) from error
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    os.ftruncate(descriptor, size_bytes)


def _write_all(descriptor: int, left: list[memoryview]) -> None:
    position = 0
    while left:
        written = os.pwritev(descriptor, left[:_MOST_BUFFERS], position)
        position += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


def _begins_at(buffer: memoryview, block_bytes: int) -> bool:
    """Whether it begins at a block's boundary in memory. False for a read-only buffer, whose address ctypes does not
    give."""
    return not buffer.readonly and not ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % block_bytes


def _copied(data: bytearray, block_bytes: int) -> memoryview:
    size_bytes = -(-len(data) // block_bytes) * block_bytes
    pages = memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    pages[: len(data)] = data
    return pages
