"""Who wrote what, as a node knows it: the state of producers at a segment's base, and the report on its copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.restart_events import Producers
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord, Segment
from stratalog_sim.disk import header_of

if TYPE_CHECKING:
    from stratalog_sim.node import NodeLife


def producers_before(node: NodeLife, segment: Segment) -> Producers | None:
    """At the segment's base: what the seal record before it says, else this node's own copies. None: not known here
    yet, or a recovery is not sealed, and what it found is not safe to be acknowledged again."""
    earlier = [one for one in node.view.segments(segment.key.shard_key) if one.epoch < segment.epoch]
    if any(one.fence and one.seal is None for one in earlier):
        return None
    known: Producers = ()
    for before in earlier:
        if before.seal is not None:
            known = before.seal.producers
            continue
        file = node.disk.files.get(before.key)
        whole = file.whole(before.key) if file is not None else []
        end = whole[-1].end_offset if whole else before.base_offset
        if before.end_offset is None or end < before.end_offset:
            return None
        table = ProducerTable(known)
        for batch in whole:
            if batch.end_offset <= before.end_offset:
                table.replay(header_of(batch), node.now_ms)
        known = table.snapshot()
    return known


def proof_of(node: NodeLife, key: SegmentKey, end_offset: int, size_bytes: int, digest: bytes) -> SealRecord | None:
    """A report on a copy. None: what producers wrote before it is not known yet."""
    segment = node.view.segment(key)
    if segment is None:
        return None
    before = producers_before(node, segment)
    if before is None:
        return None
    table = ProducerTable(before)
    file = node.disk.files.get(key)
    for batch in file.whole(key) if file is not None else []:
        table.replay(header_of(batch), node.now_ms)
    times = node.now_ms if size_bytes else -1
    return SealRecord(
        key.epoch,
        key.base_offset,
        end_offset,
        times,
        times,
        size_bytes,
        digest,
        table.snapshot(),
        (node.node_id,),
        node.now_ms,
    )
