"""What the shards of a cluster come to: which are unwell, bytes by tier, what nodes and mounts have."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest

from stratalog.machines.plans.cluster_outline import MAX_UNWELL, health, sums
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, SealRecord, Segment, SegmentState
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.outline import MountSums, NodeSums, ShardHealth, Sums, TopicSums

TOPIC = UUID(int=7)
T = TypeVar("T")


def _segment(base: int, *, sealed: bool, cold: int = 0, whole: bool = False, copies: tuple[int, ...] = ()) -> Segment:
    """100 bytes and ten records; `cold` bytes are in the object store."""
    key = SegmentKey(TOPIC, 0, base // 10, base)
    record = SealRecord(base // 10, base, base + 10, 0, 0, 100, b"", NO_PRODUCERS, copies, 0)
    parts = (RemotePart("key", 0, cold, base, base + 5),) if cold and not whole else ()
    state = RemoteState.COMPLETE if whole else RemoteState.PARTIAL if cold else RemoteState.NONE
    remote = RemoteCopy(state, parts=parts, size_bytes=cold if whole else 0)
    return Segment(
        key, SegmentState.SEALED if sealed else SegmentState.ACTIVE, None if sealed else 1, (1, 2), (1, 2), 0, 0,
        seal=record if sealed else None, local_nodes=copies, remote=remote,
    )  # fmt: skip


def _done(steps: Generator[None, None, T]) -> T:
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
    found: T = done.value.value
    return found


def _summed(snapshot: Snapshot) -> Sums:
    return _done(sums(snapshot))


def test_bytes_are_summed_up_by_tier_and_what_is_not_sent_is_reported() -> None:
    segments = (
        _segment(10, sealed=True, cold=100, whole=True),
        _segment(20, sealed=True, cold=30, copies=(1, 2)),
        _segment(30, sealed=False, cold=7),
    )
    shard = Shard(ShardKey(TOPIC, 0), 10, segments)
    topic = Topic("orders", TOPIC, 1, 2, {}, 0)
    mount = Mount(
        "january", MountMode.HAND_MADE, -1, "", MountState.SERVING, 1, 0,
        topics=(MountedTopic(TOPIC, "orders", (OffsetRange(10, 30),)),),
    )  # fmt: skip
    nodes = tuple(Node(number, f"disk-{number}", "host", 1) for number in (1, 2))
    snapshot = Snapshot(1, topics=(topic,), shards=(shard,), nodes=nodes, mounts=(mount,))
    found = _summed(snapshot)

    assert found.topics == (TopicSums(TOPIC, hot_bytes=200, cold_bytes=137, unsent_bytes=70, oldest_offset=10),)
    assert found.nodes == (NodeSums(1, segments=2, leaders=1), NodeSums(2, segments=2, leaders=0))
    assert found.mounts == (MountSums("january", segments=2, bytes=200, ranges=()),)


@pytest.mark.parametrize(("firsts", "oldest"), [((10, 30, 20), 10), ((30, 0), 0), ((40,), 40), ((), 0)])
def test_the_oldest_offset_of_a_topic_is_the_smallest_of_its_shards(firsts: tuple[int, ...], oldest: int) -> None:
    """Not shard 0's alone: that may have been emptied while another one still has everything."""
    shards = tuple(Shard(ShardKey(TOPIC, number), first, ()) for number, first in enumerate(firsts))
    topic = Topic("orders", TOPIC, max(1, len(firsts)), 2, {}, 0)

    assert _summed(Snapshot(1, (topic,), shards, ())).topics[0].oldest_offset == oldest


def test_the_volume_of_a_node_that_left_says_what_is_on_it() -> None:
    """By the segments that list the node: the mount itself names no topics."""
    segments = (
        _segment(10, sealed=True, copies=(3,)),
        _segment(20, sealed=True, copies=(1, 3)),
        _segment(30, sealed=True, copies=(1,)),
        _segment(40, sealed=True, copies=(3,)),
        _segment(50, sealed=False),
    )
    shard = Shard(ShardKey(TOPIC, 0), 10, segments)
    topic = Topic("orders", TOPIC, 1, 2, {}, 0)
    volume = Mount("tier/3", MountMode.VOLUME, 3, "disk-3", MountState.SERVING, 1, 0)
    offloaded = Mount("tier/1", MountMode.OFFLOAD, 1, "disk-1", MountState.SERVING, 1, 0)
    found = _summed(Snapshot(1, (topic,), (shard,), (), (volume, offloaded))).mounts

    assert found == (MountSums("tier/3", 3, 300, ("orders/0 10..30", "orders/0 40..50")),)


def _shards(*isr: tuple[int, ...], settings: dict[str, str] | None = None) -> Snapshot:
    """A topic of a shard for each, with the replicas 1 and 2 and that ISR."""
    shards = tuple(
        Shard(ShardKey(TOPIC, number), 0, (replace(_segment(0, sealed=False), isr=one),))
        for number, one in enumerate(isr)
    )
    topic = Topic("orders", TOPIC, len(isr), 2, settings or {}, 0)
    return Snapshot(1, (topic,), shards, tuple(Node(number, f"disk-{number}", "host", 1) for number in (1, 2)))


def _health(snapshot: Snapshot, min_in_sync: int = 1) -> ShardHealth:
    return _done(health(snapshot, min_in_sync))


@pytest.mark.fault("cluster-hundreds-thousands-segments")
def test_shards_that_would_lose_something_by_one_node_less_are_named_and_counted() -> None:
    snapshot = _shards(*[(1,)] * 30, (1, 2), settings={"min.insync.replicas": "2"})
    found = _health(snapshot)

    assert len(found.unwell) == MAX_UNWELL and found.unwell_count == 30
    assert found.unwell[0].startswith("shard 0 of orders: 1 of 2 replicas in sync")
    assert [one.topic for one in found.topics] == ["orders"]


def test_replicas_that_are_behind_are_named_by_their_nodes() -> None:
    found = _health(_shards((1,), (1, 2)))

    assert found.unwell == () and found.behind == (2,)


def test_a_topic_that_says_nothing_has_the_default_of_the_processes() -> None:
    assert _health(_shards((1,)), min_in_sync=2).unwell_count == 1
    assert _health(_shards((1,)), min_in_sync=1).unwell_count == 0


def test_a_topic_that_asks_for_more_in_sync_than_it_has_replicas_is_left_out() -> None:
    assert _health(_shards((1,), settings={"min.insync.replicas": "3"})).unwell == ()
