"""Each topic's encoded Metadata entry for the clients of a listener, kept until a shard's active segment moves.

The catalog's version grows with every upload commit too, so a new version alone does not drop an entry: its placements
are compared first (0.35 us per shard), and only shards that moved are encoded again, because while a dead node's shards
find new leaders every client asks for all of a topic again and again. When a node comes or goes, all is encoded again.
A leader without the client's listener is unreachable for the client: the entry says, as in Kafka, that the listener is
missing. Cost: 0.1 us for a topic when nothing at all changed, otherwise 0.35 us per shard, and some 5 us per shard that
moved. Memory: 150 bytes per shard, shape and listener.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.metadata import PartitionReplicas, encode_partition, encode_topic, shape_of_version
from stratalog.model.ids import ShardKey
from stratalog.model.listeners import INTERNAL
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog_node.shards.catalog.catalog import Catalog

NO_LEADER = -1
_LISTENERS_KNOWN_SINCE = 6
_MAX_ENTRIES = 20_000
"""Above this many kept entries (topics x shapes x listeners) all are dropped: deleted topics leave theirs behind."""


class _Away(NamedTuple):
    """Nodes where clients of a listener cannot ask."""

    gone: frozenset[int]
    """Not alive."""
    elsewhere: frozenset[int]
    """Alive, and without a listener of that name."""

    @classmethod
    def of(cls, catalog: Catalog, listener: str) -> _Away:
        gone = frozenset([node.node_id for node in catalog.nodes() if not node.is_alive])
        if listener == INTERNAL:
            return cls(gone, frozenset())
        unlisted = [node.node_id for node in catalog.nodes() if node.is_alive and node.address(listener) is None]
        return cls(gone, frozenset(unlisted))


class _Entry:
    __slots__ = ("active", "away", "data", "keys", "pieces", "topic", "version")

    def __init__(
        self,
        version: int,
        topic: Topic,
        keys: list[ShardKey],
        active: list[Segment | None],
        away: _Away,
        pieces: list[bytes],
        data: bytes,
    ) -> None:
        self.version = version
        self.topic = topic
        self.keys = keys
        self.active = active
        self.away = away
        self.pieces = pieces
        """The encoded piece of each shard, as it was when `active` was read."""
        self.data = data


class MetadataEntries:
    """Encoded topic entries by topic id, wire shape and listener."""

    def __init__(self) -> None:
        self._entries: dict[tuple[UUID, int, str], _Entry] = {}
        self.encoded_count = 0
        """How many topics were encoded, in part or as a whole; what tests watch."""
        self.encoded_shards = 0

    def topic(self, catalog: Catalog, topic: Topic, api_version: int, listener: str) -> bytes:
        """The entry of a topic that exists, for any version of the same shape as `api_version`."""
        shape = shape_of_version(api_version)
        entry = self._entries.get((topic.topic_id, shape, listener))
        if entry is not None:
            if entry.version == catalog.version:
                return entry.data
            if self._refresh(catalog, topic, entry, shape, listener):
                return entry.data
        if len(self._entries) >= _MAX_ENTRIES:
            self._entries.clear()
        entry = self._entries[topic.topic_id, shape, listener] = self._encode(catalog, topic, shape, listener)
        return entry.data

    def _refresh(self, catalog: Catalog, topic: Topic, entry: _Entry, shape: int, listener: str) -> bool:
        """Bring it up to the catalog's version; False where all of it is to be encoded again."""
        if entry.topic is not topic and entry.topic.shard_count != topic.shard_count:
            return False
        if entry.away != _Away.of(catalog, listener):
            return False
        moved = 0
        for position, key in enumerate(entry.keys):
            now = catalog.active_segment(key)
            then = entry.active[position]
            if now is then:
                continue
            if now is None or then is None or _placement(now) != _placement(then):
                entry.pieces[position] = encode_partition(shape, _replicas_of(position, now, entry.away, shape))
                moved += 1
            entry.active[position] = now
        if moved:
            entry.data = self._joined(topic, shape, entry.pieces, moved)
        entry.topic, entry.version = topic, catalog.version
        return True

    def _encode(self, catalog: Catalog, topic: Topic, shape: int, listener: str) -> _Entry:
        keys = [ShardKey(topic.topic_id, shard) for shard in range(topic.shard_count)]
        active = [catalog.active_segment(key) for key in keys]
        away = _Away.of(catalog, listener)
        pieces = [
            encode_partition(shape, _replicas_of(shard, segment, away, shape)) for shard, segment in enumerate(active)
        ]
        data = self._joined(topic, shape, pieces, len(pieces))
        return _Entry(catalog.version, topic, keys, active, away, pieces, data)

    def _joined(self, topic: Topic, shape: int, pieces: list[bytes], encoded: int) -> bytes:
        self.encoded_count += 1
        self.encoded_shards += encoded
        return encode_topic(shape, ErrorCode.NONE, topic.name, topic.topic_id, topic.is_internal, pieces)


def _placement(segment: Segment) -> tuple[int, int | None, tuple[int, ...], tuple[int, ...]]:
    return segment.epoch, segment.leader, segment.replicas, segment.isr


def _replicas_of(shard: int, segment: Segment | None, away: _Away, shape: int) -> PartitionReplicas:
    """The active segment leads; its epoch is Kafka's leader epoch and only grows (trap 8)."""
    if segment is None:
        return PartitionReplicas(ErrorCode.LEADER_NOT_AVAILABLE, shard, NO_LEADER, -1, (), ())
    replicas, leader, error = segment.replicas, segment.leader, ErrorCode.NONE
    if leader is None or leader in away.gone:
        leader, error = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    elif leader in away.elsewhere:
        code = ErrorCode.LISTENER_NOT_FOUND if shape >= _LISTENERS_KNOWN_SINCE else ErrorCode.LEADER_NOT_AVAILABLE
        leader, error = NO_LEADER, code
    offline = tuple(node for node in replicas if node in away.gone or node in away.elsewhere)
    return PartitionReplicas(error, shard, leader, segment.epoch, replicas, segment.isr, offline)
