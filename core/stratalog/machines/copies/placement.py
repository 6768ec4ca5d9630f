"""Where new segments go: the least loaded nodes, spread over racks.

Pure. Load is the number of active replicas a node has, with a leader counted twice, for it also serves the clients. A
segment whose successor is prepared counts where that will be: many shards that roll at once do not all choose the same
node. Ties fall to the lower node id, so the same table gives the same placement. Where room on a disk is scarce each
segment counts double, four times or eight times (`disk_room`): the node gets that much less of what is new.

The first segment of a shard goes where the load is least. But each rack leads one of a topic's shards before a rack
leads a second one, where a disk of it is not scarce: then producers that know their rack find a leader there (KIP-1123;
docs/direct-spec.md section 6). A next one stays where it is unless moving makes the numbers
of leaders, or the load, more even: a roll seldom costs its clients a new leader, and a new node still gets its share
within a few rolls, first as a follower, then as a leader.

Cost: O(shards x replication factor x log nodes) when racks are few or as many as replicas need; O(nodes x log nodes)
for a next segment. Source: docs/design.md section 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.metadata import NodeInfo
from stratalog.model.segment import NextReplicas, Segment
from stratalog.model.storage_policy import StoragePolicy

LEADER_WEIGHT = 2
FOLLOWER_WEIGHT = 1
NO_SCARCITY: Final[Mapping[int, int]] = {}


def place(
    shard_count: int,
    replication_factor: int,
    nodes: Sequence[NodeInfo],
    load: Mapping[int, int],
    scarcities: Mapping[int, int] = NO_SCARCITY,
    led_racks: Collection[str] = (),
) -> list[tuple[int, ...]]:
    """Choose the replicas of `shard_count` new segments; the first of each is its leader. `led_racks` lead shards of
    the same topic already.

    Raises: Unavailable without any node, InvalidRequest for more replicas than nodes.
    """
    if not nodes:
        raise Unavailable(
            "no storage node has registered and is alive, so a segment has nowhere to go: start one, then retry"
        )
    if replication_factor > len(nodes):
        raise InvalidRequest(
            f"replication factor {replication_factor} is larger than the number of living nodes, {len(nodes)}: "
            "add nodes or ask for fewer replicas"
        )
    racks = {node.node_id: node.rack for node in nodes}
    heap = [_entry(node.node_id, load.get(node.node_id, 0), scarcities) for node in nodes]
    heapq.heapify(heap)
    roomy = {node.rack for node in nodes if node.rack and not scarcities.get(node.node_id, 0)}
    leaderless = roomy.difference(led_racks)
    return [_place_one(replication_factor, heap, racks, scarcities, leaderless) for _ in range(shard_count)]


def _entry(node_id: int, weight: int, scarcities: Mapping[int, int]) -> tuple[int, int, int]:
    return weighed(weight, node_id, scarcities), node_id, weight


def weighed(count: int, node_id: int, scarcities: Mapping[int, int]) -> int:
    """The cost of one more segment on top of `count` on that node: a node without segments whose disk is nearly full is
    not a free place."""
    return (count + 1) << scarcities.get(node_id, 0)


def _place_one(
    replication_factor: int,
    heap: list[tuple[int, int, int]],
    racks: Mapping[int, str | None],
    scarcities: Mapping[int, int],
    leaderless: set[str],
) -> tuple[int, ...]:
    """Take the least loaded nodes of different racks; a rack comes twice only when there is no other left. The leader
    is in one of the racks that lead nothing of the topic, as long as there is one."""
    leader = _take_leader(heap, racks, leaderless)
    chosen = [leader]
    passed_over: list[tuple[int, int, int]] = []
    used_racks = {racks[leader[1]]} - {None}
    while len(chosen) < replication_factor and heap:
        entry = heapq.heappop(heap)
        rack = racks[entry[1]]
        if rack is not None and rack in used_racks:
            passed_over.append(entry)
            continue
        chosen.append(entry)
        if rack is not None:
            used_racks.add(rack)
    missing = replication_factor - len(chosen)
    chosen += passed_over[:missing]
    for entry in passed_over[missing:]:
        heapq.heappush(heap, entry)
    for position, (_, node_id, weight) in enumerate(chosen):
        added = LEADER_WEIGHT if position == 0 else FOLLOWER_WEIGHT
        heapq.heappush(heap, _entry(node_id, weight + added, scarcities))
    return tuple(node_id for _, node_id, _ in chosen)


def _take_leader(
    heap: list[tuple[int, int, int]], racks: Mapping[int, str | None], leaderless: set[str]
) -> tuple[int, int, int]:
    first = min((entry for entry in heap if racks[entry[1]] in leaderless), default=None) if leaderless else None
    if first is None:
        return heapq.heappop(heap)
    leaderless.discard(racks[first[1]])
    heap.remove(first)
    heapq.heapify(heap)
    return first


def weights_of(active: Segment) -> Iterator[tuple[int, int]]:
    """What an ACTIVE segment adds to the load: nodes and weights."""
    prepared = active.handed.prepared
    leader, replicas = (active.leader, active.replicas) if prepared is None else prepared[:2]
    for node_id in replicas:
        yield node_id, LEADER_WEIGHT if node_id == leader else FOLLOWER_WEIGHT


def place_next(
    before: Segment,
    replication_factor: int,
    nodes: Sequence[NodeInfo],
    load: Mapping[int, int],
    led: Mapping[int, int],
    holders: Sequence[int] = (),
    scarcities: Mapping[int, int] = NO_SCARCITY,
    policy: StoragePolicy = StoragePolicy.REPLICATED,
) -> NextReplicas:
    """Choose leader and replicas of the segment after an ACTIVE one; fewer than asked for when there are fewer nodes.

    `holders` have all of the segment before, so one of them leads the next: it knows the producers at its end. When
    none is named or among `nodes` it is a member of the ISR, and any node only when none of those is there either.
    After a Direct segment any node is as good: the object store has all of it. `led` counts what each node leads.
    Raises: Unavailable without any node.
    """
    if not nodes:
        raise Unavailable("no storage node is alive, so the next segment has nowhere to go: start one, then retry")
    own = dict(weights_of(before))
    racks = {node.node_id: node.rack for node in nodes}
    others = {node_id: load.get(node_id, 0) - own.get(node_id, 0) for node_id in racks}
    leads = {node_id: led.get(node_id, 0) - (own.get(node_id) == LEADER_WEIGHT) for node_id in racks}

    def as_leader(node_id: int) -> tuple[int, bool, int, int]:
        led_there = weighed(leads[node_id], node_id, scarcities)
        load_there = weighed(others[node_id], node_id, scarcities)
        return (led_there, node_id != before.leader, load_there, node_id)

    def as_follower(node_id: int) -> tuple[bool, int, bool, int]:
        rack = racks[node_id]
        load_there = weighed(others[node_id], node_id, scarcities)
        return (rack is not None and rack in used_racks, load_there, node_id not in before.replicas, node_id)

    informed = racks.keys() if before.is_direct else racks.keys() & {*before.isr}
    able = next(some for some in (racks.keys() & {*holders}, informed, racks.keys()) if some)
    leader = min(able, key=as_leader)
    chosen = [leader]
    used_racks = {racks[leader]}
    left = racks.keys() - {leader}
    while left and len(chosen) < replication_factor:
        follower = min(left, key=as_follower)
        left.remove(follower)
        chosen.append(follower)
        used_racks.add(racks[follower])
    return NextReplicas(leader, tuple(chosen), policy)
