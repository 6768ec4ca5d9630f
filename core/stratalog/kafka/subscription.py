"""The topics that a consumer subscribes to, read from the metadata it joins a group with.

The coordinator treats that metadata as opaque; only the expiry and the deletion of offsets look here, and whoever
sends something else is left alone.
Source: Kafka's ConsumerProtocolSubscription: version i16, topics as an array of strings, then fields we do not need.
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topic names, or None when these bytes are not a subscription."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0 or count * _LENGTH.size > len(metadata):
            return None
        position = _HEAD.size
        topics = set()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.add(str(metadata[position : position + length], "utf-8"))
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
