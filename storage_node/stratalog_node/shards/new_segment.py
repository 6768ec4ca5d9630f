"""Makes the file of a segment that nothing was written to yet, and the active segment over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.formats.index_points import IndexBuilder
from stratalog.formats.segment_file import encode_segment_header
from stratalog.machines.chain_events import ActiveNamed, ActiveUnknown
from stratalog.machines.leader_events import SegmentRecord
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import SegmentIdentity
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.context import ShardContext


class InheritedProducers(NamedTuple):
    """What a start knows of the producers at the beginning of a segment that nobody has written to."""

    epoch: int
    producers: tuple[ProducerSnapshot, ...]


def identity_of(context: ShardContext, key: SegmentKey, topic: str) -> SegmentIdentity:
    """What a file of this segment says of itself when it is made now."""
    return SegmentIdentity(
        context.cluster_id, key.topic_id, topic, key.shard, key.epoch, key.base_offset, context.turn.now_ms
    )


def open_new(context: ShardContext, topic: str, leader: SegmentLeader) -> ActiveSegment:
    """The file of a segment whose opening is to be confirmed may be a spare: `SegmentFile.take_name` before that.

    Raises: DiskFull, Unavailable; then there is no file.
    """
    identity = identity_of(context, leader.key, topic)
    file = SegmentFile(context.layout.segment(leader.key), context.descriptors, 0)
    header = encode_segment_header(identity)
    if leader.is_confirmed:
        file.create(header)
    else:
        file.create(header, context.spares.take)
    return ActiveSegment(identity, file, leader, IndexBuilder(leader.key.base_offset))


def name_active(
    context: ShardContext, key: ShardKey, inherited: InheritedProducers | None, ended: Sequence[ActiveSegment]
) -> ActiveNamed | ActiveUnknown:
    """What the meta service says of a shard's active segment, and the producers it begins with: those that recovery
    knows, those of the one before if it ended here (`ended`), else those that its seal holds. While that one is there,
    led by another and not sealed nobody knows them."""
    segment = context.catalog.active_segment(key)
    if segment is None:
        return ActiveUnknown()
    producers: tuple[ProducerSnapshot, ...] | None
    if inherited is not None and inherited.epoch == segment.epoch:
        producers = inherited.producers
    elif ended and ended[-1].key.epoch == segment.epoch - 1:
        producers = ended[-1].leader.producers_at_end
    else:
        # The one before may be gone with its records: then nobody asks for what it knew any more.
        before = context.catalog.segments(key)[-2:-1]
        producers = () if not before else before[0].seal.producers if before[0].seal is not None else None
    table = None if producers is None else context.producer_table(producers)
    return ActiveNamed(segment.key, SegmentRecord.of(segment), table)
