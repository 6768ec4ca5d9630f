"""Compresses and decompresses a batch's records with Kafka's codecs, never beyond a given size (docs/formats.md, 2).

A claim about the decompressed size is never believed: the output buffer starts small and grows up to the bound,
so a bomb costs at most twice the bound in time and the bound in memory, and is refused.
What follows the compressed stream is treated as Kafka does (recorded with 4.3.1): behind gzip it is passed over unless
it begins with the header of a further member, behind lz4 always; zstd and snappy refuse it unless it is a further
stream.
Cost: the codec's own; a copy of the output for each doubling. For disk and pool threads, not for the event loop.
"""

from __future__ import annotations

import struct
import zlib
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

_GZIP_HEADER: Final = b"\x1f\x8b\x08"
_GZIP_LEAST_BYTES: Final = 18
"""Fewer cannot be a further member, as the JDK says as well."""
_GZIP_FORMAT: Final = 31
"""To zlib: the largest window, in a gzip member."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_I32 = struct.Struct(">i")
_LZ4_SIZE = struct.Struct("<I")


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
                return _gunzip(data, max_bytes)
            case Codec.SNAPPY:
                if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                    return _xerial_decompress(memoryview(data), max_bytes)
                return _snappy_block(data, max_bytes, max_bytes)
            case Codec.LZ4:
                return _grow(cramjam.lz4.decompress_into, _first_lz4_frame(data), max_bytes)
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


def _gunzip(data: Buffer, max_bytes: int) -> Buffer:
    try:
        return _grow(cramjam.gzip.decompress_into, data, max_bytes)
    except _Over:
        raise
    except _Refused:
        members = _gzip_members(data, max_bytes)
        if members is None:
            raise
        return members


def _gzip_members(data: Buffer, max_bytes: int) -> bytearray | None:
    """The members at the front of `data`, up to bytes that are not a member; None when one of them is damaged."""
    out, left = bytearray(), bytes(data)
    while not out or (len(left) > _GZIP_LEAST_BYTES and left.startswith(_GZIP_HEADER)):
        member = zlib.decompressobj(_GZIP_FORMAT)
        try:
            out += member.decompress(left, max_bytes - len(out) + 1)
        except zlib.error:
            return None
        if len(out) > max_bytes:
            raise _Over(max_bytes)
        if not member.eof or not out:
            return None
        left = member.unused_data
    return out


def _first_lz4_frame(data: Buffer) -> Buffer:
    """`data` without what follows its first frame; as it is when that is not a whole frame."""
    view = memoryview(data)
    if bytes(view[:4]) != _LZ4_MAGIC or len(view) < 7:
        return data
    flags = view[4]
    at = 7 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)  # the sizes of the content and of a dictionary's id, if named
    while at + 4 <= len(view):
        size = _LZ4_SIZE.unpack_from(view, at)[0] & 0x7FFF_FFFF
        at += 4
        if not size:
            end = at + 4 * (flags >> 2 & 1)  # the checksum of the content
            return view[:end] if end < len(view) else data
        at += size + 4 * (flags >> 4 & 1)
    return data


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
        if bytes(data[at : at + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC and len(data) - at >= len(_XERIAL_HEADER):
            at += len(_XERIAL_HEADER)  # a further stream begins
            continue
        if len(data) - at < _I32.size:
            raise _Refused("a snappy block's size is cut short")
        size = _I32.unpack_from(data, at)[0]
        at += _I32.size
        if not 0 < size <= len(data) - at:
            raise _Refused(f"a snappy block claims {size} bytes, {len(data) - at} are left")
        out += _snappy_block(data[at : at + size], max_bytes - len(out), max_bytes)
        at += size
    return out
