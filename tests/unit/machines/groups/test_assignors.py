"""Server-side assignors: every shard goes to a subscriber, evenly, and little moves."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.groups.assignors import ASSIGNORS, Subscriber, by_range, uniform
from stratalog.model.ids import ShardKey

TOPICS = [UUID(int=number) for number in range(1, 5)]

topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1)
wishes = st.frozensets(st.sampled_from(TOPICS))
groups = st.dictionaries(st.sampled_from([f"m{number}" for number in range(8)]), wishes)


def subscribers(
    members: dict[str, frozenset[UUID]], targets: dict[str, frozenset[ShardKey]] | None = None
) -> dict[str, Subscriber]:
    return {name: Subscriber(name, wanted, (targets or {}).get(name, frozenset())) for name, wanted in members.items()}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=groups, counts=topics, before=groups)
def test_each_shard_goes_to_one_member_that_subscribes_to_it(
    name: str, members: dict[str, frozenset[UUID]], counts: dict[UUID, int], before: dict[str, frozenset[UUID]]
) -> None:
    former = ASSIGNORS[name](subscribers(before), counts)
    found = ASSIGNORS[name](subscribers(members, former), counts)

    given_out = [shard for shards in found.values() for shard in shards]
    wanted = frozenset().union(*members.values()) & counts.keys()
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == {ShardKey(topic, index) for topic in wanted for index in range(counts[topic])}
    assert all(shard.topic_id in members[member] for member, shards in found.items() for shard in shards)
    assert found.keys() == members.keys()


@given(members=groups, counts=topics, before=groups)
def test_uniform_leaves_no_shard_with_a_member_that_has_two_more_than_another_that_wants_it(
    members: dict[str, frozenset[UUID]], counts: dict[UUID, int], before: dict[str, frozenset[UUID]]
) -> None:
    found = uniform(subscribers(members, uniform(subscribers(before), counts)), counts)
    for member, shards in found.items():
        for shard in shards:
            others = [len(found[other]) for other, wanted in members.items() if shard.topic_id in wanted]
            assert len(found[member]) <= min(others) + 1


@given(members=groups, counts=topics)
def test_uniform_moves_nothing_when_nothing_changed(
    members: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    found = uniform(subscribers(members), counts)
    assert uniform(subscribers(members, found), counts) == found


@settings(max_examples=200)
@given(count=st.integers(1, 30), shards=st.integers(1, 100), leaves=st.booleans())
def test_uniform_moves_no_more_than_it_must_when_one_comes_or_goes(count: int, shards: int, leaves: bool) -> None:
    wanted = frozenset(TOPICS[:1])
    members = {f"m{number:02}": wanted for number in range(count)}
    before = uniform(subscribers(members), {TOPICS[0]: shards})
    if leaves and count > 1:
        gone = before.pop("m00")
        del members["m00"]
        least = len(gone)
    else:
        members["new"] = wanted
        least = shards // (count + 1)
    after = uniform(subscribers(members, before), {TOPICS[0]: shards})
    moved = sum(len(shards_ - before.get(member, frozenset())) for member, shards_ in after.items())
    assert moved <= least + (0 if leaves and count > 1 else 1)


def test_range_gives_the_same_indexes_of_equally_large_topics_to_the_same_member() -> None:
    members = {name: frozenset(TOPICS[:2]) for name in ("b", "a", "c")}
    found = by_range(subscribers(members), {TOPICS[0]: 7, TOPICS[1]: 7})
    by_member = {
        name: [sorted(shard.shard for shard in shards if shard.topic_id == topic) for topic in TOPICS[:2]]
        for name, shards in found.items()
    }
    assert by_member == {"a": [[0, 1, 2]] * 2, "b": [[3, 4]] * 2, "c": [[5, 6]] * 2}


def test_ten_thousand_shards_of_many_topics_are_given_to_a_thousand_members_of_different_wishes() -> None:
    counts = {UUID(int=number): 100 for number in range(1, 101)}
    members = {
        f"m{number}": frozenset(UUID(int=1 + (number * step) % 100) for step in (1, 3, 7)) for number in range(1000)
    }
    found = uniform(subscribers(members), counts)
    assert sum(map(len, found.values())) == 10_000
