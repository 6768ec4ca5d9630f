"""Transitions of the shard table that end an open segment after its nodes were given up by force
(docs/scaling-spec.md).

The check by the service's leader may be older than the return of a node that has all of the segment. So this
transaction, which ends the segment, decides whether it waits only for nodes that were given up.
Pure functions of one transaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from stratalog.machines.copies.leaving import Presence, is_waited_for_in_vain
from stratalog.machines.copies.recovery_rule import is_quorum, majority
from stratalog.machines.table.recovery import begin_recovery, seal_unclean
from stratalog.machines.table.state import TableTransaction
from stratalog.model.commands.retirement_commands import GiveUpOpen
from stratalog.model.commands.table_commands import BeginRecovery, SealUnclean
from stratalog.model.retirement import LostRange
from stratalog.model.segment import GapReason, GivenUp, Segment, SegmentState

MAX_OPEN_LISTED: Final = 100
"""More are only counted: each open segment that is given up writes the record of its nodes again."""


def give_up_open(tx: TableTransaction, command: GiveUpOpen) -> Segment | None:
    key = command.segment
    segment = tx.state.find_segment(key)
    if segment is None or not _is_given_up(tx, segment):
        return segment
    before = _gap_of(segment)
    segment = begin_recovery(tx, BeginRecovery(key))
    if not _is_given_up(tx, segment):
        return segment  # its leader lives, and has to say first how far it is; or the end is known already
    if segment.state is SegmentState.SEALING and not any(map(tx.state.is_alive, segment.replicas)):
        maker = _replacing_node(tx, segment)
        if maker is None:
            return segment
        given = replace(segment, replicas=(*segment.replicas, maker))
        tx.replace_segment(segment, given)
    ended = seal_unclean(tx, SealUnclean(key))
    if before is None and (gap := _gap_of(ended)) is not None and not _is_all_known(tx, segment, ended, gap):
        _note(tx, ended, LostRange(key, gap.base_offset, gap.end_offset))
    return ended


def _gap_of(segment: Segment) -> GivenUp | None:
    return next((gap for gap in segment.handed.given_up if gap.reason is GapReason.UNCLEAN), None)


def _is_all_known(tx: TableTransaction, segment: Segment, ended: Segment, gap: GivenUp) -> bool:
    """Whether living replicas have all that was acknowledged, so that nothing was given up with the others."""
    if gap.base_offset != gap.end_offset:
        return False
    whole = {vote.node_id for vote in ended.handed.votes if vote.is_tail_whole and vote.end_offset >= gap.end_offset}
    whole = set(filter(tx.state.is_alive, whole))
    if is_quorum(tx.state.topic(segment.key.topic_id).settings):
        return len(segment.replicas) - len(whole) < majority(segment)
    return not whole.isdisjoint(segment.isr)


def _note(tx: TableTransaction, segment: Segment, lost: LostRange) -> None:
    """In the retirement of each replica that was given up by force."""
    for node_id in segment.replicas:
        known = tx.state.nodes.get(node_id)
        if known is None or known.retirement is None or not known.retirement.is_forced or known.is_alive:
            continue
        old = known.retirement
        listed = (*old.given_up, lost) if len(old.given_up) < MAX_OPEN_LISTED else old.given_up
        changed = replace(old, given_up=listed, given_up_count=old.given_up_count + 1)
        tx.put_node(replace(known, retirement=changed))


def _is_given_up(tx: TableTransaction, segment: Segment) -> bool:
    if segment.state not in (SegmentState.ACTIVE, SegmentState.SEALING):
        return False
    state = tx.state
    by_quorum = is_quorum(state.topic(segment.key.topic_id).settings)
    presence = Presence(state.is_alive, state.is_given_up, state.is_dead_and_leaving)
    return is_waited_for_in_vain(segment, by_quorum, presence)


def _replacing_node(tx: TableTransaction, segment: Segment) -> int | None:
    """Each of its replicas was given up: another node replaces the data that no node has, so that the log continues:
    the leader of the next segment, else any staying node."""
    entry, key = tx.state.shard(segment.key.shard_key), segment.key
    behind = (entry.segments[epoch].leader for epoch in range(key.epoch + 1, entry.next_epoch))
    wrong = {report.node_id for report in segment.handed.reports}
    able = [node for node in sorted(tx.state.nodes) if tx.state.is_staying(node) and node not in wrong]
    able = [node for node in able if node not in segment.replicas]
    return next((leader for leader in behind if leader in able), able[0] if able else None)
