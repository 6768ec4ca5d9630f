"""Reads and writes the fields that structures are made of (docs/formats.md section 1).

A reader checks every length against the bytes that are left before it touches or allocates anything, and refuses what
does not fit with `Corrupt`, naming the byte. A writer refuses what a reader would, so nothing unreadable is made.
Cost: about 1 us per field; not for the hot path, whose one structure is the batch header.
"""

from __future__ import annotations

import struct
from typing import NoReturn, TypeAlias
from uuid import UUID

from stratalog.model.errors import Corrupt, InvalidRequest

Buffer: TypeAlias = bytes | bytearray | memoryview

DIGEST_BYTES = 16
NO_TIMESTAMP_MS = -1

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class FieldReader:
    """Takes fields off the front of a view. `position` is where the view begins in `source`; for messages only."""

    __slots__ = ("_at", "_position", "_view", "source")

    def __init__(self, data: Buffer, *, source: str, position: int) -> None:
        self._view = memoryview(data)
        self._at = 0
        self._position = position
        self.source = source

    @property
    def remaining(self) -> int:
        return len(self._view) - self._at

    def refuse(self, reason: str, *, back: int = 0) -> NoReturn:
        """Raise Corrupt at the present byte, or `back` bytes before it."""
        raise Corrupt(reason, source=self.source, position=self._position + self._at - back)

    def read_bytes(self, size: int, what: str) -> memoryview:
        if size > len(self._view) - self._at:
            self.refuse(f"{what} needs {size} bytes, {self.remaining} are left")
        start = self._at
        self._at = start + size
        return self._view[start : start + size]

    def _integer(self, form: struct.Struct, what: str) -> int:
        value: int = form.unpack(self.read_bytes(form.size, what))[0]
        return value

    def u8(self, what: str) -> int:
        return self._integer(_U8, what)

    def u32(self, what: str) -> int:
        return self._integer(_U32, what)

    def i16(self, what: str) -> int:
        return self._integer(_I16, what)

    def i32(self, what: str) -> int:
        return self._integer(_I32, what)

    def i64(self, what: str) -> int:
        return self._integer(_I64, what)

    def natural32(self, what: str) -> int:
        """An i32 that is never negative: a shard, an epoch."""
        value = self._integer(_I32, what)
        if value < 0:
            self.refuse(f"{what} is {value}, below 0", back=4)
        return value

    def natural(self, what: str) -> int:
        """An i64 that is never negative: an offset, a position, a size."""
        value = self._integer(_I64, what)
        if value < 0:
            self.refuse(f"{what} is {value}, below 0", back=8)
        return value

    def count(self, what: str, item_bytes: int) -> int:
        """How many items follow, each at least `item_bytes` long: never more than the bytes left can hold."""
        value = self.natural(what)
        if value * item_bytes > self.remaining:
            self.refuse(f"{what} claims {value}, the {self.remaining} bytes left cannot hold them", back=8)
        return value

    def text(self, limit: int, what: str) -> str:
        size = self._integer(_U16, what)
        if size > limit:
            self.refuse(f"{what} is {size} bytes long, the limit is {limit}", back=2)
        raw = self.read_bytes(size, what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            self.refuse(f"{what} is not UTF-8", back=size)

    def uuid(self, what: str) -> UUID:
        return UUID(bytes=bytes(self.read_bytes(16, what)))

    def digest(self, what: str) -> bytes:
        return bytes(self.read_bytes(DIGEST_BYTES, what))

    def zeros_to_end(self) -> None:
        """Use up the padding of a fixed-size structure."""
        rest = bytes(self._view[self._at :])
        if any(rest):
            self._at += len(rest) - len(rest.lstrip(b"\0"))
            self.refuse("padding is not zero")
        self._at = len(self._view)

    def finish(self) -> None:
        """The structure ends here: nothing may be left."""
        if self.remaining:
            self.refuse(f"{self.remaining} bytes are left after the last field")


class FieldWriter:
    """Builds a structure's bytes field by field."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def __len__(self) -> int:
        return len(self._out)

    def getvalue(self) -> bytes:
        return bytes(self._out)

    def raw(self, data: Buffer) -> None:
        self._out += data

    def _integer(self, form: struct.Struct, value: int, what: str) -> None:
        try:
            self._out += form.pack(value)
        except struct.error as error:
            raise InvalidRequest(f"{what} is {value}, which {form.size} bytes cannot hold") from error

    def u8(self, value: int, what: str) -> None:
        self._integer(_U8, value, what)

    def u32(self, value: int, what: str) -> None:
        self._integer(_U32, value, what)

    def i16(self, value: int, what: str) -> None:
        self._integer(_I16, value, what)

    def i32(self, value: int, what: str) -> None:
        self._integer(_I32, value, what)

    def i64(self, value: int, what: str) -> None:
        self._integer(_I64, value, what)

    def natural32(self, value: int, what: str) -> None:
        if value < 0:
            raise InvalidRequest(f"{what} is {value}: it must not be below 0")
        self._integer(_I32, value, what)

    def natural(self, value: int, what: str) -> None:
        if value < 0:
            raise InvalidRequest(f"{what} is {value}: it must not be below 0")
        self._integer(_I64, value, what)

    def text(self, value: str, limit: int, what: str) -> None:
        raw = value.encode()
        if len(raw) > limit:
            raise InvalidRequest(f"{what} is {len(raw)} bytes long: the limit is {limit}")
        self._out += _U16.pack(len(raw))
        self._out += raw

    def uuid(self, value: UUID) -> None:
        self._out += value.bytes

    def digest(self, value: Buffer, what: str) -> None:
        if len(value) != DIGEST_BYTES:
            raise InvalidRequest(f"{what} has {len(value)} bytes: a digest has {DIGEST_BYTES}")
        self._out += value

    def pad_to(self, size: int, what: str) -> None:
        if len(self._out) > size:
            raise InvalidRequest(f"{what} takes {len(self._out)} bytes: the limit is {size}")
        self._out += bytes(size - len(self._out))
