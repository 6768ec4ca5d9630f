"""Which shard of the group log keeps a group, and so which node coordinates it. Pure."""

from __future__ import annotations

import struct
from typing import Protocol

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Node
from stratalog.model.topic import Topic

OFFSETS_TOPIC = GROUP_LOG


class Leaders(Protocol):
    """The part of the node's catalog that names leaders."""

    def topic(self, name: str) -> Topic | None: ...

    def leader_of(self, key: ShardKey) -> tuple[int, int] | None: ...

    def node(self, node_id: int) -> Node | None: ...


def coordinator_of(catalog: Leaders, group_id: str) -> Node | None:
    """The leader of the group's shard; None while there is no leader, or it is not alive, or there is no group log
    yet."""
    topic = catalog.topic(OFFSETS_TOPIC)
    if topic is None:
        return None
    led = catalog.leader_of(ShardKey(topic.topic_id, shard_of(group_id, topic.shard_count)))
    node = None if led is None else catalog.node(led[0])
    return node if node is not None and node.is_alive else None


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
