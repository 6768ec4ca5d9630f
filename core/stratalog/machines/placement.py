"""Where new segments go: the least loaded nodes, spread over racks.

Pure. Load is the number of active replicas a node has, with a leader counted twice, for it also serves the clients.
Ties fall to the lower node id, so the same table gives the same placement.

Cost: O(shards x replication factor x log nodes) when racks are few or as many as replicas need.
Source: docs/design.md section 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.metadata import NodeInfo

LEADER_WEIGHT = 2
FOLLOWER_WEIGHT = 1


def place(
    shard_count: int, replication_factor: int, nodes: Sequence[NodeInfo], load: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Choose the replicas of `shard_count` new segments; the first of each is its leader.

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
    heap = [(load.get(node.node_id, 0), node.node_id) for node in nodes]
    heapq.heapify(heap)
    return [_place_one(replication_factor, heap, racks) for _ in range(shard_count)]


def _place_one(
    replication_factor: int, heap: list[tuple[int, int]], racks: Mapping[int, str | None]
) -> tuple[int, ...]:
    """Take the least loaded nodes of different racks; a rack comes twice only when there is no other left."""
    chosen: list[tuple[int, int]] = []
    passed_over: list[tuple[int, int]] = []
    used_racks: set[str] = set()
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
    for position, (weight, node_id) in enumerate(chosen):
        added = LEADER_WEIGHT if position == 0 else FOLLOWER_WEIGHT
        heapq.heappush(heap, (weight + added, node_id))
    return tuple(node_id for _, node_id in chosen)
