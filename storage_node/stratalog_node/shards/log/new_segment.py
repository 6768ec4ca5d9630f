"""Makes the file of a segment that nothing was written to yet, and the active segment over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, encode_segment_header
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.machines.leading.chain_events import ActiveNamed, ActiveUnknown
from stratalog.machines.leading.leader_events import SegmentRecord
from stratalog.machines.leading.sealed_producers import as_seen, is_settled
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shared_segments import is_shared
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import SegmentIdentity
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.seal.producers_before import producers_at_base


class InheritedProducers(NamedTuple):
    """The producers at the beginning of an unwritten segment, as a start recovered them."""

    epoch: int
    producers: tuple[ProducerSnapshot, ...]


def identity_of(context: ShardContext, key: SegmentKey, topic: str) -> SegmentIdentity:
    """What a file of this segment says of itself when it is made now."""
    return SegmentIdentity(
        context.cluster_id, key.topic_id, topic, key.shard, key.epoch, key.base_offset, context.turn.now_ms
    )


def open_new(
    context: ShardContext, topic: str, leader: SegmentLeader, *, behind: ActiveSegment | None = None
) -> ActiveSegment:
    """The file of a segment whose opening is to be confirmed may be a spare: `SegmentFile.take_name` before anything in
    it is acknowledged. `behind`: the one that it follows in this life.

    Raises: DiskFull, Unavailable; then no file was made.
    """
    identity = identity_of(context, leader.key, topic)
    path = context.layout.segment(leader.key)
    if context.removal.is_under_way(leader.key):  # begun here before, in vain: it may take the name, or lose it, now
        raise Unavailable(f"{path}: another file of that name is being removed, try again")
    if leader.is_confirmed:
        _refuse_to_write_over(path)
    file = SegmentFile(path, context.descriptors, 0)
    header = encode_segment_header(identity)
    if leader.is_confirmed:
        file.create(header)
    elif behind is not None and any(node.node_id != context.node_id for node in context.catalog.nodes()):
        # Another node may turn out to lead it, and this one to follow it, at once or one day: that copy has the name.
        file.create(header, context.spares.take_or_make, withholds_name=True)
    else:
        file.create(header, context.spares.pop)
    mark = context.ends.mark(leader.key)
    return ActiveSegment(identity, file, leader, IndexBuilder(leader.key.base_offset), mark)


def _refuse_to_write_over(path: Path) -> None:
    """Whatever went wrong: data that lies there may have been acknowledged. What an unconfirmed roll left there has
    been looked at by the start."""
    if path.exists() and path.stat().st_size > SEGMENT_HEADER_BYTES:
        raise Unavailable(
            f"{path} holds batches where a segment without any is to begin: nothing is written over them; restart the "
            "node, so that it checks them, and report this with its log"
        )


def name_active(
    context: ShardContext, key: ShardKey, inherited: InheritedProducers | None, ended: Sequence[ActiveSegment]
) -> ActiveNamed | ActiveUnknown:
    """The shard's active segment according to the meta service, and the producers that it begins with: those that
    recovery found, else those at the end of the segment before (`shards/seal/producers_before.py`). They are unknown
    until every earlier recovery is sealed."""
    segment = context.catalog.active_segment(key)
    if segment is None:
        return ActiveUnknown()
    segments = context.catalog.segments(key)
    is_own = is_settled(segments) and not is_shared(segments, segment.epoch - 1)
    producers: tuple[ProducerSnapshot, ...] | None
    if inherited is not None and inherited.epoch == segment.epoch and is_own:
        producers = inherited.producers
    else:
        producers = producers_at_base(context, segment.key, ended)
    table = None if producers is None else context.producer_table(as_seen(producers, context.turn.now_ms))
    return ActiveNamed(segment.key, SegmentRecord.of(segment), table)
