"""Transitions of the shard table at the end of an ACTIVE segment: people ask for the end, its successor is prepared,
and opens (rule 1).

A person's request only marks the segment's record (`Handover.is_roll_asked`). Its leader rolls it like any other, which
removes the mark, so a segment never rolls twice for one request. If the leader is gone, a recovery ends it.
Pure functions of one transaction. Source: docs/replication.md section 5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias, assert_never

from stratalog.machines.copies.internal_topics import refuse_internal
from stratalog.machines.copies.wanted_copies import next_copies
from stratalog.machines.table.recovery import choose_next, plan_successor
from stratalog.machines.table.segments import check_leader
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableTransaction, describe_segment, kept
from stratalog.model.commands.table_commands import PrepareSegment, RollElsewhere, RollSegment, SealTopic
from stratalog.model.errors import Conflict, Fenced, InvalidRequest
from stratalog.model.ids import MAX_OFFSET, SegmentKey, ShardKey
from stratalog.model.segment import GivenUp, Segment, SegmentState
from stratalog.model.storage_policy import next_policy
from stratalog.model.topic import Topic

RollCommand: TypeAlias = PrepareSegment | RollSegment | SealTopic | RollElsewhere


def perform(tx: TableTransaction, command: RollCommand) -> Steps[Segment | Topic | None]:
    match command:
        case PrepareSegment():
            return prepare_segment(tx, command)
        case RollSegment():
            return roll_segment(tx, command)
        case SealTopic():
            return (yield from seal_topic(tx, command))
        case RollElsewhere():
            yield from roll_elsewhere(tx, command)
            return None
        case _:
            assert_never(command)


def prepare_segment(tx: TableTransaction, command: PrepareSegment) -> Segment:
    """Choose the successor's replicas, once; and again when one of them is not alive or leaves, or one was missing and
    is not any more, or the leader asks for others than those."""
    segment = tx.state.segment(command.segment)
    check_leader(segment, command.caller, "prepare the segment after")
    if segment.state is not SegmentState.ACTIVE:
        raise Fenced(f"{describe_segment(segment.key)} is {segment.state.name}: its successor is open already")
    prepared = segment.handed.prepared
    if (
        prepared is not None
        and prepared != command.instead_of
        and all(tx.state.is_host(node) for node in prepared.replicas)
        and tx.state.is_working(prepared.leader)
    ):
        topic = tx.state.topic(segment.key.topic_id)
        is_wide = len(prepared.replicas) >= min(next_copies(topic), max(tx.state.staying_count, 1))
        if is_wide and prepared.policy is next_policy(topic.settings):
            return segment
    chosen = choose_next(tx, segment)
    if chosen == prepared:
        return segment
    changed = replace(segment, handover=replace(segment.handed, prepared=chosen))
    tx.replace_segment(segment, changed)
    return changed


def roll_segment(tx: TableTransaction, command: RollSegment) -> Segment:
    """ACTIVE -> SEALING at an end offset, and the next segment opens there (rule 1).

    If a successor was prepared, the next segment opens as prepared, with the living replicas as its ISR. Otherwise the
    leader stays the leader, and the policy the same: it opened the next file itself and may have appended there before
    this is confirmed.
    """
    segment = tx.state.segment(command.segment)
    end_offset = command.end_offset
    check_leader(segment, command.caller, "roll")
    if segment.state is not SegmentState.ACTIVE:
        return _rolled_before(tx, segment, end_offset)
    if not segment.base_offset <= end_offset <= MAX_OFFSET:
        raise InvalidRequest(
            f"{describe_segment(segment.key)} cannot end at {end_offset}: that is below its base or no offset at all"
        )
    if segment.is_direct and end_offset != segment.committed_end:
        raise InvalidRequest(
            f"{describe_segment(segment.key)} cannot end at {end_offset}: it is Direct, and the object store has it up "
            f"to {segment.committed_end}; commit the rest first"
        )
    entry = tx.state.shard(segment.key.shard_key)
    floor = max(entry.log_start_offset, segment.remote.commit_offset)
    if end_offset < floor:
        raise Conflict(
            f"{describe_segment(segment.key)} cannot end at {end_offset}: the log start is {entry.log_start_offset} "
            "and "
            f"{segment.remote.commit_offset} is in the object store already; the leader has lost committed data, "
            "run `stratalog doctor` on its directory"
        )
    if segment.handed.prepared is not None:
        opened = plan_successor(tx, segment, end_offset)
    else:
        key = SegmentKey(segment.key.topic_id, segment.key.shard, segment.epoch + 1, end_offset)
        isr = tuple(node for node in segment.replicas if node in segment.isr)
        opened = Segment(
            key, SegmentState.ACTIVE, segment.leader, segment.replicas, isr, 0, tx.now_ms, policy=segment.policy
        )
    # Of what its only replica may have lost it is known by now where it would begin.
    given_up = tuple(GivenUp(end_offset, end_offset, one.reason) for one in segment.handed.given_up)
    handover = kept(replace(segment.handed, prepared=None, given_up=given_up, is_roll_asked=False))
    ended = replace(segment, state=SegmentState.SEALING, end_offset=end_offset, handover=handover)
    tx.replace_segment(segment, ended)
    tx.open_segment(opened)
    return opened


def _rolled_before(tx: TableTransaction, segment: Segment, end_offset: int) -> Segment:
    """The answer to a roll that is repeated because its answer was lost."""
    if segment.end_offset == end_offset:
        key = segment.key
        successor = tx.state.find_segment(SegmentKey(key.topic_id, key.shard, key.epoch + 1, end_offset))
        if successor is not None and successor.state is not SegmentState.DELETED:
            return successor
    raise Fenced(
        f"{describe_segment(segment.key)} is {segment.state.name} and ends at {segment.end_offset}, so it cannot "
        "roll at "
        f"{end_offset}: its leader must stop appending and read the shard's metadata again"
    )


def seal_topic(tx: TableTransaction, command: SealTopic) -> Steps[Topic]:
    topic = tx.state.topic(command.topic_id)
    refuse_internal(topic, "sealed")
    if command.asked_ms <= topic.seal_asked_ms:
        return topic
    for shard in range(topic.shard_count):
        if shard % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
            yield
        segment = tx.state.shard(ShardKey(topic.topic_id, shard)).last
        if _may_be_asked(segment):
            _mark(tx, segment)
    changed = replace(topic, seal_asked_ms=command.asked_ms)
    tx.put_topic(changed)
    return changed


def roll_elsewhere(tx: TableTransaction, command: RollElsewhere) -> Steps[None]:
    """Each choice takes those before it into account, as the plan of a rebalance does."""
    for number, key in enumerate(command.segments, 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        segment = tx.state.find_segment(key)
        if segment is not None and _may_be_asked(segment):
            chosen = replace(segment.handed, prepared=choose_next(tx, segment))
            _mark(tx, segment, replace(segment, handover=chosen))


def _may_be_asked(segment: Segment) -> bool:
    return segment.state is SegmentState.ACTIVE and not segment.is_fenced and not segment.handed.is_roll_asked


def _mark(tx: TableTransaction, segment: Segment, changed: Segment | None = None) -> None:
    changed = changed or segment
    tx.replace_segment(segment, replace(changed, handover=replace(changed.handed, is_roll_asked=True)))
