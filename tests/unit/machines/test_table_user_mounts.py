"""A mount that a person makes has whole sealed segments with data of the requested time, and does not change."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from stratalog.model.commands.mount_commands import CreateMount, EndMount, MountCut, MoveMount, TakeMount
from stratalog.model.commands.table_commands import AdvanceLogStart, DeleteTopic, SealSegment
from stratalog.model.cut import CutShard
from stratalog.model.errors import AlreadyExists, Conflict, Fenced, InvalidRequest, NotFound
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import MountEnded
from stratalog.model.mounts import MountMode, MountState, OffsetRange
from stratalog.model.segment import TimesKnown
from stratalog.model.topic import Topic
from support.table_stories import TableStory, record_of


def with_months(story: TableStory, name: str = "flights", shards: int = 1) -> Topic:
    """Each shard has three sealed segments: times 0-99, 100-199, 200-299, ten records each; and an active one."""
    topic = story.topic(name, shards=shards)
    for shard in range(shards):
        for month in range(3):
            key = story.active(topic, shard).key
            story.roll(key, (month + 1) * 10)
            times = {"first_timestamp_ms": month * 100, "max_timestamp_ms": month * 100 + 99}
            record = replace(record_of(key, (month + 1) * 10), **times, times_known=TimesKnown.ALL)
            story.do(SealSegment(key, record))
    return topic


@pytest.mark.parametrize(
    ("from_ms", "until_ms", "found"),
    [(100, 200, (10, 20)), (99, 201, (0, 30)), (150, 151, (10, 20)), (-5, 1, (0, 10)), (250, 9_999, (20, 30))],
)
def test_a_range_is_of_whole_segments_that_have_something_of_that_time(
    from_ms: int, until_ms: int, found: tuple[int, int]
) -> None:
    story = TableStory()
    with_months(story, shards=2)
    mount = story.do(CreateMount("month", ("flights",), from_ms, until_ms)).result
    assert mount.topics[0].ranges == (OffsetRange(*found),) * 2
    assert (mount.mode, mount.state, mount.holder, mount.expires_ms) == (
        MountMode.HAND_MADE,
        MountState.SERVING,
        None,
        0,
    )
    assert mount.topics[0].as_topic(mount).name == "flights@month"


def test_a_segment_whose_times_only_headers_have_is_mounted_with_the_others() -> None:
    """A client may have claimed any time."""
    story = TableStory()
    topic = story.topic("flights")
    for claimed_ms in (-1, 10**15):
        key = story.active(topic, 0).key
        end_offset = key.base_offset + 10
        story.roll(key, end_offset)
        times = {"first_timestamp_ms": claimed_ms, "max_timestamp_ms": claimed_ms}
        story.do(SealSegment(key, replace(record_of(key, end_offset), **times)))
    mount = story.do(CreateMount("month", ("flights",), 100, 200)).result
    assert mount.topics[0].ranges == (OffsetRange(0, 20),)


def test_what_cannot_be_mounted_is_refused_in_words() -> None:
    story = TableStory()
    with_months(story)
    for name in ("", "a/b", "a@b", "x" * 101):
        with pytest.raises(InvalidRequest, match="a name has"):
            story.do(CreateMount(name, ("flights",), 0, 1))
    with pytest.raises(InvalidRequest, match="not after its begin"):
        story.do(CreateMount("a", ("flights",), 5, 5))
    with pytest.raises(InvalidRequest, match="1 to 1000 topics"):
        story.do(CreateMount("a", (), 0, 1))
    with pytest.raises(NotFound, match="'trains' does not exist"):
        story.do(CreateMount("a", ("flights", "trains"), 0, 1))
    with pytest.raises(NotFound, match="no sealed segment"):
        story.do(CreateMount("a", ("flights",), 300, 400))
    story.do(CreateMount("a", ("flights",), 0, 1))
    with pytest.raises(AlreadyExists, match="'a' exists"):
        story.do(CreateMount("a", ("flights",), 0, 1))


def test_it_has_no_holder_ends_on_request_and_may_be_made_again_under_another_id() -> None:
    story = TableStory(2)
    with_months(story)
    story.now_ms = 5_000
    first = story.do(CreateMount("a", ("flights",), 0, 100, lasts_ms=60_000)).result
    assert first.expires_ms == 65_000
    story.die(1, 2)
    story.is_heard(1)
    assert story.table.state.mounts["a"] == first, "who lives is nothing to it"
    with pytest.raises(Conflict, match="created by a user"):
        story.do(MoveMount("a"))
    with pytest.raises(Fenced):
        story.do(TakeMount("a", 0, caller=story.life(1)))
    with pytest.raises(InvalidRequest, match="has no data of its own to give up"):
        story.do(EndMount("a", "storage-1"))
    ended = story.do(EndMount("a")).change_set
    assert ended is not None and ended.changes == (MountEnded("a"),)
    story.now_ms = 6_000
    second = story.do(CreateMount("a", ("flights",), 0, 100)).result
    assert second.topics[0].as_topic(second).topic_id != first.topics[0].as_topic(first).topic_id


@pytest.mark.fault("mount-ends-clients-read")
def test_a_deleted_topic_leaves_its_mounts_and_ends_those_of_it_alone() -> None:
    story = TableStory()
    flights, trains = with_months(story), with_months(story, "trains")
    story.do(CreateMount("both", ("flights", "trains"), 0, 100))
    story.do(CreateMount("one", ("flights",), 0, 100))
    story.do(DeleteTopic(flights.topic_id))
    assert [topic.name for topic in story.table.state.mounts["both"].topics] == ["trains"]
    assert "one" not in story.table.state.mounts
    story.do(DeleteTopic(trains.topic_id))
    assert not story.table.state.mounts


# Of a snapshot ------------------------------------------------------------------------------------------------------
def cut_of(topic: Topic, *ends: int, log_start: int = 0, epoch: int = 2) -> tuple[CutShard, ...]:
    return tuple(
        CutShard(ShardKey(topic.topic_id, shard), log_start, end, epoch) for shard, end in enumerate(ends) if end >= 0
    )


def test_a_snapshots_mount_has_its_offsets_even_inside_a_segment() -> None:
    story = TableStory()
    topic = with_months(story, shards=4)
    story.now_ms = 100
    mount = story.do(MountCut("june", cut_of(topic, 17, 30, -1, 4, log_start=3), lasts_ms=50)).result

    assert mount.topics[0].ranges == (OffsetRange(3, 17), OffsetRange(3, 30), OffsetRange(0, 0), OffsetRange(3, 4))
    assert (mount.mode, mount.state, mount.expires_ms) == (MountMode.HAND_MADE, MountState.SERVING, 150)
    assert mount.topics[0].as_topic(mount).name == "flights@june"


def test_what_retention_took_of_a_snapshot_is_not_in_its_mount() -> None:
    story = TableStory()
    topic = with_months(story, shards=2)
    for shard in range(2):
        story.do(AdvanceLogStart(ShardKey(topic.topic_id, shard), 12))
    mount = story.do(MountCut("june", cut_of(topic, 17, 9))).result

    assert mount.topics[0].ranges == (OffsetRange(12, 17), OffsetRange(9, 9))
    with pytest.raises(NotFound, match="retention has left nothing"):
        story.do(MountCut("may", cut_of(topic, 12, 9)))


def test_a_snapshot_that_the_log_does_not_have_so_is_refused() -> None:
    story = TableStory()
    topic = with_months(story)
    with pytest.raises(Conflict, match="offsets from 30 on are not sealed yet"):
        story.do(MountCut("a", cut_of(topic, 31, epoch=3)))
    with pytest.raises(Conflict, match="offset 10 has epoch 1 now, and 0 at most"):
        story.do(MountCut("a", cut_of(topic, 17, epoch=0)))
    with pytest.raises(NotFound, match="has been deleted"):
        story.do(MountCut("a", (CutShard(ShardKey(uuid4(), 0), 0, 5, 0),)))
    with pytest.raises(InvalidRequest, match="a name has"):
        story.do(MountCut("a/b", cut_of(topic, 17)))
    story.do(MountCut("a", cut_of(topic, 17)))
    with pytest.raises(AlreadyExists, match="'a' exists"):
        story.do(MountCut("a", cut_of(topic, 17)))
    story.do(DeleteTopic(topic.topic_id))
    assert not story.table.state.mounts
