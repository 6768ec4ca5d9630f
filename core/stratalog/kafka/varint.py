"""Reads unsigned varints and tagged fields from a frame.

Callers pass a position and get the next one; a position past the end surfaces as IndexError, which the public decoders
turn into MalformedFrame. Nothing here allocates by a length from the frame.
"""

from __future__ import annotations

from stratalog.kafka.errors import MalformedFrame

MAX_TAGS = 1_000
"""More tagged fields than this in one structure is an attack, not a newer client."""


def read_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned 32-bit varint. Returns: value, next position. Raises: IndexError, MalformedFrame."""
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedFrame(f"varint at byte {position} is longer than five bytes: close the connection")
    if value > 0xFFFF_FFFF:
        raise MalformedFrame(f"varint before byte {position} does not fit in 32 bits: close the connection")
    return value, position


def encode_varint(value: int) -> bytes:
    """Encode a non-negative integer."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def skip_tags(frame: memoryview, position: int) -> int:
    """Step over a tagged-field section whose count starts at `position`: Kafka demands it for unknown tags."""
    count = frame[position]
    if count == 0:
        return position + 1
    count, position = read_varint(frame, position)
    if count > MAX_TAGS:
        raise MalformedFrame(f"{count} tagged fields in one structure at byte {position}: close the connection")
    for _ in range(count):
        _, position = read_varint(frame, position)
        size, position = read_varint(frame, position)
        position += size
    if position > len(frame):
        raise MalformedFrame(f"tagged fields reach byte {position} of a frame of {len(frame)}: close the connection")
    return position


def find_tag(frame: memoryview, position: int, wanted: int) -> tuple[memoryview | None, int]:
    """Step over a tagged-field section. Returns: the bytes of the wanted tag (or None), next position."""
    count, at = read_varint(frame, position)
    end = skip_tags(frame, position)
    found = None
    for _ in range(count):
        tag, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        if tag == wanted:
            found = frame[at : at + size]
        at += size
    return found, end
