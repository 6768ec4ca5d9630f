"""Transitions of the shard table that seal a segment without its leader (rule 7): fence, promises, end, source.

Each step that may bring the decision (a promise, a life that begins or ends, a person's word) ends in `go_on`, which
takes it as soon as `recovery_rule` allows. An ACTIVE segment ends there and its successor opens in the same
transaction; one that was SEALING already keeps its end, and gets a source.
Pure functions of one transaction.
Source: docs/replication.md section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stratalog.machines.copies.placement import place_next
from stratalog.machines.copies.recovery_rule import (
    Decided,
    decide,
    has_gap_at_end,
    is_quorum,
    is_source_short,
    owed_by_source,
)
from stratalog.machines.copies.wanted_copies import next_copies
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableTransaction, describe_segment
from stratalog.model.commands.table_commands import BeginRecovery, PromiseFence, SealUnclean
from stratalog.model.counting import nodes_named
from stratalog.model.errors import Conflict, Fenced, InvalidRequest
from stratalog.model.ids import MAX_OFFSET, SegmentKey
from stratalog.model.segment import GapReason, GivenUp, Handover, NextReplicas, Segment, SegmentState, Vote
from stratalog.model.storage_policy import next_policy
from stratalog.model.topic import Topic

UNCLEAN_SEAL: Final = "uncleanSeal"
ALLOW: Final = "allow"


def begin_recovery(tx: TableTransaction, command: BeginRecovery) -> Segment:
    """By command. One under way is looked at again; one that is over is answered as it is."""
    segment = tx.state.segment(command.segment)
    if segment.state not in (SegmentState.ACTIVE, SegmentState.SEALING):
        return segment
    if not segment.is_fenced:
        taken = taken_from_leader(segment)
        tx.replace_segment(segment, taken)
        segment = taken
    return decide_recovery(tx, segment)


def taken_from_leader(segment: Segment) -> Segment:
    """From now on nothing that its leader asks is done. What was prepared stays, if it is good still."""
    return replace(segment, leader=None, fence=segment.epoch + 1)


def promise_fence(tx: TableTransaction, command: PromiseFence) -> Segment:
    """Count one voice. After the decision it still says who else has everything below the end."""
    segment = tx.state.segment(command.segment)
    if segment.state not in (SegmentState.ACTIVE, SegmentState.SEALING):
        return segment
    vote = _vote(segment, command)
    before = next((known for known in segment.handed.votes if known.node_id == vote.node_id), None)
    if before is not None and before.life == vote.life:
        if before.end_offset != vote.end_offset:
            raise Conflict(
                f"node {vote.node_id} promised {describe_segment(segment.key)} with end {before.end_offset} in this "
                f"life, and now says {vote.end_offset}: it took data after its promise, or lost some; stop it"
            )
        return decide_recovery(tx, segment)
    others = (known for known in segment.handed.votes if known.node_id != vote.node_id)
    votes = tuple(sorted((*others, vote), key=lambda one: one.node_id))  # whoever came first
    voted = replace(segment, handover=replace(segment.handed, votes=votes))
    tx.replace_segment(segment, voted)
    return decide_recovery(tx, voted)


def _vote(segment: Segment, command: PromiseFence) -> Vote:
    where = describe_segment(segment.key)
    caller = command.caller
    if caller is None:
        raise InvalidRequest(f"a promise for {where} must name the life of the node that gives it")
    if caller.node_id not in segment.replicas:
        raise Conflict(f"node {caller.node_id} is not a replica of {where}, its replicas are {segment.replicas}")
    if not segment.is_fenced or command.fence != segment.fence:
        raise Fenced(f"the fence of {where} is {segment.fence}, not {command.fence}: read its record again")
    if any(doubt.is_lost and doubt.node_id == caller.node_id for doubt in segment.handed.doubts):
        raise Conflict(
            f"node {caller.node_id} began again on an empty disk: what it held of {where} is unknown, so its promise "
            "does not count"
        )
    marks = (command.high_watermark, command.seen_offset)
    if not segment.base_offset <= command.end_offset <= MAX_OFFSET or not all(
        0 <= mark <= MAX_OFFSET for mark in marks
    ):
        raise InvalidRequest(
            f"a promise for {where} names end {command.end_offset} and marks {marks}: these are not offsets of it"
        )
    return Vote(
        caller.node_id,
        caller.epoch,
        command.end_offset,
        command.high_watermark,
        command.is_tail_whole,
        command.seen_offset,
    )


def seal_unclean(tx: TableTransaction, command: SealUnclean) -> Segment:
    """On a person's request: continue with the best known end, whichever replica has it."""
    segment = tx.state.segment(command.segment)
    where = describe_segment(segment.key)
    is_done = any(entry.reason is GapReason.UNCLEAN for entry in segment.handed.given_up)
    if segment.state not in (SegmentState.ACTIVE, SegmentState.SEALING) or _is_decided(tx, segment):
        if is_done:
            return segment
        raise Conflict(f"{where} is {segment.state.name} and waits for no node: there is nothing to give up")
    if not segment.is_fenced:
        raise Conflict(f"{where} has a leader: begin its recovery first, and give up what it cannot find")
    segment = decide_recovery(tx, segment)
    if _is_decided(tx, segment):
        return segment
    best = decide(segment, by_quorum=is_quorum(_topic(tx, segment).settings), is_alive=tx.state.is_alive).best
    if best is None and segment.state is SegmentState.SEALING:
        living = [node for node in segment.replicas if tx.state.is_alive(node)]
        if not living:
            raise Conflict(
                f"{where} has no living replica that could be its source: start {nodes_named(segment.replicas, 'or')}; "
                "if a disk is lost for good, give up its node with `stratalog nodes retire ID --force STORAGE-ID`"
            )
        best = Vote(living[0], 0, segment.base_offset, 0, is_tail_whole=False)  # it replaces the data that no node has
    return _end(tx, segment, best, GapReason.UNCLEAN)


