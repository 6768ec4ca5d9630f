"""Transitions of the shard table in the life of one segment: roll, seal, ISR, fence, local copies, purge.

Pure functions of one transaction. Source: docs/design.md section 3, rules 1, 2, 5, 7 and 10; docs/meta.md has a table.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.table_bounds import INT64_MAX, check_segments_named, is_seal_in_bounds
from stratalog.machines.table_state import RECORDS_PER_STEP, Steps, TableTransaction, describe_segment
from stratalog.model.commands import (
    ForgetLocal,
    ProposeIsr,
    PurgeSegments,
    RaiseFence,
    RollSegment,
    SealSegment,
)
from stratalog.model.errors import Conflict, Fenced, InvalidRequest
from stratalog.model.ids import MAX_OFFSET, SegmentKey
from stratalog.model.segment import RemoteState, SealRecord, Segment, SegmentState


def roll_segment(tx: TableTransaction, command: RollSegment) -> Segment:
    """ACTIVE -> SEALING at an end offset, and the next segment opens there (rule 1).

    The leader goes on as leader: it opened the next file itself and appends there before this is confirmed.
    """
    segment = tx.state.segment(command.segment)
    end_offset = command.end_offset
    _refuse_below_fence(segment, command.fence, "roll")
    if segment.state is not SegmentState.ACTIVE:
        return _rolled_before(tx, segment, end_offset)
    if not segment.base_offset <= end_offset <= MAX_OFFSET:
        raise InvalidRequest(
            f"{describe_segment(segment.key)} cannot end at {end_offset}: that is below its base or no offset at all"
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
    next_isr = tuple(node for node in segment.replicas if node in segment.isr)
    opened = Segment(
        SegmentKey(segment.key.topic_id, segment.key.shard, segment.epoch + 1, end_offset),
        SegmentState.ACTIVE,
        segment.leader,
        segment.replicas,
        next_isr,
        0,
        tx.now_ms,
    )
    tx.replace_segment(segment, replace(segment, state=SegmentState.SEALING, end_offset=end_offset))
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


def seal_segment(tx: TableTransaction, command: SealSegment) -> Steps[Segment]:
    """SEALING -> SEALED, once (rule 10); and on to DELETED when the log start passed its end before it ended."""
    segment = tx.state.segment(command.segment)
    record = command.record
    if segment.seal is not None:
        if segment.seal == record:
            return segment
        raise Conflict(
            f"{describe_segment(segment.key)} was sealed before with another record (end {segment.seal.end_offset}, "
            "digest "
            f"{segment.seal.digest.hex()}, now {record.end_offset}, {record.digest.hex()}): this copy differs from the "
            "sealed one, verify it"
        )
    if segment.state is not SegmentState.SEALING:
        raise Conflict(
            f"{describe_segment(segment.key)} is {segment.state.name}, only a SEALING one is sealed: roll first"
        )
    _check_seal(segment, record)
    sealed = replace(
        segment, state=SegmentState.SEALED, leader=None, seal=record, local_nodes=tuple(sorted(record.replicas))
    )
    tx.put_seal(segment, sealed)
    yield from tx.delete_below_log_start(segment.key.shard_key, also_unsealed=False)
    return tx.state.segment(segment.key)


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
    if not record.replicas or not set(record.replicas) <= set(segment.replicas):
        raise InvalidRequest(
            f"the seal record of {describe_segment(segment.key)} names replicas {record.replicas}, the segment has "
            f"{segment.replicas}: at least one of them, and no other, proves the digest"
        )


def propose_isr(tx: TableTransaction, command: ProposeIsr) -> Segment:
    """Shrink or grow the ISR by compare-and-set under version and epoch (rule 5)."""
    segment = _led_segment(tx, command.segment, "change the ISR of")
    _refuse_below_fence(segment, command.fence, "change the ISR of")
    if command.expected_version != segment.isr_version:
        raise Conflict(
            f"the ISR of {describe_segment(segment.key)} is at version {segment.isr_version}, not "
            f"{command.expected_version}: read it again, then decide"
        )
    isr = command.isr
    if len(set(isr)) != len(isr) or not set(isr) <= set(segment.replicas) or segment.leader not in isr:
        raise InvalidRequest(
            f"ISR {isr} of {describe_segment(segment.key)} must hold the leader {segment.leader} and, each once, "
            "members "
            f"of {segment.replicas}"
        )
    changed = replace(segment, isr=isr, isr_version=segment.isr_version + 1)
    tx.replace_segment(segment, changed)
    return changed


def raise_fence(tx: TableTransaction, command: RaiseFence) -> Segment:
    """Void the appends of leaders below `fence` (rule 7). Monotone; the same fence again changes nothing."""
    segment = _led_segment(tx, command.segment, "fence")
    if command.fence > INT64_MAX:
        raise InvalidRequest(f"a fence of {describe_segment(segment.key)} is at most {INT64_MAX}")
    if command.fence < segment.fence:
        raise Fenced(
            f"the fence of {describe_segment(segment.key)} is at {segment.fence} already, above {command.fence}: "
            "another "
            "recovery goes on, this one must stop"
        )
    if command.fence == segment.fence:
        return segment
    fenced = replace(segment, fence=command.fence)
    tx.replace_segment(segment, fenced)
    return fenced


def _refuse_below_fence(segment: Segment, fence: int, deed: str) -> None:
    """A recovery has begun: what an earlier leader asks may rest on what it will not have been (rule 7)."""
    if fence < segment.fence:
        raise Fenced(
            f"cannot {deed} {describe_segment(segment.key)} under fence {fence}: its fence is at {segment.fence}, a "
            "recovery seals it; stop writing and read the shard's metadata again"
        )


def _led_segment(tx: TableTransaction, key: SegmentKey, deed: str) -> Segment:
    segment = tx.state.segment(key)
    if segment.state not in (SegmentState.ACTIVE, SegmentState.SEALING):
        raise Fenced(f"cannot {deed} {describe_segment(key)}: it is {segment.state.name} and has no leader any more")
    return segment


def forget_local(tx: TableTransaction, command: ForgetLocal) -> Steps[None]:
    """A node is about to free local copies: refused unless another readable copy stays, or none is wanted (F37)."""
    check_segments_named(command.segments)
    segments = [tx.state.segment(key) for key in command.segments]
    for segment in segments:
        if segment.state is not SegmentState.DELETED and segment.remote.state is not RemoteState.COMPLETE:
            raise Conflict(
                f"{describe_segment(segment.key)} is {segment.state.name} and {segment.remote.state.name} in the "
                "object "
                f"store: node {command.node_id} must keep its copy until the remote one is COMPLETE"
            )
    for number, segment in enumerate({segment.key: segment for segment in segments}.values(), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        if command.node_id in segment.local_nodes:
            others = tuple(node for node in segment.local_nodes if node != command.node_id)
            tx.replace_segment(segment, replace(segment, local_nodes=others))


def purge_segments(tx: TableTransaction, command: PurgeSegments) -> Steps[None]:
    """Forget DELETED segments whose files and objects are gone. One purged before is passed over."""
    check_segments_named(command.segments)
    for number, key in enumerate(dict.fromkeys(command.segments), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        segment = tx.state.find_segment(key)
        if segment is None:
            continue
        if segment.state is not SegmentState.DELETED:
            raise Conflict(f"{describe_segment(key)} is {segment.state.name}: only DELETED segments are purged")
        tx.purge_segment(segment)
