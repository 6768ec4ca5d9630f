"""Compresses and decompresses a batch's records with Kafka's codecs, never beyond a given size (docs/formats.md, 2).

A claim about the decompressed size is never believed: the output buffer starts small and grows up to the bound,
so a bomb costs at most twice the bound in time and the bound in memory, and is refused.
Cost: the codec's own; a copy of the output for each doubling. For disk and pool threads, not for the event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from stratalog.formats.fields import Buffer
from stratalog.model.errors import Corrupt


class Codec(IntEnum):
    """The value is what bits 0-2 of a batch's attributes say."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_FIRST_BUFFER_BYTES: Final = 64 * 1024
_OUTPUT_FULL: Final = "write whole buffer"
"""What cramjam says when the output buffer was too small; a test would notice another wording."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_I32 = struct.Struct(">i")


class TooLarge(Corrupt):
    """The records are more than the caller opens; nothing is known to be wrong with them."""


class _Refused(Exception):
    """Carries the reason up to where source and position are known."""


class _Over(_Refused):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the records are more than the {max_bytes} bytes allowed")


def compress(codec: int, data: bytes) -> bytes:
    """As the Java client writes and wants it: xerial framing for snappy, independent blocks for lz4."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return _xerial_compress(data)
        case Codec.LZ4:
            compressor = cramjam.lz4.Compressor(block_linked=False)
            compressor.compress(data)
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data))
        case _:
            raise ValueError(f"no codec {codec}: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd")


def decompress(codec: int, data: Buffer, max_bytes: int, *, source: str, position: int) -> Buffer:
    """A batch's records; `data` itself when not compressed. Raises: Corrupt; TooLarge when they are over
    `max_bytes`."""
    try:
        match codec:
            case Codec.NONE:
                if len(data) > max_bytes:
                    raise _Over(max_bytes)
                return data
            case Codec.GZIP:
                return _grow(cramjam.gzip.decompress_into, data, max_bytes)
            case Codec.SNAPPY:
                if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                    return _xerial_decompress(memoryview(data), max_bytes)
                return _snappy_block(data, max_bytes, max_bytes)
            case Codec.LZ4:
                return _grow(cramjam.lz4.decompress_into, data, max_bytes)
            case Codec.ZSTD:
                return _grow(cramjam.zstd.decompress_into, data, max_bytes)
            case _:
                raise _Refused(f"the batch names codec {codec}, which does not exist")
    except _Over as over:
        raise TooLarge(str(over), source=source, position=position) from over.__cause__
    except _Refused as refused:
        raise Corrupt(str(refused), source=source, position=position) from refused.__cause__


def _grow(decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, max_bytes: int) -> memoryview:
    room = min(max_bytes, max(_FIRST_BUFFER_BYTES, 4 * len(data)))
    while True:
        out = bytearray(room)
        try:
            size = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise _Refused(f"the records do not decompress: {error}") from error
            if room == max_bytes:
                raise _Over(max_bytes) from error
            room = min(max_bytes, 4 * room)
        else:
            return memoryview(out)[:size]


def _snappy_block(data: Buffer, room: int, max_bytes: int) -> bytes:
    try:
        claimed = cramjam.snappy.decompress_raw_len(data)
        if claimed > room:
            raise _Over(max_bytes)
        # Snappy makes at most 64 bytes of 3: a larger claim is a lie, and is refused before it is allocated.
        if claimed > 32 * len(data):
            raise _Refused(f"a snappy block of {len(data)} bytes claims {claimed} decompressed")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _Refused(f"the records do not decompress: {error}") from error


def _xerial_compress(data: bytes) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        pieces += (_I32.pack(len(block)), block)
    return b"".join(pieces)


def _xerial_decompress(data: memoryview, max_bytes: int) -> bytearray:
    out = bytearray()
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise _Refused("the snappy header is cut short")
    while at < len(data):
        if len(data) - at < _I32.size:
            raise _Refused("a snappy block's size is cut short")
        size = _I32.unpack_from(data, at)[0]
        at += _I32.size
        if not 0 < size <= len(data) - at:
            raise _Refused(f"a snappy block claims {size} bytes, {len(data) - at} are left")
        out += _snappy_block(data[at : at + size], max_bytes - len(out), max_bytes)
        at += size
    return out
