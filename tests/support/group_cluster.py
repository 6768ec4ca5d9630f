"""Group coordinators of several nodes over the same shards in memory; the test says which node leads each shard, and
moves them.

Only a shard's leader appends. An append in flight of a deposed leader is in the log or not, as the test says, and the
leader gets "outcome unknown".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stratalog.model.commands.table_commands import CreateTopic, WidenTopic
from stratalog.model.errors import Fenced, OutcomeUnknown
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Node, NodeChanged, SegmentChanged
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.topic import Topic
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.placement import OFFSETS_TOPIC
from stratalog_node.shards.copies.shard_view import ShardView
from support.group_node import GroupNode, Topics
from support.memory_shard import MemoryShard


class ShardAt:
    """A shard as one node sees it: a `ShardView`."""

    def __init__(self, shard: MemoryShard, cluster: GroupCluster, node_id: int) -> None:
        self._shard = shard
        self._cluster = cluster
        self._node_id = node_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    async def append(self, batches: Sequence[bytes]) -> int:
        led = self._cluster.terms[self._shard.key]
        if led[0] != self._node_id:
            raise Fenced("another node leads this shard")
        base_offset = await self._shard.append(batches)
        if self._cluster.terms[self._shard.key] != led:
            raise OutcomeUnknown("leadership was lost while the append waited")
        return base_offset


class ClusterTopics(Topics):
    def __init__(self, cluster: GroupCluster) -> None:
        super().__init__()
        self.cluster = cluster

    def leader_of(self, key: ShardKey) -> tuple[int, int] | None:
        return self.cluster.terms.get(key)

    def nodes(self) -> list[Node]:
        return [Node(node_id, f"storage-{node_id}", "host", 9092) for node_id in self.cluster.nodes]


class ClusterNode(GroupNode):
    def __init__(self, cluster: GroupCluster, node_id: int, **settings: Any) -> None:
        self.cluster = cluster
        self._views: dict[ShardKey, ShardAt] = {}
        super().__init__(**settings)
        self.node_id = node_id
        self.topics, self.shards = cluster.topics, cluster.shards
        self.groups = self._coordinator()

    def _led_shard(self, key: ShardKey) -> ShardView | None:  # type: ignore[override]
        shard, led = self.shards.get(key), self.cluster.terms.get(key)
        if shard is None or led is None or led[0] != self.node_id:
            return None
        return self._views.setdefault(key, ShardAt(shard, self.cluster, self.node_id))  # type: ignore[return-value]

    async def perform(self, command: Any, *, validate_only: bool = False) -> Any:
        cluster = self.cluster
        cluster.asked.append(command)
        if not isinstance(command, CreateTopic | WidenTopic):
            return await super().perform(command)
        topic = cluster.log if isinstance(command, WidenTopic) else await super().perform(command)
        if isinstance(command, CreateTopic):
            for index in range(command.shard_count):
                cluster.terms[ShardKey(topic.topic_id, index)] = (min(cluster.nodes), 0)
        factor = min(command.replication_factor, len(cluster.nodes))  # as the real table does
        topic = cluster.topics.by_name[OFFSETS_TOPIC] = replace(topic, replication_factor=factor)
        return topic


class GroupCluster:
    def __init__(self, nodes: int = 2, *, limits: CoordinatorLimits | None = None, **settings: Any) -> None:
        self.terms: dict[ShardKey, tuple[int, int]] = {}
        """The leader and its epoch."""
        self.asked: list[Any] = []
        """Of the meta service."""
        self.shards: dict[ShardKey, MemoryShard] = {}
        self.nodes: dict[int, ClusterNode] = {}
        self.topics = ClusterTopics(self)
        self.topics.add("orders")
        self._limits, self._settings = limits, settings
        for node_id in range(1, nodes + 1):
            self.add(node_id)

    def add(self, node_id: int) -> ClusterNode:
        """A node that is new; those that are there hear of it."""
        node = ClusterNode(self, node_id, limits=self._limits, **self._settings)
        others, self.nodes[node_id] = list(self.nodes.values()), node
        for other in others:
            other.groups.on_change(NodeChanged(Node(node_id, f"storage-{node_id}", "host", 9092)))
        return node

    async def start(self) -> GroupCluster:
        """With the group log there, all of it led by node 1."""
        for node in self.nodes.values():
            await node.groups.start()
        await self.nodes[1].groups.ensure_ready()
        return self

    @property
    def log(self) -> Topic:
        topic = self.topics.topic(OFFSETS_TOPIC)
        assert topic is not None
        return topic

    def lead(self, index: int, node_id: int) -> None:
        """From now on this node leads; every node hears of it."""
        key = ShardKey(self.log.topic_id, index)
        epoch = self.terms[key][1] + 1
        self.terms[key] = (node_id, epoch)
        nodes = tuple(self.nodes)
        segment = Segment(
            SegmentKey(key.topic_id, index, epoch, self.shards[key].end_offset),
            SegmentState.ACTIVE,
            node_id,
            nodes,
            nodes,
            0,
            0,
        )
        for node in self.nodes.values():
            node.groups.on_change(SegmentChanged(segment))

    async def move(self, index: int, node_id: int) -> ClusterNode:
        """... and has loaded its groups."""
        self.lead(index, node_id)
        node = self.nodes[node_id]
        await asyncio.sleep(0)
        await node.groups.load(index)
        return node
