"""Transitions of the shard table in the life of one segment: ISR, local copies, purge.

Pure functions of one transaction. Source: docs/design.md section 3, rules 2 and 5; docs/meta.md has a table.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.reading.bucket_reads import is_readable_without_nodes
from stratalog.machines.table.bounds import check_segments_named
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableState, TableTransaction, describe_segment, kept
from stratalog.machines.tiering.upload_duty import keeper_of
from stratalog.model.commands.table_commands import ForgetLocal, ProposeIsr, PurgeSegments, ReportLostCopies
from stratalog.model.counting import nodes_named
from stratalog.model.errors import Conflict, Fenced, InvalidRequest
from stratalog.model.metadata import Life
from stratalog.model.segment import RemoteState, Segment, SegmentState


def propose_isr(tx: TableTransaction, command: ProposeIsr) -> Segment:
    """Shrink or grow the ISR by compare-and-set under version and epoch (rule 5). A replica that its leader takes in
    has caught up with all acknowledged data: it is not doubted any more."""
    segment = tx.state.segment(command.segment)
    check_leader(segment, command.caller, "change the ISR of")
    if segment.leader is None:
        # Not a fence: its leader may have sealed it and continued in the next segment.
        raise Conflict(
            f"cannot change the ISR of {describe_segment(segment.key)}: it is {segment.state.name} and needs none "
            "any more; read it again"
        )
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
    stuck = [
        node for node in isr if node not in segment.isr and tx.state.is_alive(node) and not tx.state.is_working(node)
    ]
    if stuck:
        raise Conflict(
            f"{nodes_named(stuck)} cannot join the ISR of {describe_segment(segment.key)}: the disk there makes no "
            "progress, and acks=all would wait for it; propose it again when its record says `can_write`"
        )
    handover = segment.handover
    if handover is not None:
        doubts = tuple(doubt for doubt in handover.doubts if doubt.node_id not in isr)
        handover = kept(replace(handover, doubts=doubts))
    changed = replace(segment, isr=isr, isr_version=segment.isr_version + 1, handover=handover)
    tx.replace_segment(segment, changed)
    return changed


def check_leader(segment: Segment, caller: Life | None, action: str) -> None:
    """Refuse a node that does not lead the segment. After a fence no node does: a request of an earlier leader may rest
    on state that will not count (rule 7)."""
    if segment.is_fenced:
        raise Fenced(
            f"cannot {action} {describe_segment(segment.key)}: its fence is at {segment.fence}, a recovery seals it; "
            "stop writing and read the shard's metadata again"
        )
    if caller is not None and segment.leader is not None and caller.node_id != segment.leader:
        raise Fenced(
            f"node {caller.node_id} cannot {action} {describe_segment(segment.key)}: node {segment.leader} leads it"
        )


def forget_local(tx: TableTransaction, command: ForgetLocal) -> Steps[None]:
    """A node is about to free local copies: refused unless another readable copy stays, or none is wanted (F37). The
    object store is one only where the topic's readers may use it."""
    check_segments_named(command.segments)
    segments = [tx.state.segment(key) for key in command.segments]
    for segment in segments:
        if segment.state is not SegmentState.DELETED and segment.remote.state is not RemoteState.COMPLETE:
            raise Conflict(
                f"{describe_segment(segment.key)} is {segment.state.name} and {segment.remote.state.name} in the "
                "object "
                f"store: node {command.node_id} must keep its copy until the remote one is COMPLETE"
            )
        if segment.state is not SegmentState.DELETED and _is_last_readable(tx.state, segment, command.node_id):
            raise Conflict(
                f"{describe_segment(segment.key)} is read from local copies alone (remote.read.policy=Disable), and no "
                f"other node that is alive has one: node {command.node_id} must keep its copy"
            )
    for number, segment in enumerate({segment.key: segment for segment in segments}.values(), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        if command.node_id in segment.local_nodes:
            others = tuple(node for node in segment.local_nodes if node != command.node_id)
            tx.replace_segment(segment, without_copies(segment, others))


def _is_last_readable(state: TableState, segment: Segment, node_id: int) -> bool:
    if is_readable_without_nodes(segment, may_read_bucket=state.reads_bucket(state.topic(segment.key.topic_id))):
        return False
    return not any(one != node_id and state.is_alive(one) for one in segment.local_nodes)


def without_copies(segment: Segment, holders: tuple[int, ...]) -> Segment:
    """The segment with no other holders than these. What was said of a copy before is older than this, and its version
    tells (`ReportReplica`)."""
    return replace(segment, local_nodes=holders, isr_version=segment.isr_version + 1)


def report_lost_copies(tx: TableTransaction, command: ReportLostCopies) -> Steps[None]:
    """A node has no copies any more of what it was a holder of. What was purged meanwhile is passed over."""
    check_segments_named(command.segments)
    if command.caller is None:
        raise InvalidRequest("lost copies must name the life of the node that lost them")
    node_id = command.caller.node_id
    for number, key in enumerate(dict.fromkeys(command.segments), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        segment = tx.state.find_segment(key)
        if segment is None or node_id not in segment.local_nodes:
            continue
        others = tuple(node for node in segment.local_nodes if node != node_id)
        is_elsewhere = segment.is_wholly_committed or segment.state is SegmentState.DELETED
        if others or is_elsewhere:
            tx.replace_segment(segment, without_copies(segment, others))


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
        _check_keeper(tx, segment, command.caller)
        tx.purge_segment(segment)


def _check_keeper(tx: TableTransaction, segment: Segment, caller: Life | None) -> None:
    """Fence a node that takes away what is another's to take away."""
    if caller is None or not segment.replicas:
        return
    state = tx.state
    keeper = keeper_of(segment, state.is_alive, state.holder_of, state.is_retired, state.first_living)
    if keeper != caller.node_id:
        named = "no living node" if keeper is None else f"node {keeper}"
        raise Fenced(f"{describe_segment(segment.key)} is purged by {named}, not by node {caller.node_id}: leave it")
