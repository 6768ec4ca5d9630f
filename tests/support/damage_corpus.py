"""Generates damaged copies of stored bytes: what disks, networks, crashes and wrong programs do to them.

Each damage is (words, bytes). The words say what was done, so that a developer can repeat a failing test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from stratalog.formats.envelope import PREAMBLE_BYTES

Damage = tuple[str, bytes]

LIES = (0, 1, -1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
"""Numbers that a length, a count, an offset may be made to claim."""


def prefix_cuts(data: bytes) -> Iterator[Damage]:
    """The file ends too early, at every byte."""
    for size in range(len(data)):
        yield f"cut to {size} bytes", data[:size]


def flipped_bits(data: bytes) -> Iterator[Damage]:
    """One bit is wrong, at every place."""
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            yield f"bit {bit} of byte {at} flipped", bytes(damaged)


def zeroed_pages(data: bytes, page_bytes: int) -> Iterator[Damage]:
    """A page was allocated and never written."""
    for start in range(0, len(data), page_bytes):
        page = data[start : start + page_bytes]
        if any(page):
            yield (
                f"zeros in bytes {start} to {start + len(page)}",
                data[:start] + bytes(len(page)) + data[start + len(page) :],
            )


def repeated_pages(data: bytes, page_bytes: int) -> Iterator[Damage]:
    """A page holds what belongs into another one: a misdirected write."""
    for start in range(page_bytes, len(data) - page_bytes + 1, page_bytes):
        damaged = data[:start] + data[:page_bytes] + data[start + page_bytes :]
        if damaged != data:
            yield f"page 0 written over bytes {start} to {start + page_bytes}", damaged


def grown(data: bytes) -> Iterator[Damage]:
    """Something follows that does not belong."""
    yield "a zero byte follows", data + b"\0"
    yield "a page of zeros follows", data + bytes(4096)
    yield "the same bytes follow", data + data


def lying_numbers(data: bytes, start: int, end: int) -> Iterator[Damage]:
    """Changes each 8-byte field that could be a number, and corrects the CRC, as if a wrong program had written it.

    `data[start:end]` is one of Stratalog's structures.
    """
    for at in range(start + PREAMBLE_BYTES, end - 7):
        for lie in LIES:
            damaged = bytearray(data)
            struct.pack_into(">q", damaged, at, lie)
            yield f"{lie} in bytes {at} to {at + 8}, CRC made again", resealed(damaged, start, end)


def resealed(data: bytearray, start: int, end: int) -> bytes:
    """Make the CRC of the structure at `[start, end)` fit its bytes again."""
    view = memoryview(data)
    crc = crc32c(view[start + PREAMBLE_BYTES : end], crc32c(view[start : start + 12]))
    struct.pack_into(">I", data, start + 12, crc)
    return bytes(data)
