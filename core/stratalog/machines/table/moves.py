"""Transitions of the shard table that change which nodes shall have a copy of a segment: `copy_repair` plans them. A
further replica does no harm. A replica is released only if its data are not needed: for a sealed segment, if as many
other nodes as the topic has replicas are alive and have proved their copies, or if the node is retired and has none;
for an active one, if it is neither in sync nor doubted. A node that is only away, and has reported no copy, may still
have one: it may have gone before its report came. A move that does not hold any more is skipped: the next plan sees
why.
Pure functions of one transaction.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.copies.wanted_copies import wanted_copies
from stratalog.machines.reading.bucket_reads import is_served_from_bucket
from stratalog.machines.table.segments import without_copies
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableTransaction, kept
from stratalog.model.commands.table_commands import MoveReplicas, ReplicaMove
from stratalog.model.metadata import Life
from stratalog.model.segment import Segment, SegmentState


def move_replicas(tx: TableTransaction, command: MoveReplicas) -> Steps[None]:
    for number, move in enumerate(command.moves, 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        segment = tx.state.find_segment(move.segment)
        if segment is None or segment.replicas != move.replicas:
            continue
        if segment.state is SegmentState.SEALED and _is_kept_by_copies(tx, segment):
            _move_sealed(tx, segment, move)
        elif segment.state is not SegmentState.ACTIVE or segment.is_direct:
            continue
        elif _is_led(tx, segment) and _is_same_life(tx, move.leader):
            _move_active(tx, segment, move)


def _is_kept_by_copies(tx: TableTransaction, segment: Segment) -> bool:
    may_read = tx.state.reads_bucket(tx.state.topic(segment.key.topic_id))
    return not is_served_from_bucket(segment, may_read_bucket=may_read)


def _is_led(tx: TableTransaction, segment: Segment) -> bool:
    """By one that lives: of what is taken from its leader the replicas decide, and these stay."""
    return segment.leader is not None and not segment.is_fenced and tx.state.is_alive(segment.leader)


def _is_same_life(tx: TableTransaction, planned: Life | None) -> bool:
    node = None if planned is None else tx.state.nodes.get(planned.node_id)
    return planned is None or (node is not None and node.life == planned)


def _added(tx: TableTransaction, segment: Segment, move: ReplicaMove) -> tuple[int, ...]:
    return tuple(
        node_id
        for node_id in dict.fromkeys(move.added)
        if node_id not in segment.replicas and tx.state.is_alive(node_id)
    )


def _move_sealed(tx: TableTransaction, segment: Segment, move: ReplicaMove) -> None:
    assert segment.seal is not None
    wanted = wanted_copies(tx.state.topic(segment.key.topic_id), segment)
    replicas, holders = segment.replicas, segment.local_nodes
    for node_id in move.dropped:
        others = tuple(node for node in holders if node != node_id)
        is_enough = sum(map(tx.state.is_alive, others)) >= wanted
        # Of one that is retired the directory may be read still: only one that never told of a copy has none for sure.
        has_none = node_id not in holders and tx.state.is_retired(node_id)
        is_needed = node_id in segment.seal.replicas or not (is_enough or has_none)
        if not is_needed:
            replicas, holders = tuple(node for node in replicas if node != node_id), others
    # A node that is released before its report came frees its copy as well: that report is outdated, too.
    left = segment if replicas == segment.replicas else without_copies(segment, holders)
    added = _added(tx, segment, move)
    if added or replicas != segment.replicas:
        tx.replace_segment(segment, replace(_without_reports(left, added), replicas=(*replicas, *added)))


def _without_reports(segment: Segment, added: tuple[int, ...]) -> Segment:
    """A node whose copy differed makes it again: reports about the former copy do not count any more."""
    reports = tuple(report for report in segment.handed.reports if report.node_id not in added)
    if len(reports) == len(segment.handed.reports):
        return segment
    return replace(segment, handover=kept(replace(segment.handed, reports=reports)))


def _move_active(tx: TableTransaction, segment: Segment, move: ReplicaMove) -> None:
    topic = tx.state.topic(segment.key.topic_id)
    needed = {*segment.isr, *(doubt.node_id for doubt in segment.handed.doubts)}
    added = _added(tx, segment, move)
    if is_quorum(topic.settings):
        # The leader may count with the replicas of the record before: one more than it knows of, never two, so that
        # every majority that it takes for one meets every majority of these.
        is_known = {*segment.replicas} == {*segment.isr}
        replicas = (*segment.replicas, *added[:1]) if is_known else segment.replicas
    else:
        left = tuple(node for node in segment.replicas if node not in move.dropped or node in needed)
        replicas = (*left, *added)
    if replicas != segment.replicas:
        # A released node may be listed again, in the same life, with another copy: its leader sees a newer version.
        version = segment.isr_version + (not set(segment.replicas) <= set(replicas))
        tx.replace_segment(segment, replace(segment, replicas=replicas, isr_version=version))
