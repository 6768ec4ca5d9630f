"""Makes the file of a segment that nothing was written to yet, and the active segment over it."""

from __future__ import annotations

from stratalog.formats.index_points import IndexBuilder
from stratalog.formats.segment_file import encode_segment_header
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_leader import RollPolicy, SegmentLeader
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentIdentity
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.context import ShardContext


def identity_of(context: ShardContext, key: SegmentKey, topic: str) -> SegmentIdentity:
    """What a file of this segment says of itself when it is made now."""
    return SegmentIdentity(
        context.cluster_id, key.topic_id, topic, key.shard, key.epoch, key.base_offset, context.turn.now_ms
    )


def open_new(
    context: ShardContext,
    key: SegmentKey,
    topic: str,
    policy: RollPolicy,
    table: ProducerTable,
    *,
    isr: tuple[int, ...],
    is_confirmed: bool,
    is_tail_doubted: bool,
) -> ActiveSegment:
    """Raises: DiskFull, Unavailable; then there is no file."""
    identity = identity_of(context, key, topic)
    file = SegmentFile(context.layout.segment(key), context.descriptors, 0)
    file.create(encode_segment_header(identity))
    leader = SegmentLeader(
        key,
        context.node_id,
        policy,
        table,
        isr=isr,
        is_confirmed=is_confirmed,
        is_tail_doubted=is_tail_doubted,
    )
    return ActiveSegment(identity, file, leader, IndexBuilder(key.base_offset))
