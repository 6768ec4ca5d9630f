"""Each topic's encoded Metadata entry, kept until a shard's active segment moves.

The catalog's version grows with every upload commit too, so a new version alone does not throw a piece away: its
placements are compared first (0.35 us per shard), and only a real change is encoded again; so is all when a node comes
or goes.
Cost: 0.1 us for a topic when nothing at all changed, otherwise 0.35 us per shard. Memory: 40 bytes per shard and shape.
"""

from __future__ import annotations

from uuid import UUID

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.metadata import PartitionReplicas, encode_topic, shape_of_version
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog_node.shards.catalog import Catalog

NO_LEADER = -1
_MAX_PIECES = 20_000
"""Above this many kept pieces (topics x shapes) all are dropped: deleted topics leave theirs behind."""


class _Piece:
    __slots__ = ("active", "data", "gone", "keys", "topic", "version")

    def __init__(
        self,
        version: int,
        topic: Topic,
        keys: list[ShardKey],
        active: list[Segment | None],
        gone: frozenset[int],
        data: bytes,
    ) -> None:
        self.version = version
        self.topic = topic
        self.keys = keys
        self.active = active
        self.gone = gone
        self.data = data


class MetadataPieces:
    """Encoded topic entries by topic id and wire shape."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[UUID, int], _Piece] = {}
        self.encoded_count = 0
        """How many topics were encoded; a metric, and what tests watch."""

    def topic(self, catalog: Catalog, topic: Topic, api_version: int) -> bytes:
        """The entry of a topic that exists, for any version of the same shape as `api_version`."""
        shape = shape_of_version(api_version)
        piece = self._pieces.get((topic.topic_id, shape))
        if piece is not None:
            if piece.version == catalog.version:
                return piece.data
            if self._still_holds(catalog, topic, piece):
                piece.version = catalog.version
                return piece.data
        if len(self._pieces) >= _MAX_PIECES:
            self._pieces.clear()
        piece = self._pieces[topic.topic_id, shape] = self._encode(catalog, topic, shape)
        return piece.data

    def _still_holds(self, catalog: Catalog, topic: Topic, piece: _Piece) -> bool:
        if piece.topic is not topic and piece.topic.shard_count != topic.shard_count:
            return False
        if piece.gone != _gone(catalog):
            return False
        for position, key in enumerate(piece.keys):
            now = catalog.active_segment(key)
            then = piece.active[position]
            if now is then:
                continue
            if now is None or then is None or _placement(now) != _placement(then):
                return False
            piece.active[position] = now
        piece.topic = topic
        return True

    def _encode(self, catalog: Catalog, topic: Topic, shape: int) -> _Piece:
        keys = [ShardKey(topic.topic_id, shard) for shard in range(topic.shard_count)]
        active = [catalog.active_segment(key) for key in keys]
        gone = _gone(catalog)
        partitions = [_replicas_of(shard, segment, gone) for shard, segment in enumerate(active)]
        self.encoded_count += 1
        data = encode_topic(shape, ErrorCode.NONE, topic.name, topic.topic_id, topic.is_internal, partitions)
        return _Piece(catalog.version, topic, keys, active, gone, data)


def _placement(segment: Segment) -> tuple[int, int | None, tuple[int, ...], tuple[int, ...]]:
    return segment.epoch, segment.leader, segment.replicas, segment.isr


def _gone(catalog: Catalog) -> frozenset[int]:
    """Nodes that are not alive: clients are not told where they are."""
    return frozenset([node.node_id for node in catalog.nodes() if not node.is_alive])


def _replicas_of(shard: int, segment: Segment | None, gone: frozenset[int]) -> PartitionReplicas:
    """The active segment leads; its epoch is Kafka's leader epoch and only grows (trap 8)."""
    if segment is None:
        return PartitionReplicas(ErrorCode.LEADER_NOT_AVAILABLE, shard, NO_LEADER, -1, (), ())
    replicas, leader, error = segment.replicas, segment.leader, ErrorCode.NONE
    if leader is None or leader in gone:
        leader, error = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    offline = tuple(node for node in replicas if node in gone) if gone else ()
    return PartitionReplicas(error, shard, leader, segment.epoch, replicas, segment.isr, offline)
