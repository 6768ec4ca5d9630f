"""Makes the file of a segment that nothing was written to yet, and the active segment over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.formats.index_points import IndexBuilder
from stratalog.formats.segment_file import encode_segment_header
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentIdentity
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.active import ActiveSegment

if TYPE_CHECKING:
    from stratalog_node.shards.shard_log import ShardLog


def identity_of(shard: ShardLog, key: SegmentKey) -> SegmentIdentity:
    """What a file of this segment says of itself when it is made now."""
    node = shard.node
    return SegmentIdentity(
        node.cluster_id, key.topic_id, shard.topic.name, key.shard, key.epoch, key.base_offset, node.now_ms
    )


def open_new(
    shard: ShardLog, key: SegmentKey, table: ProducerTable, *, isr: tuple[int, ...], is_confirmed: bool
) -> ActiveSegment:
    """Raises: DiskFull, Unavailable; then there is no file."""
    identity = identity_of(shard, key)
    file = SegmentFile(shard.node.layout.segment(key), shard.node.descriptors, 0)
    file.create(encode_segment_header(identity))
    leader = SegmentLeader(
        key,
        shard.node.node_id,
        shard.rules.roll,
        table,
        isr=isr,
        is_confirmed=is_confirmed,
        is_tail_doubted=key.epoch == shard.doubted_epoch,
    )
    return ActiveSegment(identity, file, leader, IndexBuilder(key.base_offset))
