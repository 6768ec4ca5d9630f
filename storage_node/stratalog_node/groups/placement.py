"""Which shard of the group log keeps a group. Pure."""

from __future__ import annotations

import struct

from stratalog.machines.internal_topics import GROUP_LOG

OFFSETS_TOPIC = GROUP_LOG


def shard_of(group_id: str, shard_count: int) -> int:
    """Kafka's rule (Java's string hash), so that tools which compute the place of a group find it here too."""
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    # Java cannot negate its least integer, and Kafka takes 0 for it.
    return 0 if value == 0x80000000 else value % shard_count
