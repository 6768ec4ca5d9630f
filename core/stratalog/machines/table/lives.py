"""Effects of the beginning and the end of a node's life, or its disk's, on the segments that it shares with others. A
registration voids the promises of the life before, and marks tails that may be cut as doubted: all tails, if the
directory is a copy or an older state of the previous life's directory. The node loses the leadership that it had: a
restarted leader of several replicas never continues. The end of a lease takes leadership, too, and advances recoveries
that waited for the node or copied from it. A segment with this node as its only replica continues as on a single node:
its record only says that the log may have a break at its end, so that readers learn of it.

Pure functions of one transaction. Cost: O(segments that several nodes have a say in, ACTIVE or SEALING), in steps; of
all shards when a tail may be cut.
Source: docs/replication.md sections 2 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import Final

from stratalog.machines.copies.recovery_patience import waits_for_promises
from stratalog.machines.copies.recovery_rule import (
    Decided,
    decide,
    has_a_say,
    is_quorum,
    least_in_sync,
    majority,
    owed_by_source,
)
from stratalog.machines.table.bounds import check_segments_named
from stratalog.machines.table.recovery import decide_recovery, end_at_longest, taken_from_leader
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableTransaction, kept
from stratalog.model.commands.table_commands import ContinueWithout, ReportFaultyCopies
from stratalog.model.errors import InvalidRequest
from stratalog.model.metadata import Life
from stratalog.model.segment import Doubt, GapReason, GivenUp, Segment, SegmentState
from stratalog.model.topic import Topic

FLUSH_POLICY: Final = "flush.policy"
FSYNC: Final = "fsync"


def begin_life(
    tx: TableTransaction,
    node_id: int,
    *,
    is_disk_new: bool,
    is_continued: bool,
    is_tail_kept: bool,
    is_flushed_by_default: bool,
) -> Steps[None]:
    """A node that was known has registered again; its entry says so already.

    `is_continued`: its directory is the one in which the life before ran; else nothing that life confirmed need be
    there. `is_tail_kept`: it stopped in order, or its machine still runs. Else only what was flushed before it was
    confirmed is whole.
    """
    for number, segment in enumerate(_shared_with(tx, node_id), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        topic = tx.state.topic(segment.key.topic_id)
        is_flushed = _is_flushed(topic, segment, is_flushed_by_default)
        was_faulty = any(doubt.node_id == node_id and doubt.is_faulty for doubt in segment.handed.doubts)
        is_doubted = not is_continued or was_faulty or not (is_tail_kept or is_flushed)
        is_disk_other = is_disk_new or not is_continued
        changed = _without_its_vote(segment, node_id, is_disk_other=is_disk_other, is_source_kept=not is_doubted)
        if is_doubted:
            changed = _doubted(changed, node_id, is_lost=is_disk_new, by_quorum=is_quorum(topic.settings))
        if changed.leader == node_id:
            changed = taken_from_leader(changed)
        _put(tx, segment, changed)
    if not is_continued or not is_tail_kept:
        yield from _note_breaks(tx, node_id, is_continued=is_continued, is_flushed_by_default=is_flushed_by_default)


def _note_breaks(tx: TableTransaction, node_id: int, *, is_continued: bool, is_flushed_by_default: bool) -> Steps[None]:
    """If the node was the only replica, no other node has the tail that readers saw, and it gives these offsets again,
    in a later epoch. The end of the segment is known once it is rolled (`machines.table.rolls`)."""
    for number, key in enumerate(sorted(tx.state.shards), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        entry = tx.state.shard(key)
        segment = entry.segments[entry.next_epoch - 1]
        if segment.state is not SegmentState.ACTIVE or segment.replicas != (node_id,) or segment.is_shared:
            continue
        is_flushed = _is_flushed(tx.state.topic(key.topic_id), segment, is_flushed_by_default)
        if segment.handed.given_up or (is_flushed and is_continued):
            continue
        known = max(segment.base_offset, segment.remote.commit_offset)
        doubt = GivenUp(known, known, GapReason.RESTARTED)
        tx.replace_segment(segment, replace(segment, handover=replace(segment.handed, given_up=(doubt,))))


def _is_flushed(topic: Topic, segment: Segment, is_flushed_by_default: bool) -> bool:
    """Whether all of it that was confirmed was flushed before."""
    own = topic.settings.get(FLUSH_POLICY)
    is_flushed = is_flushed_by_default if own is None else own == FSYNC
    is_of_since = not topic.unflushed_until_ms or segment.opened_ms > topic.unflushed_until_ms
    return is_flushed and is_of_since


def end_life(tx: TableTransaction, node_id: int, quiet: Set[int] = frozenset()) -> Steps[None]:
    """Its lease is over; its entry says so already. It may well be alive: the fence decides, not the clock. `quiet`:
    nodes that may have failed with it."""
    for number, segment in enumerate(_shared_with(tx, node_id), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        is_led = segment.leader == node_id
        _put(tx, segment, taken_from_leader(segment) if is_led else _without_lost(tx, segment, node_id, quiet))


def _without_lost(tx: TableTransaction, segment: Segment, node_id: int, quiet: Set[int]) -> Segment:
    """It leaves the ISR, which saves its leader a proposal. Fewer than two that are surely alive are not left there,
    nor fewer than acks=all requires: if several nodes fail together, the leader may be one of them, and not known to
    be. Then all that have its batches keep their say: after a power cut it may be that only this one's disk has the
    last of them. A leader that is alive proposes such an ISR itself."""
    leader = segment.leader
    if segment.state is not SegmentState.ACTIVE or leader is None or node_id not in segment.isr:
        return segment
    isr = tuple(node for node in segment.isr if node != node_id)
    topic = tx.state.topic(segment.key.topic_id)
    least = least_in_sync(topic.settings, 1 if topic.is_internal else tx.state.min_in_sync)
    living = {node for node in isr if tx.state.is_alive(node) and node not in quiet}
    if leader not in living or len(living) < max(2, least):
        return segment
    return replace(segment, isr=isr, isr_version=segment.isr_version + 1)


def resume_life(tx: TableTransaction, node_id: int) -> Steps[None]:
    """It is heard of again in the same life: what it promised counts again."""
    for number, segment in enumerate(_shared_with(tx, node_id), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        _put(tx, segment, segment)


def hand_over(tx: TableTransaction, node_id: int) -> Steps[None]:
    """Its disk makes no progress; its entry says so already. Other nodes take over its active segments, if they can
    continue without its vote, and seals of ended segments do not wait for it. It keeps segments that only it has."""
    for number, segment in enumerate(_shared_with(tx, node_id), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        if segment.state is SegmentState.ACTIVE and segment.leader == node_id and _can_do_without(tx, segment, node_id):
            _put(tx, segment, taken_from_leader(segment))


def _can_do_without(tx: TableTransaction, segment: Segment, node_id: int) -> bool:
    """Whether replicas with working disks can continue: as many of the ISR as acks=all requires, or a majority. With
    fewer, no batch would be taken, so nothing would be gained; a leader whose flushes hang may still take batches."""
    if segment.is_direct:  # the object store has all that it acknowledged
        return any(node != node_id and tx.state.is_host(node) and tx.state.is_working(node) for node in tx.state.nodes)
    doubted = {doubt.node_id for doubt in segment.handed.doubts}
    topic = tx.state.topic(segment.key.topic_id)
    by_quorum = is_quorum(topic.settings)
    able = [
        node
        for node in (segment.replicas if by_quorum else segment.isr)
        if node != node_id and node not in doubted and tx.state.is_working(node)
    ]
    least = least_in_sync(topic.settings, 1 if topic.is_internal else tx.state.min_in_sync)
    return len(able) >= (majority(segment) if by_quorum else max(1, least))


def report_faulty_copies(tx: TableTransaction, command: ReportFaultyCopies) -> Steps[None]:
    """A node reports unsealed copies that it doubts. Segments that other nodes have continue without it: with the rest
    of the ISR, or with nodes that have proven the ended segment."""
    check_segments_named(command.segments)
    if command.caller is None:
        raise InvalidRequest("faulty copies must name the life of the node that has them")
    node_id = command.caller.node_id
    for number, key in enumerate(dict.fromkeys(command.segments), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        segment = tx.state.find_segment(key)
        if segment is None or segment.state not in (SegmentState.ACTIVE, SegmentState.SEALING):
            continue
        others = {*segment.isr, *_provers(segment)} - {node_id}
        is_needed = not _can_do_without(tx, segment, node_id) if segment.is_direct else not others
        if node_id not in segment.replicas or is_needed:
            continue
        _put(tx, segment, _without_faulty(tx, segment, node_id))


def continue_without(tx: TableTransaction, command: ContinueWithout) -> Steps[None]:
    """Leave out replicas that do not promise, where the end is certain without them: it is what the policy asks for.
    Such a replica leaves the ISR, so that neither the seal nor the next segment waits for it. Once its disk works, it
    cuts its copy at the end, copies what it lacks and reports, as any replica that was away.

    Where it is not certain, all that had a say must have answered. A silent replica that had none is then like one that
    is not alive: it need not have anything that was acknowledged."""
    for number, one in enumerate(command.silent, 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        segment = tx.state.find_segment(one.segment)
        if segment is None or not waits_for_promises(segment):
            continue
        by_quorum = is_quorum(tx.state.topic(segment.key.topic_id).settings)
        without, bystanders = segment, set[int]()
        for life in one.lives:
            if not _is_silent(tx, segment, life):
                continue
            if has_a_say(segment, life.node_id, by_quorum=by_quorum):
                without = _without_faulty(tx, without, life.node_id)
            else:
                bystanders.add(life.node_id)
        decision = decide(without, by_quorum=by_quorum, is_alive=_alive_except(tx, bystanders))
        if not isinstance(decision, Decided):
            continue
        if not decision.is_certain:
            end_at_longest(tx, segment, decision.best)
        elif without is not segment:
            _put(tx, segment, without)


def _alive_except(tx: TableTransaction, left_out: Set[int]) -> Callable[[int], bool]:
    return lambda node_id: node_id not in left_out and tx.state.is_alive(node_id)


def _is_silent(tx: TableTransaction, segment: Segment, life: Life) -> bool:
    """Whether this life, which is the present one and alive, has not promised, while others in the ISR may have."""
    known = tx.state.nodes.get(life.node_id)
    if known is None or known.life != life or not known.is_alive or life.node_id not in segment.replicas:
        return False
    has_promised = any(vote.node_id == life.node_id and vote.life == life.epoch for vote in segment.handed.votes)
    return not has_promised and any(node_id != life.node_id for node_id in segment.isr)


def _without_faulty(tx: TableTransaction, segment: Segment, node_id: int) -> Segment:
    if any(doubt.node_id == node_id and doubt.is_faulty for doubt in segment.handed.doubts):
        return segment
    by_quorum = is_quorum(tx.state.topic(segment.key.topic_id).settings)
    handed = segment.handed
    reports = tuple(report for report in handed.reports if report.node_id != node_id)  # it may have said so before
    if reports != handed.reports:
        segment = replace(segment, handover=kept(replace(handed, reports=reports)))
    if segment.isr == (node_id,):
        provers = _provers(segment)
        doubts = tuple(doubt for doubt in segment.handed.doubts if doubt.node_id not in provers)
        segment = replace(segment, isr=(*provers, node_id), handover=replace(segment.handed, doubts=doubts))
    changed = _doubted(segment, node_id, is_faulty=True, by_quorum=by_quorum)
    if changed.handed.source == node_id:
        changed = replace(changed, handover=kept(replace(changed.handed, source=None)))
    return taken_from_leader(changed) if changed.leader == node_id else changed


def _provers(segment: Segment) -> tuple[int, ...]:
    """The nodes that have reported a whole copy of an unsealed segment; a node whose copy differed is not a replica any
    more."""
    return tuple(report.node_id for report in segment.handed.reports if report.node_id in segment.replicas)


def _put(tx: TableTransaction, segment: Segment, changed: Segment) -> None:
    if changed is not segment:
        tx.replace_segment(segment, changed)
    decide_recovery(tx, changed)


def _shared_with(tx: TableTransaction, node_id: int) -> Iterator[Segment]:
    """In an order that does not depend on what was undone before."""
    for key in sorted(tx.state.unsettled):
        segment = tx.state.segment(key)
        if node_id in segment.replicas:
            yield segment


def _without_its_vote(segment: Segment, node_id: int, *, is_disk_other: bool, is_source_kept: bool) -> Segment:
    """Its promise was the life's before; its report is of what was flushed, and goes with the disk alone. A copy of the
    disk, or an older state of it, may have less. A source that kept its tail still has what readers were served."""
    handed = segment.handed
    votes = tuple(vote for vote in handed.votes if vote.node_id != node_id)
    reports = tuple(report for report in handed.reports if not is_disk_other or report.node_id != node_id)
    is_source_gone = handed.source == node_id and not (is_source_kept and owed_by_source(segment) is not None)
    source = None if is_source_gone else handed.source
    if (len(votes), len(reports), source) == (len(handed.votes), len(handed.reports), handed.source):
        return segment
    return replace(segment, handover=kept(replace(handed, votes=votes, reports=reports, source=source)))


def _doubted(
    segment: Segment, node_id: int, *, is_lost: bool = False, is_faulty: bool = False, by_quorum: bool
) -> Segment:
    """It leaves the ISR unless it is the last there, and is remembered as one whose tail may be needed.

    The version grows in any case: a proposal to take it in, which rests on what it had before, must not be taken.
    """
    doubts = segment.handed.doubts
    known = next((doubt for doubt in doubts if doubt.node_id == node_id), None)
    others = tuple(node for node in segment.isr if node != node_id)
    is_voter = by_quorum or known is not None or node_id in segment.isr
    if is_voter:
        doubt = Doubt(node_id, is_lost or (known is not None and known.is_lost), is_faulty)
        doubts = (*(entry for entry in doubts if entry.node_id != node_id), doubt)
    return replace(
        segment,
        isr=others or segment.isr,
        isr_version=segment.isr_version + 1,
        handover=replace(segment.handed, doubts=doubts) if doubts else segment.handover,
    )