def decide_recovery(tx: TableTransaction, segment: Segment) -> Segment:
    """Take what decision can be taken; the segment as it is then. Asking again changes nothing."""
    if not segment.is_fenced or segment.state not in (SegmentState.ACTIVE, SegmentState.SEALING):
        return segment
    if segment.is_direct:
        return _decide_direct(tx, segment)
    if segment.state is SegmentState.SEALING:
        segment = _find_source(tx, segment)
    if _is_decided(tx, segment):
        return segment
    topic = _topic(tx, segment)
    decision = decide(segment, by_quorum=is_quorum(topic.settings), is_alive=tx.state.is_alive)
    if isinstance(decision, Decided):
        return _end(tx, segment, decision.best, None if decision.is_certain else GapReason.RESTARTED)
    if decision.is_hopeless and decision.best is not None and topic.settings.get(UNCLEAN_SEAL) == ALLOW:
        return _end(tx, segment, decision.best, GapReason.UNCLEAN)
    return segment


def _decide_direct(tx: TableTransaction, segment: Segment) -> Segment:
    """Of a Direct segment no node is asked: what was acknowledged lies below the commit offset. It needs a living node
    for what follows, and for the copy that is sealed; without any it waits for the first one."""
    if not any(map(tx.state.is_host, tx.state.nodes)):
        return segment
    if segment.state is SegmentState.ACTIVE:
        segment = _end(tx, segment, None, None)
    handed = segment.handed
    if handed.source is not None and tx.state.is_alive(handed.source):
        return segment
    holder = _direct_holder(tx, segment)
    if holder is None or holder == handed.source:
        return segment
    # Whoever held it before may be gone for good, and has nothing that the object store lacks.
    handover = Handover(source=holder, given_up=handed.given_up)
    taken = replace(segment, replicas=(holder,), isr=(holder,), isr_version=segment.isr_version + 1, handover=handover)
    tx.replace_segment(segment, taken)
    return taken


def _direct_holder(tx: TableTransaction, segment: Segment) -> int | None:
    """Who makes the copy that is sealed: the former leader, which has most of it on its disk, if it works; else the
    leader of the shard, which needs its table of producers first of all."""
    leads_now = tx.state.shard(segment.key.shard_key).last.leader
    faulty = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_faulty}
    named = [*segment.replicas, *(() if leads_now is None else (leads_now,)), *sorted(tx.state.nodes)]
    able = [node for node in named if _may_lead(tx, node)]
    return next((node for node in able if node not in faulty), able[0] if able else None)


