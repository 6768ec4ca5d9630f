"""What a snapshot of the metadata comes to: bytes by tier, what is not sent, how long the store is away."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stratalog.model.activity import UploadActivity
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, SealRecord, Segment, SegmentState
from stratalog.model.status_page import NodeRow, Overview, ShardSums, Tiers, TierSum
from stratalog.model.topic import Shard, Topic
from stratalog_operator.observe.sums import Sums, store_away_seconds, sums
from stratalog_operator.plan.observed import MountSums, NodeSums, TopicSums

TOPIC = UUID(int=7)


def _overview(*away_ms: int | None, state: str = "alive") -> Overview:
    none = TierSum(0, 0)
    rows = tuple(
        NodeRow(
            number, state, "host:1", None, 0, 0, 0, 25, 100, True,
            None if ms is None else UploadActivity(store_away_ms=ms), (), 0, "",
        )
        for number, ms in enumerate(away_ms)
    )  # fmt: skip
    nothing: Any = ()
    return Overview(
        cluster_id="c", version=1, now_ms=0, why_no_changes=None, nodes=rows, more_nodes=0,
        shards=ShardSums(0, 0, 0, 0, 0, 0), tiers=Tiers(none, none, none, none, 0), trouble_kinds=nothing,
        troubles=nothing, more_troubles=0, stopped=nothing, more_stopped=0, retirements=nothing, more_retirements=0,
        mounts=nothing, more_mounts=0, faults=nothing, more_faults=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("away_ms", "told"),
    [
        ((), None),
        ((None, None), None),
        ((0, 0), 0),
        ((0, 4_900), 0),
        ((0, 5_000), 5),
        ((12_000, 38_000), 30),
        ((200_000,), 180),
        ((7_300_000,), 7_200),
    ],
)
def test_how_long_the_store_is_away_is_told_in_steps_and_a_hiccup_is_not(
    away_ms: tuple[int | None, ...], told: int | None
) -> None:
    assert store_away_seconds(_overview(*away_ms)) == told


def test_a_node_that_is_not_alive_says_nothing_of_the_store() -> None:
    assert store_away_seconds(_overview(60_000, state="not alive")) is None


def _segment(base: int, *, sealed: bool, cold: int = 0, whole: bool = False, copies: tuple[int, ...] = ()) -> Segment:
    """100 bytes and ten records, of which `cold` bytes are in the object store."""
    key = SegmentKey(TOPIC, 0, base // 10, base)
    record = SealRecord(base // 10, base, base + 10, 0, 0, 100, b"", NO_PRODUCERS, copies, 0)
    parts = (RemotePart("key", 0, cold, base, base + 5),) if cold and not whole else ()
    state = RemoteState.COMPLETE if whole else RemoteState.PARTIAL if cold else RemoteState.NONE
    remote = RemoteCopy(state, parts=parts, size_bytes=cold if whole else 0)
    return Segment(
        key, SegmentState.SEALED if sealed else SegmentState.ACTIVE, None if sealed else 1, (1, 2), (1, 2), 0, 0,
        seal=record if sealed else None, local_nodes=copies, remote=remote,
    )  # fmt: skip


def _summed(snapshot: Snapshot) -> Sums:
    steps = sums(snapshot, [], _overview(None, None, None))
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
    found: Sums = done.value.value
    return found


def test_bytes_are_summed_up_by_tier_and_what_is_not_sent_is_told() -> None:
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

    assert found.topics[TOPIC] == TopicSums(hot_bytes=200, cold_bytes=137, unsent_bytes=70, oldest_offset=10)
    assert found.nodes[1] == NodeSums(segments=2, leaders=1, disk_used_percent=75)
    assert found.nodes[2] == NodeSums(segments=2, leaders=0, disk_used_percent=75)
    assert found.mounts["january"] == MountSums(segments=2, bytes=200)


@pytest.mark.parametrize(("firsts", "oldest"), [((10, 30, 20), 10), ((30, 0), 0), ((40,), 40), ((), 0)])
def test_the_oldest_offset_of_a_topic_is_the_smallest_of_its_shards(firsts: tuple[int, ...], oldest: int) -> None:
    """Not shard 0's alone: that may have been emptied while another one still has everything."""
    shards = tuple(Shard(ShardKey(TOPIC, number), first, ()) for number, first in enumerate(firsts))
    topic = Topic("orders", TOPIC, max(1, len(firsts)), 2, {}, 0)

    assert _summed(Snapshot(1, (topic,), shards, ())).topics[TOPIC].oldest_offset == oldest


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

    assert found == {"tier/3": MountSums(3, 300, ("orders/0 10..30", "orders/0 40..50"))}
