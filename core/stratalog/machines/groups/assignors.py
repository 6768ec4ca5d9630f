"""Who of a group's members is to have which shards, decided by the coordinator: the server-side assignors of KIP-848.

Both are functions of the subscriptions, the topics and the targets before. `uniform` spreads shards evenly and moves as
few as it can; `range` gives each member a stretch of each topic, so that the same shards of topics with equally many
go to the same member. Pure. Cost: about 1 us a shard where all subscribe to the same, else 3 to 10 us.
Source: KIP-848, "Server-side Assignors".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappush, heapreplace
from typing import Final, TypeAlias
from uuid import UUID

from stratalog.model.ids import ShardKey

Shards: TypeAlias = frozenset[ShardKey]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    name: str
    """It is ordered by: the instance id of a static member, which survives it, else the member id."""
    topics: frozenset[UUID]
    target: Shards
    """What it was to have so far."""


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Shards]]
"""Members by id and shards by topic -> the assignment of each member. Each shard of a subscribed topic goes to one of
its subscribers."""


def uniform(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Shards]:
    order = sorted(members, key=lambda member_id: (members[member_id].name, member_id))
    if len({members[member_id].topics for member_id in order}) <= 1:
        return _uniform_for_all(members, order, topics)
    return _uniform_by_topic(members, order, topics)


def _uniform_for_all(
    members: Mapping[str, Subscriber], order: list[str], topics: Mapping[UUID, int]
) -> dict[str, Shards]:
    if not order:
        return {}
    subscribed = sorted(members[order[0]].topics & topics.keys())
    shards = [ShardKey(topic, index) for topic in subscribed for index in range(topics[topic])]
    fair, larger = divmod(len(shards), len(order))
    wanted, taken = set(shards), set[ShardKey]()
    kept: dict[str, list[ShardKey]] = {}
    # Those with most keep the larger shares: fewer shards move.
    for member_id in sorted(order, key=lambda one: -len(members[one].target)):
        own = sorted(shard for shard in members[member_id].target if shard in wanted and shard not in taken)
        share = fair
        if len(own) > fair and larger:
            share, larger = fair + 1, larger - 1
        kept[member_id] = own[:share]
        taken.update(kept[member_id])
    free = iter([shard for shard in shards if shard not in taken])
    for member_id in order:
        own = kept[member_id]
        while len(own) < fair:
            own.append(next(free))
    for member_id in order:
        if larger and len(kept[member_id]) == fair:
            larger -= 1
            kept[member_id].append(next(free))
    return {member_id: frozenset(own) for member_id, own in kept.items()}


def _uniform_by_topic(
    members: Mapping[str, Subscriber], order: list[str], topics: Mapping[UUID, int]
) -> dict[str, Shards]:
    able: dict[UUID, list[str]] = {}
    for member_id in order:
        for topic in members[member_id].topics & topics.keys():
            able.setdefault(topic, []).append(member_id)
    owner: dict[ShardKey, str] = {}
    loads = _Loads(able, order)
    for member_id in order:
        for shard in members[member_id].target:
            should_follow = shard.topic_id in members[member_id].topics and shard.shard < topics.get(shard.topic_id, 0)
            if should_follow and shard not in owner:
                owner[shard] = member_id
                loads.change(member_id, 1)
    # Topics that few can take go first: the others' shards make up for it.
    by_choice = sorted(able, key=lambda topic: (len(able[topic]), topic))
    shards = [ShardKey(topic, index) for topic in by_choice for index in range(topics[topic])]
    for shard in shards:
        if shard not in owner:
            owner[shard] = loads.least(shard.topic_id)
            loads.change(owner[shard], 1)
    has_moved = True
    while has_moved:  # each move makes the sum of the squares of all loads smaller: this ends
        has_moved = False
        for shard in shards:
            present, other = owner[shard], loads.least(shard.topic_id)
            if loads.of[present] > loads.of[other] + 1:
                owner[shard] = other
                loads.change(present, -1)
                loads.change(other, 1)
                has_moved = True
    found: dict[str, set[ShardKey]] = {member_id: set() for member_id in order}
    for shard, member_id in owner.items():
        found[member_id].add(shard)
    return {member_id: frozenset(own) for member_id, own in found.items()}


class _Loads:
    """How many shards each member has, and which member has the fewest of those that can take a topic."""

    def __init__(self, able: Mapping[UUID, list[str]], order: list[str]) -> None:
        self.of = dict.fromkeys(order, 0)
        self._place = {member_id: place for place, member_id in enumerate(order)}
        self._heaps = {topic: [(0, self._place[one], one) for one in members] for topic, members in able.items()}
        self._topics: dict[str, list[UUID]] = {member_id: [] for member_id in order}
        for topic, members in able.items():
            for member_id in members:
                self._topics[member_id].append(topic)

    def change(self, member_id: str, by: int) -> None:
        self.of[member_id] += by
        if by < 0:  # what is in a heap may be too little, never too much
            for topic in self._topics[member_id]:
                heappush(self._heaps[topic], (self.of[member_id], self._place[member_id], member_id))

    def least(self, topic: UUID) -> str:
        heap = self._heaps[topic]
        while heap[0][0] < self.of[heap[0][2]]:
            _, place, member_id = heap[0]
            heapreplace(heap, (self.of[member_id], place, member_id))
        return heap[0][2]


def by_range(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Shards]:
    order = sorted(members, key=lambda member_id: (members[member_id].name, member_id))
    found: dict[str, set[ShardKey]] = {member_id: set() for member_id in order}
    for topic, count in topics.items():
        able = [member_id for member_id in order if topic in members[member_id].topics]
        begin = 0  # a topic without subscribers is not assigned
        for place, member_id in enumerate(able):
            size = count // len(able) + (place < count % len(able))
            found[member_id].update(ShardKey(topic, index) for index in range(begin, begin + size))
            begin += size
    return {member_id: frozenset(own) for member_id, own in found.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": by_range}
DEFAULT_ASSIGNOR: Final = "uniform"
