"""Consumers that name their rack and read sealed data: which replica a leader sends them to, and how a replica sends
them back (KIP-392).

Both are answers without records and without an error that name a node as preferred read replica; a replica names the
leader. So a client needs no new metadata, and gets no error that could make it jump. A client that ignores the
preferred replica is served where it asks, or gets "not the leader": each partition of a connection is sent away at most
once a minute, and sent back at most once in five seconds, so no client alternates faster than that.
Lives on the event loop. Cost: nothing for clients without a rack; for the others two lookups per partition.
Source: docs/kafka.md "Reading from another replica".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from stratalog.kafka.fetch import FetchedPartition
from stratalog.machines.reading.read_policy import ReadPolicy
from stratalog.machines.reading.read_replica import reader_of
from stratalog.model.ids import ShardKey
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.serving import ServeStats
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import ReadBuffer
from stratalog_node.shards.read.replica_reads import proven_copy

_AWAY_MS = 60_000
"""librdkafka slows a partition down that is sent to another node twice in a minute."""
_BACK_MS = 5_000
_REMEMBERED = 1_000
"""Partitions of a connection: of more the oldest are forgotten, and may be sent again."""
_ALL_REMEMBERED = 200_000
"""For all connections together, some 20 MB: beyond that all entries are dropped."""
_FROM_DISK = (ReadPolicy.DISABLE, ReadPolicy.NOT_IN_DISK)
"""Policies under which a copy on a disk is what is read."""


class ReadReplicas:
    def __init__(
        self, node_id: int, catalog: Catalog, least_bytes: int, stats: ServeStats, steady_ms: Callable[[], int]
    ) -> None:
        """`least_bytes`: a client is sent away only for more than this; below 0 no client is."""
        self._node_id = node_id
        self._catalog = catalog
        self._least_bytes = least_bytes
        self._stats = stats
        self._steady_ms = steady_ms
        self._sent: dict[Connection, dict[ShardKey, int]] = {}
        """When a partition was last sent from here, or looked at to be."""
        self._remembered = 0

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._remembered -= len(self._sent.pop(connection, ()))

    def serves(self, shard: ShardLog, offset: int) -> bool:
        """Whether this node, which does not lead the shard, may serve a consumer there."""
        if not shard.log_start_offset <= offset or shard.rules.read_policy.value not in _FROM_DISK:
            return False
        segments = shard.segments
        index = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        copy = proven_copy(shard, segments[index]) if index >= 0 else None
        return copy is not None and offset < copy.seal.end_offset

    def elsewhere(
        self, connection: Connection, consumer: str, rack: str, shard: ShardLog, partition: int, offset: int
    ) -> FetchedPartition[ReadBuffer] | None:
        """What tells a consumer to read elsewhere; None: it is answered here."""
        if shard.is_leader:
            active = shard.active
            if (active is not None and offset >= active.key.base_offset) or self._least_bytes < 0:
                return None
            node_id = self._reader(connection, consumer, rack, shard, offset)
            if node_id is None:
                return None
            self._stats.sent_away += 1
            marks = shard.high_watermark, shard.last_stable_offset, shard.log_start_offset
            return FetchedPartition(partition, 0, *marks, preferred_read_replica=node_id)
        leader = shard.leader
        if leader is None or self.serves(shard, offset) or not self._may_send(connection, shard.key, _BACK_MS):
            return None
        self._stats.sent_back += 1
        mark = self.high_watermark(shard)
        return FetchedPartition(partition, 0, mark, mark, shard.log_start_offset, preferred_read_replica=leader[0])

    def high_watermark(self, shard: ShardLog) -> int:
        """For a shard that another node leads, what is known for sure: all before its newest segment is committed."""
        segments = shard.segments
        return max(shard.high_watermark, segments[-1].base_offset) if segments else shard.high_watermark

    def _reader(self, connection: Connection, consumer: str, rack: str, shard: ShardLog, offset: int) -> int | None:
        segments = shard.segments
        if not shard.log_start_offset <= offset or shard.rules.read_policy.value not in _FROM_DISK:
            return None
        index = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        if index < 0 or segments[index].seal is None or not self._may_send(connection, shard.key, _AWAY_MS):
            return None
        found = reader_of(
            segments,
            index,
            offset,
            named=segments[-1].replicas,
            racks=self._racks(connection.info.listener),
            rack=rack,
            least_bytes=self._least_bytes,
            consumer=f"{consumer} {connection.info.peer} {shard.key}",
        )
        return None if found == self._node_id else found

    def _racks(self, listener: str) -> dict[int, str | None]:
        """The racks of the living nodes that a client of this listener can reach."""
        living = (node for node in self._catalog.nodes() if node.is_alive)
        return {node.node_id: node.rack for node in living if node.address(listener) is not None}

    def _may_send(self, connection: Connection, key: ShardKey, pause_ms: int) -> bool:
        """Notes that it was asked: the next time is a pause away."""
        now_ms = self._steady_ms()
        if self._remembered >= _ALL_REMEMBERED:
            self._sent.clear()
            self._remembered = 0
        sent = self._sent.setdefault(connection, {})
        before = sent.pop(key, None)
        self._remembered -= before is not None
        if before is not None and now_ms - before < pause_ms:
            now_ms, is_due = before, False
        else:
            is_due = True
        if len(sent) >= _REMEMBERED:
            del sent[next(iter(sent))]
            self._remembered -= 1
        sent[key] = now_ms
        self._remembered += 1
        return is_due
