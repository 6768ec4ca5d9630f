"""What of a segment still needs a node that leaves: the one rule that the plan and the table's transaction share.

A segment is *kept* without a node when it is COMPLETE in an object store that its topic's readers may use, empty, or
proven by as many living nodes that stay as its topic has replicas (all of them, where fewer stay). In volume mode what
the node has proven itself is kept, too: its directory stays. What is open is never kept.

Pure. Source: docs/scaling-spec.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stratalog.machines.copies.recovery_rule import Waiting, decide, majority
from stratalog.machines.reading.bucket_reads import is_readable_without_nodes
from stratalog.model.metadata import Node
from stratalog.model.mounts import Mount, MountMode
from stratalog.model.retirement import LostRange, Retirement, RetireMode, RetireStep, UnheldRange
from stratalog.model.segment import GapReason, RemoteState, Segment, SegmentState

HANDOVER_MS: Final = 30_000
"""How long a released node whose data set no other node serves yet holds back the release of the next one."""


class Need(Enum):
    """How a segment stands that lists the node. Closed."""

    NONE = "it is not the node's"
    OPEN = "it is not sealed"
    KEPT = "it is kept without the node"
    THIN = "others that live have it, and they are too few"
    ONLY_HERE = "no other node that is alive and stays has it, and neither has the object store"


def lost_of(segment: Segment) -> LostRange:
    """What of a sealed segment is gone when no node has it: all but what is in the object store."""
    assert segment.end_offset is not None, "it is sealed"
    return LostRange(segment.key, max(segment.base_offset, segment.remote.commit_offset), segment.end_offset)


def unheld_of(segment: Segment, topic: str) -> UnheldRange:
    """The same before a person gave it up, and also for an open segment."""
    return UnheldRange(topic, segment.key, max(segment.base_offset, segment.remote.commit_offset), segment.end_offset)


def is_given_up(retirement: Retirement | None, *, is_alive: bool) -> bool:
    """That node's data do not count any more. A node that is only away may have all of it."""
    return retirement is not None and (retirement.step.is_released or (retirement.is_forced and not is_alive))


def is_between_holders(retirement: Retirement | None, now_ms: int) -> bool:
    """Released a moment ago, and not served by another node yet. One at a time, so that few data are unreadable
    at once. A mount that is stuck for longer holds no other node back, nor does a clock that was set back."""
    if retirement is None or retirement.step not in (RetireStep.RELEASE, RetireStep.MOUNT):
        return False
    return abs(now_ms - retirement.step_since_ms) < HANDOVER_MS


def reports_needed(segment: Segment, is_gone: Callable[[int], bool]) -> int:
    """How many copies must be reported before the service seals a segment whose topic acknowledges by a majority. A
    node that doubts its copy proves nothing in this life, and a dead node that leaves (`is_gone`) may never come back,
    so there may be too few others: each copy that is reported has everything below the end."""
    faulty = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_faulty}
    able = sum(node not in faulty and not is_gone(node) for node in segment.replicas)
    return max(1, min(majority(segment), able))


def missed_for_majority(
    segment: Segment, is_alive: Callable[[int], bool], is_gone: Callable[[int], bool]
) -> frozenset[int]:
    """The nodes that must come back before an open segment of such a topic, which has a leader, can be sealed; none if
    the living nodes are enough."""
    present = {node for node in segment.replicas if is_alive(node)}
    if segment.state is SegmentState.ACTIVE:
        return frozenset({*segment.replicas} - present) if len(present) < majority(segment) else frozenset()
    present |= {report.node_id for report in segment.handed.reports}
    if len(present) >= reports_needed(segment, is_gone):
        return frozenset()
    return frozenset(node for node in segment.replicas if node not in present and not is_gone(node))


@dataclass(frozen=True, slots=True)
class Presence:
    """What is known of the nodes, by their ids."""

    is_alive: Callable[[int], bool]
    is_given_up: Callable[[int], bool]
    """By force, and still away; or it has left."""
    is_gone: Callable[[int], bool]
    """To leave, and not alive."""


def is_led(segment: Segment, presence: Presence) -> bool:
    """Whether a living node ends it, or completes it below its end."""
    leader, source = segment.leader, segment.handed.source
    if leader is not None and presence.is_alive(leader):
        return True
    return source is not None and presence.is_alive(source) and segment.end_offset is not None


def is_waited_for_in_vain(segment: Segment, by_quorum: bool, presence: Presence) -> bool:
    """Whether the end, or the seal, of an open segment depends only on nodes that were given up. Each living replica
    has answered. Replicas that are only away are waited for, in the ISR or not, before the end is known and after it:
    such a replica may have the longest copy, or be the only one with data that others still need."""
    gone = presence.is_given_up
    if is_led(segment, presence):
        if not by_quorum or segment.state is not SegmentState.ACTIVE:
            return False
        missed = missed_for_majority(segment, presence.is_alive, presence.is_gone)
        return bool(missed) and all(map(gone, missed))
    if not all(gone(node) for node in segment.replicas if not presence.is_alive(node)):
        return False
    if not any(map(presence.is_alive, segment.replicas)):
        return True
    if not segment.is_fenced:
        return False
    decision = decide(segment, by_quorum=by_quorum, is_alive=presence.is_alive)
    if not isinstance(decision, Waiting) or not decision.is_hopeless:
        return False
    is_ended = any(gap.reason is GapReason.UNCLEAN for gap in segment.handed.given_up)
    return is_ended or all(map(gone, decision.nodes))


