"""Which shards would go elsewhere at their next roll so that leaders and load are even: a plan over all metadata.

Pure. It chooses as the meta service does at each roll (`placement`), one shard after another, and counts the shards
whose successor is prepared where that will be, as the service does: so what rolls is placed as planned, as long as
nothing else rolls meanwhile. A node that does not hold the present segment of a shard follows first and leads with the
next round, so rounds are planned until they are even, or nothing moves. Each move makes leaders, racks or load more
even, so that comes about.
Cost: as `placement.place_next`, for each shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from stratalog.machines.copies.disk_room import weight_class, with_good_disks
from stratalog.machines.copies.placement import LEADER_WEIGHT, place_next, weights_of
from stratalog.machines.copies.wanted_copies import next_copies
from stratalog.model.metadata import Node, NodeInfo, Snapshot
from stratalog.model.segment import NextReplicas, Segment, SegmentState

TOLERANCE_PERCENT: Final = 20
"""Of its even share a node may have more or less; less than one more or less it always may."""


@dataclass(frozen=True, slots=True)
class Move:
    """A shard whose next segment would be elsewhere."""

    topic: str
    segment: Segment
    """The present one."""
    successor: NextReplicas


@dataclass(frozen=True, slots=True)
class Share:
    """What a node leads and is loaded with (a leader counts twice), now and after the moves."""

    node_id: int
    takes_new: bool
    """False of one that is not alive, leaves, or has a disk that is full or makes no progress."""
    scarcity: int
    leaders: int
    load: int
    leaders_after: int
    load_after: int


@dataclass(frozen=True, slots=True)
class Plan:
    moves: tuple[Move, ...]
    shares: tuple[Share, ...]

    @property
    def is_even(self) -> bool:
        """Whether new writes are spread evenly within the tolerance, and only nodes that take writes have any."""
        hosts = [share for share in self.shares if share.takes_new]
        if any(share.load for share in self.shares if not share.takes_new):
            return False
        scarcities = [share.scarcity for share in hosts]
        return _is_even([share.leaders for share in hosts], scarcities) and _is_even(
            [share.load for share in hosts], scarcities
        )


def _is_even(counts: Sequence[int], scarcities: Sequence[int]) -> bool:
    whole = sum(counts)
    parts = [1 / (1 << scarcity) for scarcity in scarcities]
    wanted = [whole * part / sum(parts) for part in parts]
    apart = [(abs(count - even), even) for count, even in zip(counts, wanted, strict=True)]
    return all(distance < 1 or distance * 100 <= even * TOLERANCE_PERCENT for distance, even in apart)


def plan_rebalance(snapshot: Snapshot) -> Plan:
    """One round. Without a living node nothing moves."""
    topics = {topic.topic_id: topic for topic in snapshot.topics}
    actives = [shard.segments[-1] for shard in snapshot.shards if shard.segments]
    actives = [one for one in actives if one.state is SegmentState.ACTIVE and one.key.topic_id in topics]
    load, led = {node.node_id: 0 for node in snapshot.nodes}, {node.node_id: 0 for node in snapshot.nodes}
    load_now, led_now = dict(load), dict(led)
    for active in actives:
        _count(active, load, led, 1)
        _count(_as_it_is(active), load_now, led_now, 1)
    load_after, led_after = dict(load_now), dict(led_now)
    scarcities = {node.node_id: weight_class(node) for node in snapshot.nodes}
    moves: list[Move] = []
    for active in sorted(actives, key=lambda one: (topics[one.key.topic_id].name, one.key.shard)):
        topic = topics[active.key.topic_id]
        hosts = _hosts(snapshot.nodes, next_copies(topic))
        if active.leader is None or not hosts:
            continue
        chosen = place_next(active, next_copies(topic), hosts, load, led, scarcities=scarcities)
        if chosen.leader == active.leader and set(chosen.replicas) == set(active.replicas):
            continue
        present = _as_it_is(active)
        successor = replace(present, leader=chosen.leader, replicas=chosen.replicas)
        moves.append(Move(topic.name, present, chosen))
        _count(active, load, led, -1)
        _count(successor, load, led, 1)
        _count(present, load_after, led_after, -1)
        _count(successor, load_after, led_after, 1)
    roomy = {info.node_id for info in _hosts(snapshot.nodes, 1)}
    shares = [
        Share(
            node.node_id,
            node.node_id in roomy,
            weight_class(node),
            led_now[node.node_id],
            load_now[node.node_id],
            led_after[node.node_id],
            load_after[node.node_id],
        )
        for node in sorted(snapshot.nodes, key=lambda one: one.node_id)
        if not node.is_retired
    ]
    return Plan(tuple(moves), tuple(shares))


def _as_it_is(segment: Segment) -> Segment:
    """Where it is now, whatever successor is prepared."""
    if segment.handed.prepared is None:
        return segment
    return replace(segment, handover=replace(segment.handed, prepared=None))


def _count(segment: Segment, load: dict[int, int], led: dict[int, int], sign: int) -> None:
    for node_id, weight in weights_of(segment):
        load[node_id] = load.get(node_id, 0) + sign * weight
        if weight == LEADER_WEIGHT:
            led[node_id] = led.get(node_id, 0) + sign


def _hosts(nodes: Sequence[Node], wanted: int) -> list[NodeInfo]:
    """As `TableState.hosts` says it."""
    living = [node for node in nodes if node.is_alive and not node.is_retired]
    staying = [node for node in living if not node.is_leaving] or living
    return [one.info for one in with_good_disks(staying, wanted)]
