"""Transitions of the shard table that end an open segment after its nodes were given up by force
(docs/scaling-spec.md).

The check by the service's leader may be older than the return of a node that has all of the segment. So this
transaction, which ends the segment, decides whether it waits only for nodes that were given up.
Pure functions of one transaction.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.copies.leaving import Presence, is_waited_for_in_vain
from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.table.recovery import begin_recovery, seal_unclean
from stratalog.machines.table.state import TableTransaction
from stratalog.model.commands.retirement_commands import GiveUpOpen
from stratalog.model.commands.table_commands import BeginRecovery, SealUnclean
from stratalog.model.segment import Segment, SegmentState


def give_up_open(tx: TableTransaction, command: GiveUpOpen) -> Segment | None:
    key = command.segment
    segment = tx.state.find_segment(key)
    if segment is None or not _is_given_up(tx, segment):
        return segment
    segment = begin_recovery(tx, BeginRecovery(key))
    if not _is_given_up(tx, segment):
        return segment  # its leader lives, and has to say first how far it is; or the end is known already
    if segment.state is SegmentState.SEALING and not any(map(tx.state.is_alive, segment.replicas)):
        maker = _replacing_node(tx, segment)
        if maker is None:
            return segment
        given = replace(segment, replicas=(*segment.replicas, maker))
        tx.replace_segment(segment, given)
    return seal_unclean(tx, SealUnclean(key))


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
