"""Plans over the metadata which nodes make missing copies again, and which surplus copies are released.

A SEALED segment that is not COMPLETE in the object store, or whose topic's readers may not use it, shall have proven
copies on as many living nodes as the topic has replicas. A copy is made from a living node that has one, or from the
object store where that has the whole segment. Only time tells a lost node from one that is briefly away (`Presence`): a
node is replaced once it has been dead for the given time, and its replacement is released only when all other replicas
have been alive for that time. An active segment gets its missing replicas as followers, which its leader takes into the
ISR once they have caught up.

A plan rests on a snapshot that may be old. The shard table makes a move only if the replicas are still those that the
plan saw, and checks itself whether enough copies remain after a drop (`machines.table.moves`).

Pure. Cost: under a microsecond a segment, in steps.
Source: docs/design.md section 3, rule 9; docs/replication.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Final

from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.copies.wanted_copies import wanted_copies
from stratalog.machines.reading.bucket_reads import BucketReads, is_copied_from_bucket, is_readable_without_nodes
from stratalog.model.commands.table_commands import ReplicaMove
from stratalog.model.metadata import Life, Node, Snapshot
from stratalog.model.retirement import RetireMode
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.topic import Topic

MOST_UNDER_WAY: Final = 16
"""Copies that one node makes at a time: of 10,000 that are due the others wait."""
MOST_MOVES: Final = 500
"""In one plan."""
_SEGMENTS_PER_STEP: Final = 256


class Presence:
    """Since when each node is alive, or is not, as one leader of the service has seen it: a new one begins again."""

    __slots__ = ("_after_ms", "_seen")

    def __init__(self, after_ms: int, nodes: Iterable[Node], now_ms: int) -> None:
        self._after_ms = after_ms
        self._seen: dict[int, tuple[bool, int]] = {}
        for node in nodes:
            self.node_changed(node, now_ms)

    def node_changed(self, node: Node, now_ms: int) -> None:
        known = self._seen.get(node.node_id)
        if known is None or known[0] is not node.is_alive:
            self._seen[node.node_id] = node.is_alive, now_ms

    def away(self, now_ms: int) -> frozenset[int]:
        """Nodes that have been dead long enough for others to replace them."""
        return self._lasting(now_ms, is_alive=False)

    def steady(self, now_ms: int) -> frozenset[int]:
        """Alive for as long."""
        return self._lasting(now_ms, is_alive=True)

    def _lasting(self, now_ms: int, *, is_alive: bool) -> frozenset[int]:
        return frozenset(
            node_id
            for node_id, (was_alive, since_ms) in self._seen.items()
            if was_alive is is_alive and now_ms - since_ms >= self._after_ms
        )


@dataclass(slots=True)
class Plan:
    moves: list[ReplicaMove] = field(default_factory=list)
    waiting: int = 0
    """Copies that are due and have to wait for others to be made, or for a node that can take them."""
    is_bounded: bool = False
    """Some of them wait for others to be made alone."""


@dataclass(slots=True)
class _Nodes:
    """What placement needs of them."""

    by_id: dict[int, Node]
    away: Set[int]
    steady: Set[int]
    under_way: dict[int, int]
    is_uploaded: Callable[[Topic], bool]
    bucket: BucketReads
    started: Set[Life] | None
    is_bounded: bool = False

    def is_tiered(self, topic: Topic) -> bool:
        """The object store gets it, and is then a copy that readers may use."""
        return self.bucket.of(topic) and self.is_uploaded(topic)

    def is_kept_by_copies(self, segment: Segment, topic: Topic) -> bool:
        return is_kept_by_copies(segment, may_read_bucket=self.bucket.of(topic))

    def is_alive(self, node_id: int) -> bool:
        node = self.by_id.get(node_id)
        return node is not None and node.is_alive

    def life_of(self, node_id: int | None) -> Life | None:
        node = None if node_id is None else self.by_id.get(node_id)
        return None if node is None else node.life

    def has_started(self, node_id: int | None) -> bool:
        """In its present life."""
        return self.started is None or self.life_of(node_id) in self.started

    def is_gone(self, node_id: int) -> bool:
        node = self.by_id.get(node_id)
        if node is None:
            return True
        if node.is_retired:  # a volume that was kept is read by another node
            return node.retirement is None or not node.retirement.keeps_directory
        return node_id in self.away

    def is_retired(self, node_id: int) -> bool:
        """It makes no copies any more, whatever of its volume is still read."""
        node = self.by_id.get(node_id)
        return node is not None and node.is_retired

    def may_copy(self, node_id: int) -> bool:
        """Its disk works and is not nearly full: one that is full asks for nothing."""
        node = self.by_id.get(node_id)
        return node is not None and node.takes_new

    def can_copy(self, segment: Segment) -> bool:
        """Whether there is something to copy it from."""
        holders = segment.isr if segment.seal is None else segment.local_nodes
        return any(map(self.is_alive, holders)) or is_copied_from_bucket(segment)

    def is_leaving(self, node_id: int, topic: Topic) -> bool:
        """Or gone: what it has of the topic is to be on another, too."""
        node = self.by_id.get(node_id)
        if node is None or self.is_gone(node_id):
            return True
        is_offloaded = node.retirement is not None and node.retirement.mode is RetireMode.OFFLOAD
        return node.is_leaving and is_offloaded and not self.is_tiered(topic)

    def is_cordoned(self, node_id: int) -> bool:
        """It leaves in either mode, or has left: what others that leave need is to be on nodes that stay."""
        node = self.by_id.get(node_id)
        return node is None or node.is_leaving

    def is_unproven(self, node_id: int, segment: Segment, topic: Topic) -> bool:
        """It leaves with its volume, and has not proven its copy. It may never: that may be another than the sealed
        one."""
        node = self.by_id.get(node_id)
        is_about_to = node is not None and node.is_leaving and not node.is_retired
        return is_about_to and node_id not in segment.local_nodes and not self.is_tiered(topic)

    def next_for(self, segment: Segment, holders: Set[int], taken: Set[int]) -> int | None:
        """A living node with room that is not in `taken`: preferably in a rack without a holder, and with the least
        work. A node whose copy differed is chosen only if there is no other."""
        wrong = {report.node_id for report in segment.handed.reports}
        racks = {self.by_id[node_id].rack for node_id in holders if node_id in self.by_id}
        able = [
            node
            for node in self.by_id.values()
            if node.is_alive and node.takes_new and not node.is_leaving and node.node_id not in taken
        ]
        able = [node for node in able if node.node_id not in wrong] or able
        free = [node for node in able if self.under_way.get(node.node_id, 0) < MOST_UNDER_WAY]
        if not free:
            self.is_bounded |= bool(able)
            return None

        def weight(node: Node) -> tuple[bool, int, int]:
            is_near = node.rack is not None and node.rack in racks
            return is_near, self.under_way.get(node.node_id, 0), node.node_id

        chosen = min(free, key=weight).node_id
        self.under_way[chosen] = self.under_way.get(chosen, 0) + 1
        return chosen


def plan_moves(
    snapshot: Snapshot,
    away: Set[int],
    steady: Set[int],
    is_tiered: Callable[[Topic], bool] = lambda _: True,
    started: Set[Life] | None = None,
) -> Generator[None, None, Plan]:
    """A generator: other work may be done between its steps. Returns the plan after the last one. `is_tiered`: topics
    that the object store gets from a leaving node, so that no other copies are needed where readers may use the store.
    `started`: lives of nodes that have opened the segments that they lead (None: all). A segment with a single replica
    gets no others while its leader starts: a start opens a segment that has only one replica by itself, and waits for
    the other replicas if there are any."""
    topics = {topic.topic_id: topic for topic in snapshot.topics}
    by_id = {node.node_id: node for node in snapshot.nodes}
    nodes = _Nodes(by_id, away, steady, {}, is_tiered, BucketReads(snapshot.nodes), started)
    due: list[tuple[Topic, Segment]] = []
    number = 0
    for shard in snapshot.shards:
        topic = topics[shard.key.topic_id]
        for segment in shard.segments:
            number += 1
            if number % _SEGMENTS_PER_STEP == 0:
                yield
            for node_id in _making(topic, segment, nodes):
                nodes.under_way[node_id] = nodes.under_way.get(node_id, 0) + 1
            if _is_due(topic, segment, nodes):
                due.append((topic, segment))
    plan = Plan()
    due.sort(key=lambda one: len(one[1].local_nodes or one[1].isr))  # stable: the thinnest first, else in their order
    for number, (topic, segment) in enumerate(due, 1):
        if number % _SEGMENTS_PER_STEP == 0:
            yield
        if len(plan.moves) == MOST_MOVES:
            plan.waiting += len(due) - number + 1
            break
        move = (_move_sealed if segment.state is SegmentState.SEALED else _move_active)(topic, segment, nodes, plan)
        if move is not None:
            plan.moves.append(move)
    plan.is_bounded = nodes.is_bounded or len(plan.moves) == MOST_MOVES
    return plan


def is_kept_by_copies(segment: Segment, *, may_read_bucket: bool) -> bool:
    """Whether the copies of nodes are all that readers of a sealed segment can be served from."""
    is_sealed = segment.state is SegmentState.SEALED
    return is_sealed and not is_readable_without_nodes(segment, may_read_bucket=may_read_bucket)


def _making(topic: Topic, segment: Segment, nodes: _Nodes) -> Iterator[int]:
    """The nodes that make a copy of it now, or will: none while there is nothing to copy from."""
    if not nodes.can_copy(segment):
        return
    if segment.state is SegmentState.ACTIVE:
        yield from (node_id for node_id in segment.replicas if node_id not in segment.isr)
    elif nodes.is_kept_by_copies(segment, topic):
        yield from (node_id for node_id in segment.replicas if node_id not in segment.local_nodes)


def _is_due(topic: Topic, segment: Segment, nodes: _Nodes) -> bool:
    wanted = wanted_copies(topic, segment)
    if segment.state is SegmentState.ACTIVE and segment.is_direct:
        return False
    if segment.state is SegmentState.ACTIVE:
        is_led = segment.leader is not None and not segment.is_fenced and nodes.is_alive(segment.leader)
        if len(segment.replicas) == 1 and not nodes.has_started(segment.leader):
            return False
        return is_led and (len(segment.replicas) < wanted or any(map(nodes.is_gone, segment.replicas)))
    if not nodes.is_kept_by_copies(segment, topic):
        return False
    is_usual = len(segment.replicas) == wanted and {*segment.replicas} == {*segment.local_nodes}
    return not is_usual or any(nodes.is_leaving(node_id, topic) for node_id in segment.local_nodes)


def _move_sealed(topic: Topic, segment: Segment, nodes: _Nodes, plan: Plan) -> ReplicaMove | None:
    assert segment.seal is not None
    wanted, replicas, holders = wanted_copies(topic, segment), segment.replicas, segment.local_nodes
    provers = segment.seal.replicas
    leaves = {node_id for node_id in {*replicas, *holders} if nodes.is_leaving(node_id, topic)}
    never_came = {
        node_id for node_id in replicas if node_id not in holders and (node_id in leaves or nodes.is_retired(node_id))
    }
    unproven = {node_id for node_id in replicas if nodes.is_unproven(node_id, segment, topic)}
    coming = [
        one
        for one in replicas
        if one not in holders and one not in never_came and one not in unproven and nodes.may_copy(one)
    ]
    # A node that is only away may have a copy that it has not reported; the copy would be freed once the node is
    # released.
    is_enough = sum(map(nodes.is_alive, holders)) >= wanted
    dropped = {one for one in never_came if one not in provers and (is_enough or nodes.is_retired(one))}
    # No node copies by itself what a staying directory has; once another node leaves that needs it, too few copies
    # stay.
    is_needed = bool(leaves or unproven)
    present = [one for one in holders if one not in leaves and not (is_needed and nodes.is_cordoned(one))]
    steady = [node_id for node_id in present if node_id in nodes.steady]
    lacking = wanted - len(present) - len(coming)
    added: list[int] = []
    if lacking > 0 and nodes.can_copy(segment):
        for _ in range(lacking):
            node_id = nodes.next_for(segment, {*present, *coming, *added}, {*replicas, *holders, *added})
            if node_id is None:
                plan.waiting += lacking - len(added)
                break
            added.append(node_id)
    elif lacking < 0:
        spare = [node_id for node_id in reversed(replicas) if node_id not in provers and node_id not in dropped]
        spare.sort(key=lambda node_id: node_id in holders)  # first those that are not made yet
        for node_id in spare:
            rest = [holder for holder in steady if holder != node_id]
            if len(rest) >= wanted:
                dropped.add(node_id)
                steady = rest
    if not added and not dropped:
        return None
    return ReplicaMove(segment.key, replicas, tuple(added), tuple(n for n in replicas if n in dropped))


def _move_active(topic: Topic, segment: Segment, nodes: _Nodes, plan: Plan) -> ReplicaMove | None:
    wanted, replicas = topic.replication_factor, segment.replicas
    doubted = {doubt.node_id for doubt in segment.handed.doubts}
    dropped: list[int] = []
    if is_quorum(topic.settings):
        # What most of them hold counts: one more at a time, and only once the leader knows of all that there are.
        lacking = min(1, wanted - len(replicas)) if {*replicas} == {*segment.isr} else 0
    else:
        gone = [node_id for node_id in replicas if nodes.is_gone(node_id)]
        lacking = wanted - len(replicas) + len(gone)
        dropped = [node_id for node_id in gone if node_id not in segment.isr and node_id not in doubted]
    added: list[int] = []
    for _ in range(lacking):
        node_id = nodes.next_for(segment, {*replicas, *added} - {*dropped}, {*replicas, *added})
        if node_id is None:
            plan.waiting += lacking - len(added)
            break
        added.append(node_id)
    if not added:
        return None
    return ReplicaMove(
        segment.key, replicas, tuple(added), tuple(dropped[: len(added)]), leader=nodes.life_of(segment.leader)
    )
