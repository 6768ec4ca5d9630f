"""Consumers of the classic protocol, behaving as real clients: eager ones give up all shards before they join;
cooperative ones keep theirs, and give up later those that they are no longer assigned. The group's leader assigns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stratalog.kafka.subscription import read_assignment, read_subscription, write_assignment
from stratalog.machines.groups.classic_members import placed
from stratalog.machines.groups.group_events import JoinAnswer, JoinedMember, SyncAnswer
from stratalog.model.groups.consumer_group import PlacesByName
from stratalog.model.groups.group import GroupError, MemberProtocol
from stratalog.model.ids import ShardKey
from support.seen_topics import Topics

LOST = (GroupError.UNKNOWN_MEMBER_ID, GroupError.ILLEGAL_GENERATION, GroupError.FENCED_INSTANCE_ID)


@dataclass
class ClassicClient:
    """One member's process. `phase` is what it sends next: join, sync or beat."""

    name: str
    names: tuple[str, ...]
    is_cooperative: bool
    topics: Topics
    member_id: str = ""
    generation: int = -1
    owned: frozenset[ShardKey] = frozenset()
    to_give_up: frozenset[ShardKey] = frozenset()
    phase: str = "join"
    given: tuple[tuple[str, bytes], ...] = ()
    asks: dict[int, bool] = field(default_factory=dict)
    """Waiter -> whether the client will hear the answer."""

    @property
    def protocols(self) -> tuple[MemberProtocol, ...]:
        name = "cooperative" if self.is_cooperative else "range"
        return (MemberProtocol(name, metadata(self.names, by_name(self.owned, self.topics))),)

    def begins_to_join(self) -> None:
        if not self.is_cooperative:
            self.owned = frozenset()

    def hears_join(self, answer: JoinAnswer) -> None:
        if answer.error is not GroupError.NONE:
            self.fails(answer.error)
            return
        self.member_id, self.generation, self.phase = answer.member_id, answer.generation, "sync"
        self.given = assigned(answer.members, self.topics) if answer.leader == answer.member_id else ()

    def hears_share(self, answer: SyncAnswer) -> None:
        if answer.error is not GroupError.NONE:
            self.fails(answer.error)
            return
        places = read_assignment(answer.assignment)
        assert places is not None
        share = placed(places, self.topics)
        self.to_give_up = self.owned - share
        self.owned |= share
        self.phase = "beat"

    def fails(self, error: GroupError) -> None:
        self.phase = "join"
        if error in LOST:
            self.owned = self.to_give_up = frozenset()
        if error is GroupError.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def gives_up(self) -> None:
        if self.to_give_up:
            self.owned, self.to_give_up, self.phase = self.owned - self.to_give_up, frozenset(), "join"


def by_name(shards: Iterable[ShardKey], topics: Topics) -> tuple[PlacesByName, ...]:
    found: dict[str, list[int]] = {}
    for topic_id, shard in sorted(shards):
        found.setdefault(topics.name_of(topic_id), []).append(shard)
    return tuple(PlacesByName(name, tuple(indexes)) for name, indexes in found.items())


def metadata(names: Iterable[str], owned: Iterable[PlacesByName]) -> bytes:
    """A subscription of version 1."""
    texts = [struct.pack(">h", len(name.encode())) + name.encode() for name in names]
    return struct.pack(">hi", 1, len(texts)) + b"".join(texts) + struct.pack(">i", -1) + write_assignment(owned)[2:-4]


def assigned(members: Iterable[JoinedMember], topics: Topics) -> tuple[tuple[str, bytes], ...]:
    """What a leader gives out: to each about as much, and nothing that another one still owns."""
    wishes = {member.member_id: read_subscription(member.metadata) for member in members}
    owners: dict[ShardKey, str] = {}
    able: dict[str, set[str]] = {}
    for member_id, wish in wishes.items():
        assert wish is not None
        for shard in placed(wish.owned, topics):
            owners.setdefault(shard, member_id)
        for name in wish.topics:
            able.setdefault(name, set()).add(member_id)
    wanted = _shared(able, owners, topics)
    given: dict[str, list[ShardKey]] = {member_id: [] for member_id in wishes}
    for shard, member_id in wanted.items():
        if owners.get(shard, member_id) == member_id:
            given[member_id].append(shard)
    return tuple((member_id, write_assignment(by_name(shards, topics))) for member_id, shards in given.items())


def _shared(able: Mapping[str, set[str]], owners: Mapping[ShardKey, str], topics: Topics) -> dict[ShardKey, str]:
    loads: dict[str, int] = {}
    wanted: dict[ShardKey, str] = {}
    for name in sorted(able):
        seen = topics.topic(name)
        for index in range(seen.shards if seen is not None else 0):
            assert seen is not None
            shard = ShardKey(seen.topic_id, index)
            chosen = min(able[name], key=lambda one: (loads.get(one, 0), owners.get(shard) != one, one))
            wanted[shard] = chosen
            loads[chosen] = loads.get(chosen, 0) + 1
    return wanted
