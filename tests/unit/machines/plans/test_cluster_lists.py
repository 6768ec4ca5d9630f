"""Lists of the cluster UI: searched, sorted and paged, with work that is bounded by the page."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.plans.cluster_lists import (
    MAX_TROUBLES_KEPT,
    page_of,
    segment_page,
    shard_page,
    topic_page,
    trouble_page,
)
from stratalog.machines.plans.shard_troubles import Trouble, TroubleKind
from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Node
from stratalog.model.segment import RemoteCopy, RemoteState, Segment, SegmentState
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.cluster_lists import MAX_LISTED, ListAsk, SegmentPage
from stratalog.model.views.outline import TopicSums
from support.meta_worlds import seal_record

T = TypeVar("T")
NODES = [Node(1, "one", "a", 1), Node(2, "two", "b", 2, is_alive=False)]


def ended(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            made: T = done.value
            return made


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 5))),
    st.integers(0, 20),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(["", "size"]),
)
def test_pages_beside_each_other_are_the_whole_list(
    rows: list[tuple[str, int]], search: int, size: int, is_descending: bool, sort: str
) -> None:
    text = str(search % 10) if search < 10 else ""
    ask = ListAsk(text, sort, is_descending, 0, size)
    columns = {"size": lambda row: row[1]}
    found: list[tuple[str, int]] = []
    total = 1
    while len(found) < total:
        some, total = page_of(rows, replace(ask, offset=len(found)), lambda row: row[0], columns)
        assert len(some) <= size
        found += some
    assert sorted(found) == sorted(row for row in rows if text in row[0])
    if sort:
        assert [row[1] for row in found] == sorted((row[1] for row in found), reverse=is_descending)


@pytest.mark.parametrize("ask", [ListAsk(limit=0), ListAsk(limit=MAX_LISTED + 1), ListAsk(sort="colour")])
def test_a_page_without_bounds_or_by_an_unknown_column_is_refused(ask: ListAsk) -> None:
    with pytest.raises(InvalidRequest):
        page_of([1, 2], ask, str, {"size": int})


def topic(number: int, **more: object) -> Topic:
    return replace(Topic(f"t{number}", UUID(int=number), 2, 1, {}, number), **more)  # type: ignore[arg-type]


def test_topics_come_by_name_with_their_sums_and_internal_ones_last() -> None:
    topics = [topic(2), topic(1), topic(0, name="a", is_internal=True)]
    sums = [TopicSums(UUID(int=2), 5, 7, 1, 0)]
    page = topic_page(topics, sums, {"t1": "x" * 1_000}, ListAsk())
    assert [one.name for one in page.items] == ["t1", "t2", "a"]
    assert [(one.hot_bytes, one.cold_bytes, one.unsent_bytes) for one in page.items] == [
        (0, 0, 0),
        (5, 7, 1),
        (0, 0, 0),
    ]
    assert page.items[0].trouble is not None and len(page.items[0].trouble) == 300
    by_trouble = topic_page(topics, sums, {"t2": "no leader"}, ListAsk(sort="trouble"))
    assert by_trouble.items[0].name == "t2"


def shard(number: int, *, leader: int = 1, sealed: int = 0) -> Shard:
    """With `sealed` sealed segments of ten offsets, each second one also in the object store, and an active one."""
    key = ShardKey(UUID(int=1), number)
    segments = []
    for epoch in range(sealed):
        segment = SegmentKey(key.topic_id, number, epoch, epoch * 10)
        end = (epoch + 1) * 10
        remote = (
            RemoteCopy(state=RemoteState.COMPLETE, commit_offset=end, size_bytes=100) if epoch % 2 else RemoteCopy()
        )
        found = Segment(
            segment, SegmentState.SEALED, None, (1, 2), (), 0, 0, end, seal_record(segment, end), (1,), remote
        )
        segments.append(found)
    active = SegmentKey(key.topic_id, number, sealed, sealed * 10)
    segments.append(Segment(active, SegmentState.ACTIVE, leader, (1, 2), (1,), 0, 0))
    return Shard(key, 0, tuple(segments))


def test_shards_are_found_by_number_or_by_their_leader_and_only_those_of_the_page_are_looked_at() -> None:
    shards = [shard(number, leader=1 + number % 2, sealed=4) for number in range(20)]
    page = ended(shard_page(topic(1), shards, NODES, 0, 1, ListAsk(limit=3, offset=3)))
    assert ([one.shard for one in page.items], page.total) == ([3, 4, 5], 20)
    first, second, _ = page.items
    assert (first.leader, second.leader) == (None, 1), "node 2 is not alive"
    assert (first.hot_bytes, first.cold_bytes, first.committed_cold, first.segments) == (40, 200, 40, 5)
    led = ended(shard_page(topic(1), shards, NODES, 0, 1, ListAsk("node 2")))
    assert [one.shard for one in led.items] == list(range(1, 20, 2))
    assert [one.shard for one in ended(shard_page(topic(1), shards, NODES, 0, 1, ListAsk("19"))).items] == [19]


def test_segments_come_newest_first_by_tier_and_by_the_offset_that_they_hold() -> None:
    one = shard(0, sealed=4)

    def page(ask: ListAsk, place: str = "") -> SegmentPage:
        return ended(segment_page(topic(1), one, NODES, 0, 1, ask, place))

    whole = page(ListAsk())
    assert [line.base_offset for line in whole.items] == [40, 30, 20, 10, 0]
    assert [(tier.place, tier.segments, tier.bytes) for tier in whole.tiers] == [
        ("open", 1, 0),
        ("local", 2, 20),
        ("both", 2, 20),
    ]
    assert [line.base_offset for line in page(ListAsk(), "both").items] == [30, 10]
    assert [line.base_offset for line in page(ListAsk("1,5")).items] == [10]
    assert [line.base_offset for line in page(ListAsk("99")).items] == [40], "the active one has no end"
    assert [line.base_offset for line in page(ListAsk(sort="offset", limit=2)).items] == [0, 10]
    for ask, place in ((ListAsk("x"), ""), (ListAsk(), "moon")):
        with pytest.raises(InvalidRequest):
            page(ask, place)


def trouble(number: int, kind: TroubleKind) -> Trouble:
    return Trouble("t", SegmentKey(UUID(int=1), number, 0, 0), kind, (1,), None, "words")


def test_troubles_are_chosen_by_kind_and_a_list_that_is_cut_says_so() -> None:
    found = [trouble(0, TroubleKind.NO_LEADER), trouble(1, TroubleKind.GIVEN_UP)]
    assert [one.shard for one in trouble_page(found, ListAsk(), "given_up").items] == [1]
    many = [trouble(number, TroubleKind.NO_LEADER) for number in range(MAX_TROUBLES_KEPT + 1)]
    page = trouble_page(many, ListAsk(limit=10))
    assert page.is_cut and page.total == MAX_TROUBLES_KEPT and len(page.items) == 10
    with pytest.raises(InvalidRequest):
        trouble_page([], ListAsk(), "colour")