def decide_direct_recoveries(tx: TableTransaction) -> Steps[None]:
    """A node is there that was not: Direct segments that waited for any end now, or get a living holder."""
    for number, key in enumerate(sorted(tx.state.unsettled), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        segment = tx.state.segment(key)
        if segment.is_direct:
            decide_recovery(tx, segment)


def end_at_longest(tx: TableTransaction, segment: Segment, best: Vote) -> None:
    """No voice is whole, and all that are waited for have answered: the longest copy counts."""
    _end(tx, segment, best, GapReason.RESTARTED)


def _is_decided(tx: TableTransaction, segment: Segment) -> bool:
    source = segment.handed.source
    return segment.state is SegmentState.SEALING and source is not None and tx.state.is_alive(source)


def _find_source(tx: TableTransaction, segment: Segment) -> Segment:
    """Of a segment whose end is known: the source that it has while that lives, else a living replica that reached the
    end. If there is none, a source that had all of it stays, and is waited for. Without one the replicas that are
    shorter have to decide."""
    handed = segment.handed
    is_there = handed.source is not None and tx.state.is_alive(handed.source)
    if is_there and (has_gap_at_end(segment) or not is_source_short(segment)):
        return segment
    assert segment.end_offset is not None
    whole = [report.node_id for report in handed.reports]
    whole += [vote.node_id for vote in handed.votes if vote.end_offset >= segment.end_offset]
    living = [node for node in whole if node in segment.replicas and tx.state.is_alive(node)]
    faulty = {doubt.node_id for doubt in handed.doubts if doubt.is_faulty}
    source = min(living, key=lambda node: (node in faulty, not tx.state.is_working(node)), default=None)
    if source == handed.source or (source is None and owed_by_source(segment) is not None):
        return segment
    found = replace(segment, handover=replace(handed, source=source))
    tx.replace_segment(segment, found)
    return found


def _end(tx: TableTransaction, segment: Segment, best: Vote | None, reason: GapReason | None) -> Segment:
    """The end is `best`'s, or never below what is in the object store or deleted; `reason` says why more than that may
    be lost."""
    handed = segment.handed
    entry = tx.state.shard(segment.key.shard_key)
    floor = max(segment.base_offset, entry.log_start_offset, segment.remote.commit_offset)
    found = segment.base_offset if best is None else best.end_offset
    end_offset = max(found, floor) if segment.end_offset is None else segment.end_offset
    known = (
        end_offset
        if segment.end_offset is not None
        else max([end_offset, *(max(vote.high_watermark, vote.seen_offset) for vote in handed.votes)])
    )
    gap = max(found, segment.remote.commit_offset)  # what is in the object store is not lost
    given_up = handed.given_up
    if reason is not None:
        given_up = _noted(given_up, GivenUp(gap, max(gap, known), reason))
    elif gap < end_offset:
        given_up = _noted(given_up, GivenUp(gap, end_offset, GapReason.UNCONFIRMED))
    holders = [
        vote.node_id
        for vote in handed.votes
        if best is not None and vote.end_offset == found and tx.state.is_alive(vote.node_id)
    ]
    faulty = {doubt.node_id for doubt in handed.doubts if doubt.is_faulty}
    holders = [node for node in holders if node not in faulty] or holders
    source = None if best is None else best.node_id
    successor = None
    if segment.state is SegmentState.ACTIVE:
        successor = plan_successor(tx, segment, end_offset, holders)
        source = successor.leader if successor.leader in holders else source
    handover = replace(handed, prepared=None, source=source, given_up=given_up, is_roll_asked=False)
    ended = replace(segment, state=SegmentState.SEALING, end_offset=end_offset, handover=handover)
    tx.replace_segment(segment, ended)
    if successor is not None:
        tx.open_segment(successor)
    return ended


def _noted(given_up: tuple[GivenUp, ...], more: GivenUp) -> tuple[GivenUp, ...]:
    """One entry per reason, as wide as all of its kind."""
    same = [entry for entry in (*given_up, more) if entry.reason is more.reason]
    widest = GivenUp(min(entry.base_offset for entry in same), max(entry.end_offset for entry in same), more.reason)
    return (*(entry for entry in given_up if entry.reason is not more.reason), widest)


def plan_successor(tx: TableTransaction, segment: Segment, end_offset: int, holders: Sequence[int] = ()) -> Segment:
    """The segment after an ACTIVE one that ends there, as it was prepared, or chosen now: when nothing was, when the
    leader that was chosen is not alive, or is none of `holders`. Raises Unavailable when no node is alive."""
    holders = holders or _others_than_faulty(tx, segment)
    chosen = segment.handed.prepared
    if chosen is None or not _may_lead(tx, chosen.leader) or (holders and chosen.leader not in holders):
        chosen = choose_next(tx, segment, holders)
    replicas = tuple(node for node in chosen.replicas if not tx.state.is_retired(node))  # since it was prepared
    left_out = _left_out(segment)
    in_sync = {node for node in replicas if tx.state.is_working(node) and node not in left_out} | {chosen.leader}
    isr = tuple(node for node in replicas if node in in_sync)
    key = SegmentKey(segment.key.topic_id, segment.key.shard, segment.epoch + 1, end_offset)
    return Segment(key, SegmentState.ACTIVE, chosen.leader, replicas, isr, 0, tx.now_ms, policy=chosen.policy)


def _others_than_faulty(tx: TableTransaction, segment: Segment) -> Sequence[int]:
    """The nodes that can continue after a Direct segment whose leader doubts its own copy. None: place it as usual."""
    faulty = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_faulty}
    if not segment.is_direct or not faulty:
        return ()
    return [node for node in sorted(tx.state.nodes) if node not in faulty and _may_lead(tx, node)]


def _may_lead(tx: TableTransaction, node_id: int) -> bool:
    return tx.state.is_host(node_id) and tx.state.is_working(node_id)


def _left_out(segment: Segment) -> set[int]:
    """Whose promise a recovery did not wait for: acknowledgements in the next segment do not wait for them either."""
    voters = {vote.node_id for vote in segment.handed.votes}
    silent = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_faulty} - voters
    return silent if segment.is_fenced else set()


def choose_next(tx: TableTransaction, segment: Segment, holders: Sequence[int] = ()) -> NextReplicas:
    """Leader and replicas for the segment after an ACTIVE one. Raises Unavailable when no node is alive."""
    topic, state = _topic(tx, segment), tx.state
    factor, policy = next_copies(topic), next_policy(topic.settings)
    hosts = state.hosts(factor)
    return place_next(segment, factor, hosts, state.load, state.led, holders, state.scarcities(), policy)


def _topic(tx: TableTransaction, segment: Segment) -> Topic:
    return tx.state.topic(segment.key.topic_id)
