"""Transitions of the shard table that seal a segment, once (rule 10).

A segment's only replica brings the record. Several replicas each report their copy, and the service compares: the
record is written when all living members of the ISR, with disks that make progress, have reported. If a majority
acknowledges: when all such undoubted replicas have reported, and at least a majority, or all that do not doubt their
copy and do not leave while they are away. Each replica that has reported holds everything below the end, so
acknowledged data do not depend on the ones that are waited for: waiting is for copies, comparing is for the truth. A
copy that differs is dropped from the replicas, named in the record (`handed.reports`), and never served. When two
halves differ, the leader's or the source's copy counts; without either the truth is unknown, and nothing is sealed.

Pure functions of one transaction.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.copies.leaving import reports_needed
from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.reading.bucket_reads import is_served_from_bucket
from stratalog.machines.table.bounds import is_seal_in_bounds
from stratalog.machines.table.recovery import decide_recovery, taken_from_leader
from stratalog.machines.table.state import Steps, TableTransaction, describe_segment, kept
from stratalog.model.commands.table_commands import ReportReplica, SealSegment
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.model.segment import Handover, ReplicaReport, SealRecord, Segment, SegmentState


def seal_segment(tx: TableTransaction, command: SealSegment) -> Steps[Segment]:
    """SEALING -> SEALED, once (rule 10); and on to DELETED when the log start passed its end before it ended."""
    segment = tx.state.segment(command.segment)
    record = command.record
    if segment.seal is not None:
        if segment.seal == record:
            return segment
        raise _differs(segment, segment.seal, record)
    if segment.state is not SegmentState.SEALING:
        raise Conflict(
            f"{describe_segment(segment.key)} is {segment.state.name}, only a SEALING one is sealed: roll first"
        )
    if len(segment.replicas) > 1:
        raise Conflict(
            f"{describe_segment(segment.key)} has the replicas {segment.replicas}: each of them reports its copy, and "
            "the service seals it"
        )
    _check_seal(segment, record)
    if not record.replicas or not set(record.replicas) <= set(segment.replicas):
        raise InvalidRequest(
            f"the seal record of {describe_segment(segment.key)} names replicas {record.replicas}, the segment has "
            f"{segment.replicas}: at least one of them, and no other, proves the digest"
        )
    return (yield from _seal(tx, segment, record))


def report_replica(tx: TableTransaction, command: ReportReplica) -> Steps[Segment]:
    """Note what a replica has; seal when enough is known."""
    segment = tx.state.segment(command.segment)
    caller, proof = command.caller, command.proof
    where = describe_segment(segment.key)
    if caller is None:
        raise InvalidRequest(f"a report on {where} must name the life of the node whose copy it is")
    if segment.state is SegmentState.DELETED:
        return segment
    if segment.seal is not None:
        return _joined(tx, segment, segment.seal, caller.node_id, command)
    if segment.state is not SegmentState.SEALING:
        raise Conflict(f"{where} is {segment.state.name}: a copy is compared once it has ended, roll first")
    if caller.node_id not in segment.replicas:
        raise Conflict(
            f"node {caller.node_id} is not a replica of {where}, its replicas are {segment.replicas}: its copy "
            f"differed, "
            "or was never asked for; serve nothing of it"
        )
    _check_seal(segment, proof)
    is_faulty = any(doubt.is_faulty and doubt.node_id == caller.node_id for doubt in segment.handed.doubts)
    if is_faulty and 0 <= command.isr_version < segment.isr_version:
        return segment  # said before it was known to be faulty
    report = ReplicaReport(caller.node_id, proof.size_bytes, proof.digest)
    if report not in segment.handed.reports:
        others = (known for known in segment.handed.reports if known.node_id != caller.node_id)
        reports = tuple(sorted((*others, report), key=lambda one: one.node_id))  # whoever came first
        reported = replace(segment, handover=replace(segment.handed, reports=reports))
        tx.replace_segment(segment, reported)
        segment = decide_recovery(tx, reported)
    return (yield from _compare(tx, segment, proof))


def _compare(tx: TableTransaction, segment: Segment, proof: SealRecord) -> Steps[Segment]:
    reports = segment.handed.reports
    reported = {report.node_id for report in reports}
    if is_quorum(tx.state.topic(segment.key.topic_id).settings):
        doubted = {doubt.node_id for doubt in segment.handed.doubts}
        wanted = tuple(node for node in segment.replicas if node not in doubted)
        least = reports_needed(segment, tx.state.is_dead_and_leaving)
    else:
        wanted, least = segment.isr, 1
    if len(reported) < least or any(node not in reported and tx.state.is_working(node) for node in wanted):
        return segment
    if segment.is_fenced and segment.handed.source is None:
        return segment
    true = _true_of(segment)
    if true is None:
        return segment
    provers = tuple(node for node in segment.replicas if _of(reports, node) == true)
    wrong = tuple(report for report in reports if report.node_id not in provers)
    if wrong:
        dropped = _dropped(segment, {report.node_id for report in wrong}, provers)
        tx.replace_segment(segment, dropped)
        segment = dropped
    if (proof.size_bytes, proof.digest) != true:
        return segment  # one of those who proved it reports again, and brings the rest of the record
    record = replace(proof, replicas=provers, sealed_ms=tx.now_ms)
    return (yield from _seal(tx, segment, record))


def _dropped(segment: Segment, wrong: set[int], provers: tuple[int, ...]) -> Segment:
    """The segment without the replicas that differ; their reports stay. One that led it, or was its source, gives way
    to one that is right."""
    handed = segment.handed
    first = handed.source if segment.is_fenced else segment.leader
    dropped = replace(
        segment,
        replicas=tuple(node for node in segment.replicas if node not in wrong),
        isr=tuple(node for node in segment.isr if node not in wrong) or provers,
        isr_version=segment.isr_version + 1,
        handover=replace(
            handed,
            doubts=tuple(doubt for doubt in handed.doubts if doubt.node_id not in wrong),
            votes=tuple(vote for vote in handed.votes if vote.node_id not in wrong),
            source=provers[0] if first in wrong else handed.source,
        ),
    )
    return taken_from_leader(dropped) if first in wrong else dropped


def _of(reports: tuple[ReplicaReport, ...], node_id: int) -> tuple[int, bytes] | None:
    return next(((report.size_bytes, report.digest) for report in reports if report.node_id == node_id), None)


def _true_of(segment: Segment) -> tuple[int, bytes] | None:
    """What most of them say; if two halves differ, what the leader or the source says; None if that is unknown."""
    counts: dict[tuple[int, bytes], int] = {}
    for report in segment.handed.reports:
        reported = (report.size_bytes, report.digest)
        counts[reported] = counts.get(reported, 0) + 1
    most = max(counts.values())
    candidates = [reported for reported, count in counts.items() if count == most]
    if len(candidates) == 1:
        return candidates[0]
    first = segment.leader if segment.leader is not None else segment.handed.source
    said_first = None if first is None else _of(segment.handed.reports, first)
    return said_first if said_first in candidates else None


def _seal(tx: TableTransaction, segment: Segment, record: SealRecord) -> Steps[Segment]:
    handed = segment.handed
    wrong = tuple(report for report in handed.reports if report.node_id not in record.replicas)
    rest = kept(Handover(reports=wrong, given_up=handed.given_up))
    sealed = replace(
        segment,
        state=SegmentState.SEALED,
        leader=None,
        seal=record,
        local_nodes=tuple(sorted(record.replicas)),
        handover=rest,
    )
    tx.put_seal(segment, sealed)
    yield from tx.delete_below_log_start(segment.key.shard_key, also_unsealed=False)
    return tx.state.segment(segment.key)


def _joined(tx: TableTransaction, segment: Segment, seal: SealRecord, node_id: int, command: ReportReplica) -> Segment:
    """A further true copy of a sealed segment, unless the copy was given up since this report: a node that has read
    that reports an existing copy again. A segment that is COMPLETE in an object store that readers may use needs no
    more copies, and a copy that was freed since could not be told from a new one: a node that is not listed frees its
    copy.
    """
    proof = command.proof
    if (proof.end_offset, proof.size_bytes, proof.digest) != (seal.end_offset, seal.size_bytes, seal.digest):
        raise _differs(segment, seal, proof)
    if node_id in segment.local_nodes or 0 <= command.isr_version < segment.isr_version:
        return segment
    may_read = tx.state.reads_bucket(tx.state.topic(segment.key.topic_id))
    if is_served_from_bucket(segment, may_read_bucket=may_read):
        return segment
    joined = replace(segment, local_nodes=tuple(sorted((*segment.local_nodes, node_id))))
    tx.replace_segment(segment, joined)
    return joined


def _differs(segment: Segment, seal: SealRecord, other: SealRecord) -> Conflict:
    return Conflict(
        f"{describe_segment(segment.key)} was sealed before with another record (end {seal.end_offset}, "
        "digest "
        f"{seal.digest.hex()}, now {other.end_offset}, {other.digest.hex()}): this copy differs from the "
        "sealed one, verify it"
    )


def _check_seal(segment: Segment, record: SealRecord) -> None:
    named = (record.epoch, record.base_offset, record.end_offset)
    known = (segment.epoch, segment.base_offset, segment.end_offset)
    if named != known:
        raise Conflict(
            f"the seal record of {describe_segment(segment.key)} names (epoch, base, end) {named}, the table {known}: "
            "read the segment again, then seal what it says"
        )
    if not is_seal_in_bounds(record):
        raise InvalidRequest(
            f"the seal record of {describe_segment(segment.key)} lacks a digest, or a number in it is negative or "
            "larger than 64 bits hold"
        )
    if record.size_bytes == 0 and record.end_offset != record.base_offset:
        raise InvalidRequest(
            f"the seal record of {describe_segment(segment.key)} says 0 bytes for offsets that are there"
        )
