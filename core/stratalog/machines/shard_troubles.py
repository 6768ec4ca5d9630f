"""What of the shards needs somebody's eye: who is waited for, what has too few replicas, what was given up.

Pure, over what every watcher has, so that the service, a node's status page and the command line say the same.
Cost: O(segments).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from stratalog.machines.copy_repair import is_kept_by_copies
from stratalog.machines.recovery_rule import Waiting, decide, is_quorum, least_in_sync
from stratalog.model.bounds import Int32
from stratalog.model.counting import counted
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.segment import GivenUp, RemoteState, Segment, SegmentState
from stratalog.model.topic import Shard, Topic


class TroubleKind(StrEnum):
    NO_LEADER = "no_leader"
    """The shard takes no writes until `nodes` have promised."""
    NO_SOURCE = "no_source"
    """What ended cannot be sealed, nor read to its end, until `nodes` have promised."""
    TOO_FEW_REPLICAS = "too_few_replicas"
    """It is written to fewer replicas than the topic asks for; they are filled up when nodes are alive."""
    BELOW_MIN_IN_SYNC = "below_min_in_sync"
    """Fewer are in sync than the topic's `min.insync.replicas`: acks=all is refused. `nodes` are not in sync."""
    NOT_IN_SYNC = "not_in_sync"
    """`nodes` are replicas of what is written, and not in sync; those that are suffice."""
    TOO_FEW_COPIES = "too_few_copies"
    """Sealed segments have fewer proven copies on nodes that live than the topic asks for, and are not whole in the
    object store; `segment` is the oldest of them. They are copied again."""
    NO_COPY = "no_copy"
    """The same, and no node that lives has one: they cannot be read before one of `nodes` is back."""
    NOT_SEALED = "not_sealed"
    """It ended a while ago, and `nodes`, which live, have not told of their copies: without the word of all of them
    nothing is sealed, freed, or whole in the object store."""
    NO_PRODUCERS = "no_producers"
    """Who wrote up to the end of `segment`, which is sealed, stands in the index blocks of nodes none of which lives:
    a node that is to go on behind it, and does not know them already, refuses writes until one of `nodes` is back."""
    COPY_DIFFERS = "copy_differs"
    """The copies of `nodes` differ from the sealed one, and are not served."""
    GIVEN_UP = "given_up"
    """A recovery gave up a range, or could not rule out that one is lost."""


@dataclass(frozen=True, slots=True)
class Trouble:
    topic: str
    segment: SegmentKey
    kind: TroubleKind
    nodes: tuple[Int32, ...]
    given_up: GivenUp | None
    words: str
    """What is so, and what to do next."""


SEAL_TAKES_MS = 60_000


def troubles(snapshot: Snapshot, now_ms: int) -> Iterator[Trouble]:
    """In the order of the shards. `now_ms`: by the clock that the snapshot's times are of."""
    topics = {topic.topic_id: topic for topic in snapshot.topics}
    nodes = {node.node_id: node for node in snapshot.nodes}
    for shard in snapshot.shards:
        yield from troubles_of(topics[shard.key.topic_id], shard, nodes, now_ms)


def troubles_of(topic: Topic, shard: Shard, nodes: dict[int, Node], now_ms: int) -> Iterator[Trouble]:
    """Of one shard."""
    for segment in shard.segments:
        yield from _of(topic, segment, nodes)
    yield from _of_seals(topic, shard, nodes, now_ms - SEAL_TAKES_MS)
    yield from _of_copies(topic, shard, nodes)
    yield from _of_producers(topic, shard, nodes)


def _of(topic: Topic, segment: Segment, nodes: dict[int, Node]) -> Iterator[Trouble]:
    is_active = segment.state is SegmentState.ACTIVE
    if is_active and len(segment.replicas) < topic.replication_factor:
        count, wanted = len(segment.replicas), topic.replication_factor
        words = f"{count} of {counted(wanted, 'replica')}: start nodes, the rest is placed there"
        yield Trouble(topic.name, segment.key, TroubleKind.TOO_FEW_REPLICAS, segment.replicas, None, words)
    if is_active and segment.leader is not None:
        yield from _of_in_sync(topic, segment)
    if is_active and segment.leader is not None and not _is_alive(segment.leader, nodes):
        words = (
            f"waits: node {segment.leader}, its only replica, is not alive: start it; if it is lost permanently, "
            "begin-recovery and then seal-unclean give up what it alone held"
        )
        yield Trouble(topic.name, segment.key, TroubleKind.NO_LEADER, (segment.leader,), None, words)
    if segment.handover is None and not segment.is_fenced:
        return
    if segment.is_fenced and (is_active or (segment.state is SegmentState.SEALING and segment.handed.source is None)):
        kind = TroubleKind.NO_LEADER if is_active else TroubleKind.NO_SOURCE
        waited = _waited_for(topic, segment, nodes)
        yield Trouble(topic.name, segment.key, kind, waited, None, _why(segment, waited, nodes))
    if segment.state is SegmentState.SEALED and segment.handed.reports:
        wrong = tuple(report.node_id for report in segment.handed.reports)
        words = "their copies differ from the sealed one and are not served: look for what damaged their disks"
        yield Trouble(topic.name, segment.key, TroubleKind.COPY_DIFFERS, wrong, None, words)
    for gap in segment.handed.given_up:
        words = f"offsets {gap.base_offset} to {gap.end_offset} were given up ({gap.reason.value})"
        if gap.base_offset == gap.end_offset:
            words = f"offsets from {gap.end_offset} on may have been lost ({gap.reason.value}); none is known to be"
        yield Trouble(topic.name, segment.key, TroubleKind.GIVEN_UP, (), gap, words)


