"""Hands a segment over to another node, which leads the shard from its end on: the segment stays here until it is
sealed, and the segments that this node began after it are dropped.

Called on the event loop, within the step that decided it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stratalog.machines.restart.restart_events import TakeSealed
from stratalog.machines.restart.shard_restart import judge_sealed
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.missing_files import take_sealed
from stratalog_node.shards.log.workers import ShardWorkers


class LedShard(LocalShard, Protocol):
    context: ShardContext
    workers: ShardWorkers
    active: ActiveSegment | None
    ended: list[ActiveSegment]


def hand_over(shard: LedShard, epoch: int) -> None:
    """Another node leads the shard behind this segment, which ended here. Drop the segments that this node began after
    it."""
    begun = [copy for copy in (*shard.ended, shard.active) if copy is not None and copy.key.epoch > epoch]
    if shard.active is not None and shard.active not in begun:
        shard.ended.append(shard.active)
        shard.workers.sealing.ended(shard.active)
        shard.context.stats.rolls += 1
    shard.active = None
    shard.ended = [copy for copy in shard.ended if copy not in begun]
    leave(shard, begun)


def leave_ended(shard: LedShard, epoch: int) -> None:
    """Other nodes seal this segment, and the shard continues behind it."""
    left = [copy for copy in shard.ended if copy.key.epoch == epoch]
    shard.ended = [copy for copy in shard.ended if copy not in left]
    leave(shard, left)


def leave(shard: LedShard, copies: Iterable[ActiveSegment]) -> None:
    """These copies are no longer written to here. Those that the meta service does not know are removed."""
    copies = list(copies)
    shard.workers.sealing.detached(copies, is_replica=True)
    for copy in copies:
        copy.file.close_when_unused()
        shard.context.sealed_points.forget(copy)
        _keep_sealed(shard, copy)


def _keep_sealed(shard: LedShard, copy: ActiveSegment) -> None:
    """Others may have sealed it before this node's own attempt ended. It then has no follower here, and this node
    serves it as long as the metadata name this copy."""
    segment = shard.context.catalog.segment(copy.key)
    if segment is None or segment.seal is None:
        return
    if isinstance(judge_sealed(segment, shard.context.node_id, has_file=True), TakeSealed):
        take_sealed(shard, segment)
        shard.copies[segment.epoch].damage = copy.damage
