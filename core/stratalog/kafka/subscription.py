"""The bytes of a consumer's subscription, which it sends when it joins a group, and of its assignment.

The coordinator of a classic group treats both as opaque: only the expiry and the deletion of offsets read topics from
them, and a group that changes its protocol while it has members (docs/group-migration.md). Bytes of another layout are
left alone. Cost: about 0.1 us for each partition named.
Source: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3: version i16; topics as an
array of strings, user data, from 1 on owned partitions by topic, from 2 on a generation, from 3 on a rack; and version
i16, partitions by topic, user data. What newer versions add comes behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from stratalog.model.groups.consumer_group import PlacesByName, Subscription

_HEAD = struct.Struct(">hi")
_SIZE = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_OWNED_SINCE, _RACK_SINCE = 1, 3
_ABSENT = -1


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topic names, or None when these bytes are not a subscription."""
    try:
        return frozenset(_Reader(metadata).topics()[1])
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def read_subscription(metadata: bytes) -> Subscription | None:
    """All that is of use to a coordinator, or None when these bytes are not a subscription."""
    try:
        reader = _Reader(metadata)
        version, topics = reader.topics()
        reader.skip_bytes()
        owned = reader.places() if version >= _OWNED_SINCE else ()
        rack_id = None
        if version >= _RACK_SINCE:
            reader.skip(_SIZE.size)
            rack_id = reader.nullable_text()
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return Subscription(topics, owned, rack_id)


def read_assignment(assignment: bytes) -> tuple[PlacesByName, ...] | None:
    """Empty for no bytes at all: nothing was assigned. None if these bytes are not an assignment."""
    if not assignment:
        return ()
    try:
        reader = _Reader(assignment)
        if reader.version() < 0:
            return None
        return reader.places()
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def write_assignment(places: Iterable[PlacesByName]) -> bytes:
    """In version 0, which every client reads; later ones have the same layout."""
    parts: list[bytes] = []
    count = 0
    for name, shards in places:
        raw = name.encode()
        parts += (_LENGTH.pack(len(raw)), raw, struct.pack(f">i{len(shards)}i", len(shards), *shards))
        count += 1
    return _HEAD.pack(0, count) + b"".join(parts) + _SIZE.pack(_ABSENT)


class _Reader:
    """Raises ValueError, struct.error or UnicodeDecodeError for what is none of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def version(self) -> int:
        return self._unpack(_LENGTH)

    def topics(self) -> tuple[int, tuple[str, ...]]:
        version, count = self.version(), self._count(_LENGTH.size)
        if version < 0:
            raise ValueError("no version")
        return version, tuple([self._text() for _ in range(count)])

    def places(self) -> tuple[PlacesByName, ...]:
        found: list[PlacesByName] = []
        for _ in range(self._count(_LENGTH.size + _SIZE.size)):
            name, count = self._text(), self._count(_SIZE.size)
            found.append(PlacesByName(name, struct.unpack_from(f">{count}i", self._data, self._position)))
            self._position += count * _SIZE.size
        return tuple(found)

    def skip_bytes(self) -> None:
        """User data of an assignor, or none."""
        size = self._unpack(_SIZE)
        if size != _ABSENT:
            self.skip(size)

    def skip(self, size: int) -> None:
        if size < 0 or self._position + size > len(self._data):
            raise ValueError("cut short")
        self._position += size

    def nullable_text(self) -> str | None:
        if _LENGTH.unpack_from(self._data, self._position)[0] == _ABSENT:
            self._position += _LENGTH.size
            return None
        return self._text()

    def _text(self) -> str:
        begin = self._position + _LENGTH.size
        self.skip(_LENGTH.size + self._take_ahead())
        return str(self._data[begin : self._position], "utf-8")

    def _take_ahead(self) -> int:
        size: int = _LENGTH.unpack_from(self._data, self._position)[0]
        if size < 0:
            raise ValueError("a text of negative length")
        return size

    def _count(self, item_bytes: int) -> int:
        count = self._unpack(_SIZE)
        if count < 0 or count * item_bytes > len(self._data) - self._position:
            raise ValueError("more than the frame has room for")
        return count

    def _unpack(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self._data, self._position)[0]
        self._position += form.size
        return value
