"""Shards that need a person's attention: recoveries that wait for nodes, segments with too few replicas, data that was
given up.

Pure, over what every watcher has, so that the service, a node's UI and the command line say the same.
Cost: O(segments).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from stratalog.machines.copies.copy_repair import is_kept_by_copies
from stratalog.machines.copies.leaving import is_given_up, is_lost_for_good
from stratalog.machines.copies.recovery_rule import MIN_IN_SYNC, Waiting, decide, is_quorum, least_in_sync, majority
from stratalog.machines.copies.wanted_copies import wanted_copies
from stratalog.machines.reading.bucket_reads import BucketReads
from stratalog.model.bounds import Int32
from stratalog.model.counting import counted, joined, nodes_named
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.segment import GapReason, GivenUp, RemoteState, Segment, SegmentState
from stratalog.model.topic import Shard, Topic


class TroubleKind(StrEnum):
    NO_LEADER = "no_leader"
    """The shard takes no writes until `nodes` have promised."""
    NO_SOURCE = "no_source"
    """What ended cannot be sealed, nor read to its end, until `nodes` have promised."""
    TOO_FEW_REPLICAS = "too_few_replicas"
    """It is written to fewer replicas than the topic asks for; they are filled up when nodes are alive."""
    BELOW_MIN_IN_SYNC = "below_min_in_sync"
    """Fewer are in sync than the topic's `min.insync.replicas`: acks=all is refused. `nodes` are not in sync. Or fewer
    live than the majority that acknowledges: acks=all waits for `nodes`."""
    NOT_IN_SYNC = "not_in_sync"
    """`nodes` are replicas of what is written, and not in sync; those that are suffice."""
    TOO_FEW_COPIES = "too_few_copies"
    """Sealed segments have fewer proven copies on nodes that live than the topic asks for, and are not whole in an
    object store that readers may use; `segment` is the oldest of them. They are copied again."""
    NO_COPY = "no_copy"
    """The same, and no node that lives has one: they cannot be read before one of `nodes` is back."""
    NOT_SEALED = "not_sealed"
    """It ended a while ago, and `nodes`, which live, have not told of their copies: without the word of all of them
    nothing is sealed, freed, or whole in the object store."""
    NO_PRODUCERS = "no_producers"
    """The producers up to the end of `segment`, which is sealed, are only in the index blocks of dead nodes. A node
    that shall continue after it, and does not know them already, refuses writes until one of `nodes` is back."""
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
    """What is so, with numbers, and what to do next; reads on behind the name of the shard and a colon."""


SEAL_TAKES_MS = 60_000

_GIVE_UP: Final = "if a disk is lost for good, give up what it held with `stratalog recover TOPIC --shard N --unclean`"
_GIVE_UP_NODE: Final = (
    "if a disk is lost for good, give up its node with `stratalog nodes retire ID --force STORAGE-ID` (docs/operate.md)"
)
_LOGS_SAY: Final = ("its log says", "their logs say")
_WHY_GIVEN_UP: Final = {
    GapReason.UNCONFIRMED: "no replica that answered had them, and no write with acks=all was acknowledged for them",
    GapReason.RESTARTED: "the replicas restarted, and may have lost the end of their logs",
    GapReason.UNCLEAN: "given up by command, or by uncleanSeal=allow",
}


def troubles(snapshot: Snapshot, now_ms: int, min_in_sync: int = 1) -> Iterator[Trouble]:
    """In the order of the shards. `now_ms`: by the clock that the snapshot's times are of. `min_in_sync`: the
    `min.insync.replicas` of the processes, for topics that do not say otherwise."""
    topics = {topic.topic_id: topic for topic in snapshot.topics}
    nodes = {node.node_id: node for node in snapshot.nodes}
    bucket = BucketReads(snapshot.nodes)
    for shard in snapshot.shards:
        yield from troubles_of(topics[shard.key.topic_id], shard, nodes, now_ms, bucket, min_in_sync)


def troubles_of(
    topic: Topic, shard: Shard, nodes: dict[int, Node], now_ms: int, bucket: BucketReads, min_in_sync: int = 1
) -> Iterator[Trouble]:
    """Of one shard."""
    least = _least(topic, min_in_sync)
    for segment in shard.segments:
        yield from _of(topic, segment, nodes, least)
    yield from _of_seals(topic, shard, nodes, now_ms - SEAL_TAKES_MS)
    yield from _of_copies(topic, shard, nodes, may_read_bucket=bucket.of(topic))
    yield from _of_producers(topic, shard, nodes)


def troubles_of_active(topic: Topic, shard: Shard, nodes: dict[int, Node], min_in_sync: int) -> Iterator[Trouble]:
    """Only for the active segment, which is the last one: its leader, and its replicas in sync."""
    if shard.segments and shard.segments[-1].state is SegmentState.ACTIVE:
        yield from _of(topic, shard.segments[-1], nodes, _least(topic, min_in_sync))


def _least(topic: Topic, min_in_sync: int) -> int:
    """An internal topic says all that holds for it. Only nodes write to it, and where fewer nodes were there than its
    setting asks for when it was made, they do with these."""
    if topic.is_internal:
        return min(least_in_sync(topic.settings, 1), topic.replication_factor)
    return least_in_sync(topic.settings, min_in_sync)


def _of(topic: Topic, segment: Segment, nodes: dict[int, Node], least: int) -> Iterator[Trouble]:
    is_active = segment.state is SegmentState.ACTIVE
    if is_active and len(segment.replicas) < wanted_copies(topic, segment):
        words = _too_few_replicas(topic, segment, nodes)
        yield Trouble(topic.name, segment.key, TroubleKind.TOO_FEW_REPLICAS, segment.replicas, None, words)
    if is_active and segment.leader is not None:
        yield from _of_in_sync(topic, segment, nodes, least)
    if is_active and segment.leader is not None and not _is_alive(segment.leader, nodes):
        words = f"no leader; node {segment.leader} has the only replica and is not alive: start it; {_GIVE_UP}"
        yield Trouble(topic.name, segment.key, TroubleKind.NO_LEADER, (segment.leader,), None, words)
    if segment.handover is None and not segment.is_fenced:
        return
    if segment.is_fenced and (is_active or (segment.state is SegmentState.SEALING and segment.handed.source is None)):
        kind = TroubleKind.NO_LEADER if is_active else TroubleKind.NO_SOURCE
        waited = _waited_for(topic, segment, nodes)
        what = "no leader" if is_active else "no node that answers has the last records of an ended segment"
        yield Trouble(topic.name, segment.key, kind, waited, None, f"{what}; {_why(segment, waited, nodes)}")
    if segment.state is SegmentState.SEALED and segment.handed.reports:
        wrong = tuple(report.node_id for report in segment.handed.reports)
        differ = "the copy on {} differs" if len(wrong) == 1 else "the copies on {} differ"
        words = (
            f"{differ.format(nodes_named(wrong))} from the sealed segment, and no reader gets it: check the disk "
            f"there, then run `stratalog verify {topic.name}` there"
        )
        yield Trouble(topic.name, segment.key, TroubleKind.COPY_DIFFERS, wrong, None, words)
    for gap in segment.handed.given_up:
        yield Trouble(topic.name, segment.key, TroubleKind.GIVEN_UP, (), gap, _given_up(gap))


def _given_up(gap: GivenUp) -> str:
    count = gap.end_offset - gap.base_offset
    if not count:
        return (
            f"offsets from {gap.end_offset} on may be lost, none is known to be ({_WHY_GIVEN_UP[gap.reason]}); ask the "
            "owners of the data to check"
        )
    last = gap.end_offset - 1
    lost = f"offset {last} is" if count == 1 else f"{counted(count, 'offset')}, {gap.base_offset} to {last}, are"
    return (
        f"{lost} lost ({_WHY_GIVEN_UP[gap.reason]}); tell the owners of the data, and with a backup, produce the "
        "records again"
    )


def _too_few_replicas(topic: Topic, segment: Segment, nodes: dict[int, Node]) -> str:
    """A node that can take a replica gets one without being asked for (`copy_repair`)."""
    others = [
        one for one in nodes.values() if one.is_alive and not one.is_retired and one.node_id not in segment.replicas
    ]
    if any(one.has_room and not one.is_leaving for one in others):
        next_step = "a node that is free gets the next one: wait"
    elif others:
        next_step = "no free node, the others have no room or are leaving: make room there, or start another node"
    else:
        next_step = "no free node: start another node"
    return f"{len(segment.replicas)} of {counted(topic.replication_factor, 'replica')}; {next_step}"


def _of_in_sync(topic: Topic, segment: Segment, nodes: dict[int, Node], least: int) -> Iterator[Trouble]:
    outside = tuple(node_id for node_id in segment.replicas if node_id not in segment.isr)
    away = tuple(node_id for node_id in segment.replicas if not _is_alive(node_id, nodes))
    if is_quorum(topic.settings) and len(segment.replicas) - len(away) < majority(segment):
        alive = f"{len(segment.replicas) - len(away)} of {counted(len(segment.replicas), 'replica')} alive"
        words = (
            f"{alive}, and acks=all waits for a majority of {majority(segment)}; {_start(list(away))}; if a disk is "
            "lost permanently, `stratalog nodes retire ID --force STORAGE-ID`"
        )
        yield Trouble(topic.name, segment.key, TroubleKind.BELOW_MIN_IN_SYNC, away, None, words)
        return
    least = 1 if is_quorum(topic.settings) or segment.is_direct else least
    in_sync = f"{len(segment.isr)} of {counted(len(segment.replicas), 'replica')} in sync"
    next_step = _how_to_get_in_sync(outside, nodes)
    if len(segment.isr) < least:
        words = f"{in_sync}, {MIN_IN_SYNC} is {least}, so acks=all is refused; {next_step}"
        yield Trouble(topic.name, segment.key, TroubleKind.BELOW_MIN_IN_SYNC, outside, None, words)
    elif outside:
        yield Trouble(topic.name, segment.key, TroubleKind.NOT_IN_SYNC, outside, None, f"{in_sync}; {next_step}")


def _how_to_get_in_sync(outside: tuple[int, ...], nodes: dict[int, Node]) -> str:
    dead = [node_id for node_id in outside if not _is_alive(node_id, nodes)]
    behind = [node_id for node_id in outside if _is_alive(node_id, nodes)]
    steps = []
    if dead:
        steps.append(_start(dead))
    if behind:
        steps.append(
            f"{nodes_named(behind)} {_are(behind)} behind: wait; if it lasts, {_LOGS_SAY[len(behind) > 1]} why"
        )
    # Without any of them it has fewer replicas than must be in sync.
    missing = f"no other replica can join them: give the topic more replicas, or set a lower {MIN_IN_SYNC}"
    return "; ".join(steps) or missing


def _start(dead: list[int]) -> str:
    return f"{nodes_named(dead)} {_are(dead)} not alive: start {'it' if len(dead) == 1 else 'them'}"


def _are(node_ids: Sequence[int]) -> str:
    return "is" if len(node_ids) == 1 else "are"


def _of_seals(topic: Topic, shard: Shard, nodes: dict[int, Node], since_ms: int) -> Iterator[Trouble]:
    """Each segment ended when the one behind it was opened."""
    for segment, successor in pairwise(shard.segments):
        if segment.state is not SegmentState.SEALING or successor.opened_ms > since_ms:
            continue
        if segment.is_fenced and segment.handed.source is None:
            continue  # told of already
        reporters = {report.node_id for report in segment.handed.reports}
        silent = [node_id for node_id in segment.replicas if node_id not in reporters]
        owing = tuple(node_id for node_id in silent if _is_alive(node_id, nodes))
        dead = [node_id for node_id in silent if node_id not in owing]
        reported = f"{len(reporters)} of {counted(len(segment.replicas), 'replica')} reported a copy"
        if owing:
            next_step = (
                f"{nodes_named(owing)} will try again: wait; if it lasts, `stratalog status` and the log there say why"
            )
        elif dead:
            next_step = _start(dead)
        else:
            next_step = (
                f"the copies differ: run `stratalog verify {topic.name}` on each of {nodes_named(segment.replicas)}"
            )
        words = f"a segment ended over {SEAL_TAKES_MS // 1_000} s ago and is not sealed, {reported}; {next_step}"
        yield Trouble(topic.name, segment.key, TroubleKind.NOT_SEALED, owing, None, words)


def _of_copies(topic: Topic, shard: Shard, nodes: dict[int, Node], *, may_read_bucket: bool) -> Iterator[Trouble]:
    """Of all sealed segments of a shard together: a node that is gone takes copies of thousands."""
    thin: list[tuple[Segment, int]] = []
    for segment in shard.segments:
        if is_kept_by_copies(segment, may_read_bucket=may_read_bucket):
            count = sum(_is_alive(node_id, nodes) for node_id in segment.local_nodes)
            if count < wanted_copies(topic, segment):
                thin.append((segment, count))
    unread = [segment for segment, count in thin if not count]
    barred = [segment for segment in unread if segment.remote.state is RemoteState.COMPLETE]
    lost = [segment for segment in unread if segment.remote.state is not RemoteState.COMPLETE]
    left = [(segment, count) for segment, count in thin if count]
    if lost:
        holders, next_step = _what_helps(topic, lost, nodes)
        have = counted(len(lost), "sealed segment", verb=("has", "have"))
        words = f"{have} no copy on a node that is alive: {next_step}"
        yield Trouble(topic.name, lost[0].key, TroubleKind.NO_COPY, holders, None, words)
    if barred:
        holders = tuple(sorted({node_id for segment in barred for node_id in segment.local_nodes}))
        have = counted(len(barred), "sealed segment", verb=("has", "have"))
        start = f"start {nodes_named(holders)}, or " if holders else ""
        words = (
            f"{have} no copy on a node that is alive, and consumers get errors there: the object store has all of "
            f"{'it' if len(barred) == 1 else 'them'}, and remote.read.policy=Disable keeps readers out of it; {start}"
            f"{_how_copied(barred, nodes)}; "
            f"or run `stratalog topics alter {topic.name} --set remote.read.policy=NotInDisk`"
        )
        yield Trouble(topic.name, barred[0].key, TroubleKind.NO_COPY, holders, None, words)
    if left:
        holders = tuple(sorted({node_id for segment, _ in left for node_id in segment.local_nodes}))
        making = sum(any(n not in s.local_nodes and _is_alive(n, nodes) for n in s.replicas) for s, _ in left)
        wanted = wanted_copies(topic, left[0][0])
        words = _too_few_copies(wanted, [count for _, count in left], making, nodes)
        yield Trouble(topic.name, left[0][0].key, TroubleKind.TOO_FEW_COPIES, holders, None, words)


def _how_copied(barred: list[Segment], nodes: dict[int, Node]) -> str:
    """Nodes that are alive make copies of what they are replicas of; what a dead node held waits for another one."""
    making = sum(any(_is_alive(node_id, nodes) for node_id in segment.replicas) for segment in barred)
    if making == len(barred):
        return "wait: nodes copy them from the object store now"
    others = "nodes copy from the object store what a node held that has been away for replica.replace.after.ms"
    return f"wait: {making:,} of them are being copied, and {others}" if making else f"wait: {others}"


def _what_helps(topic: Topic, lost: list[Segment], nodes: dict[int, Node]) -> tuple[tuple[int, ...], str]:
    """The nodes that may have them, and what to do. A node that has left is not started any more: its directory is
    read, or was given up."""
    gone = [segment for segment in lost if _is_gone(segment, nodes)]
    listed = {node_id for segment in lost for node_id in segment.local_nodes}
    left = {one for one in listed if one in nodes and nodes[one].is_retired}
    kept = {one for one in left if (record := nodes[one].retirement) is not None and record.keeps_directory}
    start = tuple(sorted((listed - left) | _away(lost, nodes)))
    steps = [f"start {nodes_named(start)}"] if start else []
    if kept:
        names = nodes_named(sorted(kept))
        steps.append(f"what {names} left is read in place (`stratalog mounts list` shows whether it is)")
    if gone:
        names = nodes_named(sorted({one for segment in gone for one in segment.local_nodes}))
        steps.append(
            f"{len(gone):,} of them {'was' if len(gone) == 1 else 'were'} given up by force with {names}: delete the "
            "records up to their ends (DeleteRecords), or wait for retention"
        )
    return tuple(sorted({*start, *kept})), "; ".join(steps) or f"run `stratalog verify {topic.name}` on its nodes"


def _is_gone(segment: Segment, nodes: dict[int, Node]) -> bool:
    return is_lost_for_good(segment, nodes.get, lambda one: _is_alive(one, nodes))


def _away(lost: Sequence[Segment], nodes: dict[int, Node]) -> set[int]:
    """A node that is only away may have a copy that it has not reported."""
    others = {one for segment in lost for one in segment.replicas if one in nodes}
    return {one for one in others if not nodes[one].is_alive and not _is_given_up(nodes[one])}


def _too_few_copies(wanted: int, counts: list[int], making: int, nodes: dict[int, Node]) -> str:
    able = sum(one.is_alive and one.has_room and not one.is_leaving for one in nodes.values())
    if able < wanted:
        few = f"only {counted(able, 'node')}" if able else "no node"
        next_step = f"{few} can hold one now: start another node"
    elif making:
        next_step = f"{making:,} being copied: wait"
    else:
        next_step = "others make the copies once a node has been away for replica.replace.after.ms: start it, or wait"
    have = counted(len(counts), "sealed segment", verb=("has", "have"))
    return f"{have} fewer than {counted(wanted, 'copy')} on nodes that are alive (at least {min(counts)}); {next_step}"


def _of_producers(topic: Topic, shard: Shard, nodes: dict[int, Node]) -> Iterator[Trouble]:
    """For the segment that the log continues after. Each node that proved its copy has the table."""
    newest = _newest_table(shard, nodes)
    if newest is None or newest.seal is None or newest.state is not SegmentState.SEALED or _is_gone(newest, nodes):
        return
    is_stored = newest.remote.state is RemoteState.COMPLETE
    if newest.seal.producers.count and not is_stored and not any(_is_alive(one, nodes) for one in newest.local_nodes):
        holders = tuple(sorted({*newest.local_nodes, *_away([newest], nodes)}))
        start = f"start {nodes_named(holders, 'or')}" if holders else "start the nodes that are not alive"
        if any(one in nodes and nodes[one].is_retired for one in holders):
            holders, start = _what_helps(topic, [newest], nodes)
        words = (
            f"the table of {counted(newest.seal.producers.count, 'idempotent producer')} is on no node that is alive, "
            f"so a new leader may refuse writes: {start}"
        )
        yield Trouble(topic.name, newest.key, TroubleKind.NO_PRODUCERS, holders, None, words)


def _newest_table(shard: Shard, nodes: dict[int, Node]) -> Segment | None:
    """The table of a segment without a batch, which no living node may have, follows from the one before it."""
    for segment in reversed(shard.segments):
        if segment.seal is None:
            continue
        is_here = not segment.seal.producers.count or any(_is_alive(one, nodes) for one in segment.local_nodes)
        if is_here or segment.end_offset != segment.base_offset:
            return segment
    return None


def _waited_for(topic: Topic, segment: Segment, nodes: dict[int, Node]) -> tuple[int, ...]:
    if segment.is_direct:
        return ()  # for any node that is alive
    decision = decide(
        segment,
        by_quorum=is_quorum(topic.settings),
        is_alive=lambda node_id: _is_alive(node_id, nodes),
    )
    if not isinstance(decision, Waiting):
        return ()
    gone = {node for node in segment.replicas if node in nodes and _is_given_up(nodes[node])}
    if not gone.issuperset(decision.nodes):
        return decision.nodes
    # A person gave these up. The end still waits for the word of each other replica: its copy may be the longest.
    voters = {vote.node_id for vote in segment.handed.votes if _is_alive(vote.node_id, nodes)}
    silent = tuple(node for node in segment.replicas if node not in gone and node not in voters)
    return silent or decision.nodes


def _is_given_up(node: Node) -> bool:
    return is_given_up(node.retirement, is_alive=node.is_alive)


def _is_alive(node_id: int, nodes: dict[int, Node]) -> bool:
    return node_id in nodes and nodes[node_id].is_alive


def _why(segment: Segment, waited: tuple[int, ...], nodes: dict[int, Node]) -> str:
    """The nodes that a recovery waits for, and what to do about them."""
    if not waited:
        return "it is being recovered: wait"
    lost = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_lost}
    reasons = []
    for node_id in waited:
        if node_id in lost:
            reasons.append(f"node {node_id} (its disk is new)")
        elif not _is_alive(node_id, nodes):
            reasons.append(f"node {node_id} (not alive)")
        else:
            reasons.append(f"node {node_id} (has not answered yet)")
    dead = [node_id for node_id in waited if not _is_alive(node_id, nodes)]
    steps = [f"start {nodes_named(dead)}"] if dead else []
    if segment.state is SegmentState.SEALING and not any(_is_alive(node, nodes) for node in segment.replicas):
        # No node could be its source: SealUnclean is refused until one lives, or was given up.
        steps.append(_GIVE_UP_NODE)
    elif lost & set(waited) or dead:
        steps.append(_GIVE_UP)
    else:
        steps.append(f"wait; if it lasts, {_LOGS_SAY[len(waited) > 1]} why")
    return f"waiting for {joined(reasons)}: {'; '.join(steps)}"
