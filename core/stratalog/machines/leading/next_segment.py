"""How a shard's next segment begins on this node, or why it cannot begin here yet.

The first one of a life is the one that the meta service lists as active; the next ones follow from what it prepared.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.machines.leading.chain_events import ActiveNamed, ActiveUnknown, SuccessorNamed
from stratalog.machines.leading.leader_events import RollPolicy, SegmentRecord
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_life import Stop
from stratalog.model.append import AppendFailure
from stratalog.model.ids import SegmentKey

_NO_PRODUCERS = (
    "what producers wrote before is not known here yet: the segment before is to be sealed first, and its table of "
    "producers to be had from a node that has it, or from the object store"
)


class NotYet(NamedTuple):
    why: AppendFailure
    message: str


def begin_listed(
    event: ActiveNamed | ActiveUnknown, node_id: int, policy: RollPolicy, newest_ended: int, doubted_epoch: int
) -> SegmentLeader | NotYet:
    """`newest_ended`: of the segments that ended here, the newest one's epoch, or -1: the list may be older."""
    if isinstance(event, ActiveUnknown):
        return NotYet(AppendFailure.NOT_OPEN, "the shard has no active segment yet")
    record = event.record
    if newest_ended >= event.key.epoch:
        return NotYet(AppendFailure.MOVING, AppendFailure.MOVING.value)
    if record.leader != node_id or record.fence > 0:
        return NotYet(AppendFailure.NOT_LEADER, AppendFailure.NOT_LEADER.value)
    if event.producers is None:
        return NotYet(AppendFailure.NOT_OPEN, _NO_PRODUCERS)
    return SegmentLeader(
        event.key,
        node_id,
        policy,
        event.producers,
        isr=record.isr,
        isr_version=record.isr_version,
        replicas=record.replicas,
        is_tail_doubted=event.key.epoch == doubted_epoch,
        is_direct=record.is_direct,
    )


def begin_prepared(old: SegmentLeader, end_offset: int, successor: SuccessorNamed, policy: RollPolicy) -> SegmentLeader:
    """Behind one that ended, before the meta service knows. Who of the replicas is in sync its record will say; until
    then nothing is acknowledged, and all of them count."""
    key = SegmentKey(old.key.topic_id, old.key.shard, old.key.epoch + 1, end_offset)
    return SegmentLeader(
        key,
        old.node_id,
        policy,
        old.producers,
        isr=successor.replicas,
        is_confirmed=False,
        is_direct=successor.is_direct,
    )


def is_elsewhere(successor: SegmentLeader, record: SegmentRecord, stop: Stop | None) -> bool:
    """Whether what was begun behind a roll that is not confirmed turns out not to be this node's: another leads it, or
    it has been taken from its leader, whoever that was. A shard that stopped ends as a whole instead."""
    return stop is None and not successor.is_confirmed and record.leader != successor.node_id


def is_settled_behind(successor: SegmentLeader | None) -> bool:
    """Whether a fence of the segment before `successor` takes only that segment from this node: the meta service knows
    its end and the successor's leader, so all of it is committed. Other nodes seal it; the successor's leader stays."""
    return successor is not None and successor.is_confirmed
