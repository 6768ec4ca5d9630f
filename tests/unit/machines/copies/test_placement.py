"""Where new segments go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.copies.placement import place
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.metadata import NodeInfo


def nodes(*racks: str | None) -> list[NodeInfo]:
    return [NodeInfo(number, "storage", "host", 9092, rack) for number, rack in enumerate(racks, 1)]


def test_without_nodes_nothing_is_placed_yet() -> None:
    with pytest.raises(Unavailable):
        place(1, 1, [], {})


def test_more_replicas_than_nodes_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        place(1, 3, nodes(None, None), {})


def test_a_loaded_node_waits_until_the_others_have_caught_up() -> None:
    placed = place(4, 1, nodes(None, None, None), {1: 4})
    assert [replicas[0] for replicas in placed] == [2, 3, 2, 3]


def test_replicas_are_spread_over_racks() -> None:
    for replicas in place(20, 2, nodes("a", "a", "a", "b"), {}):
        assert 4 in replicas and len(set(replicas)) == 2


def test_replicas_share_a_rack_only_when_there_are_too_few() -> None:
    (replicas,) = place(1, 3, nodes("a", "a", "b"), {})
    assert set(replicas) == {1, 2, 3}


def test_each_rack_leads_a_shard_of_a_topic_before_one_leads_two() -> None:
    """A loaded zone, too: its producers find a leader there (KIP-1123)."""
    members = nodes("a", "a", "b", "c")
    placed = place(3, 1, members, {3: 40, 4: 80})
    assert sorted(replicas[0] for replicas in placed) == [1, 3, 4]
    more = place(5, 1, members, {3: 40, 4: 80}, led_racks={"a", "b", "c"})
    assert {replicas[0] for replicas in more} == {1, 2}, "after that the load decides"


def test_shards_that_a_topic_gets_later_go_first_to_racks_that_lead_none_of_it() -> None:
    assert place(1, 1, nodes("a", "b"), {2: 40}, led_racks={"a"}) == [(2,)]


def test_no_leader_goes_to_a_rack_for_its_sake_if_the_disks_there_are_filling() -> None:
    assert place(2, 1, nodes("a", "b"), {}, {2: 3}) == [(1,), (1,)]


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=8),
    load=st.lists(st.integers(0, 50), min_size=8, max_size=8),
    replication_factor=st.integers(1, 3),
    shard_count=st.integers(1, 12),
)
def test_a_topic_is_led_in_as_many_racks_as_it_can_be(
    racks: list[str], load: list[int], replication_factor: int, shard_count: int
) -> None:
    members = nodes(*racks)
    placed = place(shard_count, min(replication_factor, len(members)), members, dict(enumerate(load, 1)))
    led = {racks[replicas[0] - 1] for replicas in placed}
    assert len(led) == min(shard_count, len(set(racks)))
    assert all(len(set(replicas)) == len(replicas) for replicas in placed)


@given(
    shard_count=st.integers(1, 40),
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8),
    replication_factor=st.integers(1, 8),
)
def test_every_placement_names_different_nodes_and_spreads_evenly(
    shard_count: int, racks: list[str | None], replication_factor: int
) -> None:
    members = nodes(*racks)
    replication_factor = min(replication_factor, len(members))
    placed = place(shard_count, replication_factor, members, {})
    assert len(placed) == shard_count
    for replicas in placed:
        assert len(set(replicas)) == replication_factor
        known = [member.rack for member in members if member.node_id in replicas]
        named = [rack for rack in known if rack is not None]
        all_racks = {member.rack for member in members}
        if None not in all_racks and replication_factor <= len(all_racks):
            assert len(set(named)) == replication_factor
    if replication_factor == 1:
        counts = [sum(member.node_id in replicas for replicas in placed) for member in members]
        assert max(counts) - min(counts) <= 1


def test_a_node_whose_disk_fills_gets_less_of_what_is_new() -> None:
    placed = place(90, 1, nodes(None, None, None), {}, {3: 1})
    assert [sum(replica == (node,) for replica in placed) for node in (1, 2, 3)] == [36, 36, 18]
    assert all(3 not in replicas for replicas in place(6, 1, nodes(None, None, None), {}, {3: 3}))