def is_lost_by_force(segment: Segment, node_of: Callable[[int], Node | None], is_read: Callable[[int], bool]) -> bool:
    """Whether all that lay beside a sealed segment's copies is gone, by a person's word: it is not in the object store,
    and everyone who proved a copy was given up. A directory that stays is not, for it may be read a moment later, until
    a person gives it up as well. `is_read`: it can be asked, or its directory is read."""
    if segment.seal is None or segment.remote.state is RemoteState.COMPLETE or not segment.local_nodes:
        return False
    for holder in segment.local_nodes:
        node = node_of(holder)
        record = None if node is None else node.retirement
        if node is None or record is None or not record.is_forced or record.keeps_directory:
            return False
        if is_read(holder) or not is_given_up(record, is_alive=node.is_alive):
            return False
    return True


def is_lost_for_good(segment: Segment, node_of: Callable[[int], Node | None], is_read: Callable[[int], bool]) -> bool:
    """`is_lost_by_force`, and no node can bring it back: until its holders are released, a holder that returns has it.
    A replica that is away and not released may have it too, because it may have gone before it reported its copy."""
    if not is_lost_by_force(segment, node_of, is_read):
        return False
    others = [node for one in segment.replicas if one not in segment.local_nodes and (node := node_of(one)) is not None]
    if any(not node.is_alive and not node.is_retired for node in others):
        return False
    return all((node := node_of(holder)) is not None and node.is_retired for holder in segment.local_nodes)


def are_producers_lost(
    segment: Segment,
    behind: Iterable[Segment],
    node_of: Callable[[int], Node | None],
    is_read: Callable[[int], bool],
) -> bool:
    """Whether a shard continues without the table of producers at the end of a sealed segment, so that batches which
    those producers repeat count as new. It does once the table is lost for good. Before that, it does only if nothing
    else can release the nodes that might bring the table back: a person gave all of them up, and a segment `behind` it,
    which has a given-up node as a replica, cannot be sealed without the table. That node need not be one of them: the
    segments of two shards may each keep the node that the other one waits for."""
    if not is_lost_by_force(segment, node_of, is_read):
        return False
    if is_lost_for_good(segment, node_of, is_read):
        return True
    known = map(node_of, {*segment.replicas, *segment.local_nodes})
    away = [node for node in known if node is not None and not node.is_alive and not node.is_retired]
    is_held_up = any(one.seal is None and any(map(_is_to_be_let_go, map(node_of, one.replicas))) for one in behind)
    return is_held_up and all(map(_is_to_be_let_go, away))


def _is_to_be_let_go(node: Node | None) -> bool:
    """A person gave it up, and it is not released yet."""
    return node is not None and not node.is_retired and is_given_up(node.retirement, is_alive=node.is_alive)


def is_kept_directory(record: Retirement | None, mount: Mount | None) -> bool:
    """Whether what a node left in its directory counts as a copy: while that is mounted, or is about to be. Where a
    person gave the node up its disk may be gone: only while it is read."""
    is_forced = record is not None and record.is_forced
    if mount is None:
        is_awaited = record is not None and record.step in (RetireStep.RELEASE, RetireStep.MOUNT)
        return is_awaited and record is not None and record.keeps_directory and not is_forced
    return mount.mode is MountMode.VOLUME and (mount.volume is not None or not is_forced)


def need_of(
    segment: Segment,
    node_id: int,
    mode: RetireMode,
    wanted: int,
    is_staying: Callable[[int], bool],
    *,
    may_read_bucket: bool,
) -> Need:
    """`wanted`: how many nodes shall have it. `is_staying`: alive, and not leaving."""
    if node_id not in segment.replicas and node_id not in segment.local_nodes:
        return Need.NONE
    if segment.state is SegmentState.DELETED:
        return Need.NONE
    if segment.state is not SegmentState.SEALED:
        return Need.OPEN
    if is_readable_without_nodes(segment, may_read_bucket=may_read_bucket):
        return Need.KEPT
    if segment.remote.state is RemoteState.COMPLETE and node_id not in segment.local_nodes:
        return Need.KEPT  # it has nothing that could be read
    if mode is RetireMode.VOLUME and node_id in segment.local_nodes:
        return Need.KEPT
    holders = sum(1 for holder in segment.local_nodes if holder != node_id and is_staying(holder))
    if holders >= max(wanted, 1):
        return Need.KEPT
    if holders:
        return Need.THIN
    return Need.ONLY_HERE