def _of_in_sync(topic: Topic, segment: Segment) -> Iterator[Trouble]:
    outside = tuple(node_id for node_id in segment.replicas if node_id not in segment.isr)
    least = 1 if is_quorum(topic.settings) else least_in_sync(topic.settings)
    if len(segment.isr) < least:
        words = (
            f"{len(segment.isr)} of {counted(len(segment.replicas), 'replica')} in sync, acks=all asks for {least} "
            "and is refused: start the other nodes, or see in their logs why they do not follow"
        )
        yield Trouble(topic.name, segment.key, TroubleKind.BELOW_MIN_IN_SYNC, outside, None, words)
    elif outside:
        words = (
            f"{len(segment.isr)} of {counted(len(segment.replicas), 'replica')} in sync: start the other nodes, or "
            "see in their logs why they do not follow"
        )
        yield Trouble(topic.name, segment.key, TroubleKind.NOT_IN_SYNC, outside, None, words)


def _of_seals(topic: Topic, shard: Shard, nodes: dict[int, Node], since_ms: int) -> Iterator[Trouble]:
    """Each segment ended when the one behind it was opened."""
    for segment, successor in pairwise(shard.segments):
        if segment.state is not SegmentState.SEALING or successor.opened_ms > since_ms:
            continue
        if segment.is_fenced and segment.handed.source is None:
            continue  # told of already
        told = {report.node_id for report in segment.handed.reports}
        owing = tuple(node_id for node_id in segment.replicas if node_id not in told and _is_alive(node_id, nodes))
        words = (
            "living nodes have not reported their copies: see in their logs why (a fault, a disk, a slow copy); they "
            "try again by themselves"
            if owing
            else "the copies differ and it is unknown which one is right, or too few are alive: `stratalog verify`"
        )
        words = f"it ended a while ago and is not sealed: {words}"
        yield Trouble(topic.name, segment.key, TroubleKind.NOT_SEALED, owing, None, words)


def _of_copies(topic: Topic, shard: Shard, nodes: dict[int, Node]) -> Iterator[Trouble]:
    """Of all sealed segments of a shard together: a node that is gone takes copies of thousands."""
    wanted = topic.replication_factor
    thin: list[tuple[Segment, int]] = []
    for segment in shard.segments:
        if is_kept_by_copies(segment):
            count = sum(_is_alive(node_id, nodes) for node_id in segment.local_nodes)
            if count < wanted:
                thin.append((segment, count))
    lost = [segment for segment, count in thin if not count]
    left = [(segment, count) for segment, count in thin if count]
    if lost:
        holders = tuple(sorted({node_id for segment in lost for node_id in segment.local_nodes}))
        have = counted(len(lost), "sealed segment", verb=("has", "have"))
        words = f"{have} no copy on a node that is alive: start one of the nodes that have one"
        yield Trouble(topic.name, lost[0].key, TroubleKind.NO_COPY, holders, None, words)
    if left:
        holders = tuple(sorted({node_id for segment, _ in left for node_id in segment.local_nodes}))
        least = min(count for _, count in left)
        making = sum(any(n not in s.local_nodes and _is_alive(n, nodes) for n in s.replicas) for s, _ in left)
        words = (
            f"{counted(len(left), 'sealed segment', verb=('has', 'have'))} fewer than {counted(wanted, 'copy')} on "
            f"nodes that are alive, {least} at least; {making} being copied again: where fewer than "
            f"{counted(wanted, 'node', verb=('is', 'are'))} alive, start more"
        )
        yield Trouble(topic.name, left[0][0].key, TroubleKind.TOO_FEW_COPIES, holders, None, words)


def _of_producers(topic: Topic, shard: Shard, nodes: dict[int, Node]) -> Iterator[Trouble]:
    """Of the segment behind which the log goes on. Whoever proved its copy has the table."""
    newest = next((segment for segment in reversed(shard.segments) if segment.seal is not None), None)
    if newest is None or newest.seal is None or newest.state is not SegmentState.SEALED:
        return
    is_stored = newest.remote.state is RemoteState.COMPLETE
    if newest.seal.producers.count and not is_stored and not any(_is_alive(one, nodes) for one in newest.local_nodes):
        words = (
            "who wrote before is known to no other node that lives: a leader that does not know it takes no writes: "
            "start one of the nodes that have the segment before"
        )
        yield Trouble(topic.name, newest.key, TroubleKind.NO_PRODUCERS, newest.local_nodes, None, words)


def _waited_for(topic: Topic, segment: Segment, nodes: dict[int, Node]) -> tuple[int, ...]:
    decision = decide(
        segment,
        by_quorum=is_quorum(topic.settings),
        is_alive=lambda node_id: _is_alive(node_id, nodes),
    )
    return decision.nodes if isinstance(decision, Waiting) else ()


def _is_alive(node_id: int, nodes: dict[int, Node]) -> bool:
    return node_id in nodes and nodes[node_id].is_alive


def _why(segment: Segment, waited: tuple[int, ...], nodes: dict[int, Node]) -> str:
    lost = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_lost}
    said = []
    for node_id in waited:
        if node_id in lost:
            said.append(f"node {node_id} began again on an empty disk")
        elif not _is_alive(node_id, nodes):
            said.append(f"node {node_id} is not alive")
        else:
            said.append(f"node {node_id} has not answered yet")
    step = "start the nodes; if what they held is lost permanently, give it up with seal-unclean"
    return f"waits: {', '.join(said)}: {step}"
