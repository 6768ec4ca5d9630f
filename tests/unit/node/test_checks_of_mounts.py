"""Looks at mounts beside what nodes read of each other, and beside one another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.mounts import Mount, MountMode, MountState, Volume
from stratalog.model.segment import Segment
from stratalog_node.mounts.holding import _AT_ONCE
from stratalog_node.mounts.probe import DataSetProbe
from stratalog_node.replication.peer_reads import NodePeerReads
from support.several_nodes import SeveralNodes, several_nodes
from support.waiting import eventually
from unit.node.test_reads_from_peers import lose_copies, read_all

SILENT_FROM = 1_000
"""Node ids of directories that are asked and never answer."""


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[SeveralNodes]:
    async with several_nodes(tmp_path, 2) as nodes:
        yield nodes


class Segments:
    """A catalog of the segments that a test sets, which counts walks over all of them."""

    def __init__(self, segments: list[Segment]) -> None:
        self.by_key = {segment.key: segment for segment in segments}
        self.walks = 0
        self.under_way = 0
        self.most = 0

    def segment(self, key: SegmentKey) -> Segment | None:
        return self.by_key.get(key)

    def shard_keys(self) -> Iterator[ShardKey]:
        self.walks += 1
        return iter(dict.fromkeys(key.shard_key for key in self.by_key))

    def segments(self, key: ShardKey) -> list[Segment]:
        return [segment for segment in self.by_key.values() if segment.key.shard_key == key]


def mount(node_id: int, mode: MountMode = MountMode.VOLUME) -> Mount:
    volume = Volume("host", 1, "start") if mode is MountMode.VOLUME else None
    return Mount(f"tier/{node_id}", mode, node_id, "disk", MountState.TAKING, 1, 0, None, volume=volume)


def held_by(segment: Segment, *nodes: int, epoch: int = 0, sealed_ms: int = 0) -> Segment:
    """The same data under another key, so that no two asks for it are one."""
    assert segment.seal is not None
    key = segment.key._replace(epoch=epoch)
    return replace(segment, key=key, local_nodes=nodes, seal=replace(segment.seal, sealed_ms=sealed_ms))


def silenced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Questions to that node stay unanswered; the list grows with them."""
    real, asked = NodePeerReads._from, list[int]()

    async def silent(reads: NodePeerReads, node_id: int, *rest: Any) -> Any:
        if node_id >= SILENT_FROM:
            asked.append(node_id)
            await asyncio.Event().wait()
        return await real(reads, node_id, *rest)

    monkeypatch.setattr(NodePeerReads, "_from", silent)
    return asked


async def test_looks_at_many_silent_directories_keep_no_read_waiting(
    two: SeveralNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, end = await two.filled()
    leader = two.nodes[two.leader(key).context.node_id]
    lose_copies(two, leader.settings.node_id, key)
    first = leader.catalog.segments(key)[0]
    asked = silenced(monkeypatch)
    nodes = range(SILENT_FROM, SILENT_FROM + _AT_ONCE)
    known: Any = Segments([held_by(first, node, epoch=node) for node in nodes])
    probe = DataSetProbe(known, None, None, leader.peer_reads, "cluster")
    looks = [asyncio.create_task(probe(mount(node))) for node in nodes]
    reads = [asyncio.create_task(read_all(two, key, end)) for _ in range(3)]
    try:
        await eventually(lambda: len(asked) == _AT_ONCE)
        async with asyncio.timeout(60):
            await asyncio.gather(*reads)
    finally:
        for task in (*looks, *reads):
            task.cancel()
        await asyncio.gather(*looks, *reads, return_exceptions=True)
    assert leader.peer_reads.stats.in_flight == 0


async def test_of_two_directories_with_one_segment_each_is_looked_at_by_itself(
    two: SeveralNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looks were one ask, at the first of them: one that is gone spoke for one that answers."""
    key, _ = await two.filled(segments=1)
    leader = two.nodes[two.leader(key).context.node_id]
    (other,) = two.others(key)
    asked = silenced(monkeypatch)
    known: Any = Segments([leader.catalog.segments(key)[0]])
    probe = DataSetProbe(known, None, None, leader.peer_reads, "cluster")
    known.by_key = {k: replace(one, local_nodes=(SILENT_FROM, other)) for k, one in known.by_key.items()}
    silent = asyncio.create_task(probe(mount(SILENT_FROM)))
    await eventually(lambda: asked)
    async with asyncio.timeout(60):
        await probe(mount(other))
    silent.cancel()
    await asyncio.gather(silent, return_exceptions=True)


class Looks:
    """The requests to each node, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    async def probe(self, segment: Segment, node_id: int, offset: int) -> None:
        assert segment.seal is not None and offset == segment.seal.end_offset - 1
        self.seen.append((node_id, segment.seal.sealed_ms))


async def test_many_mounts_are_looked_at_for_the_first_time_in_one_walk_over_the_segments(
    two: SeveralNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.mounts.probe._SEGMENTS_PER_TURN", 10)
    key, _ = await two.filled(segments=1)
    one = two.leader(key).context.catalog.segments(key)[0]
    nodes = range(2, 42)
    known: Any = Segments(
        [held_by(one, node, epoch=node * 10 + ms, sealed_ms=ms) for node in nodes for ms in (2, 1, 3)]
    )
    looks: Any = Looks()
    probe = DataSetProbe(known, None, None, looks, "cluster")
    await asyncio.gather(*(probe(mount(node)) for node in nodes))
    assert known.walks == 2, "the first began before the others asked, the second is of all these"
    assert sorted(looks.seen) == [(node, ms) for node in nodes for ms in (1, 3)]
    await asyncio.gather(*(probe(mount(node)) for node in nodes))
    assert known.walks == 2, "they are remembered"
    known.by_key = {key: segment for key, segment in known.by_key.items() if segment.local_nodes != (2,)}
    await asyncio.gather(*(probe(mount(node)) for node in nodes))
    assert known.walks == 3, "what one had is gone"


async def test_a_check_cancelled_during_its_walk_does_not_block_the_others(
    two: SeveralNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.mounts.probe._SEGMENTS_PER_TURN", 1)
    key, _ = await two.filled(segments=1)
    one = two.leader(key).context.catalog.segments(key)[0]
    known: Any = Segments([held_by(one, 2 + number % 2, epoch=number, sealed_ms=number) for number in range(20)])
    looks: Any = Looks()
    probe = DataSetProbe(known, None, None, looks, "cluster")
    first, second = (asyncio.create_task(probe(mount(node))) for node in (2, 3))
    while not known.walks:
        await asyncio.sleep(0)  # it has begun, and has 20 turns to go
    first.cancel()
    await second
    assert first.cancelled()
    assert looks.seen == [(3, 1), (3, 19)]
    await probe(mount(2))
    assert looks.seen[2:] == [(2, 0), (2, 18)]


async def test_a_walk_longer_than_a_check_runs_once_and_serves_the_next_check(
    two: SeveralNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check began it again, and was cut off: no mount was ever served."""
    monkeypatch.setattr("stratalog_node.mounts.probe._SEGMENTS_PER_TURN", 1)
    key, _ = await two.filled(segments=1)
    one = two.leader(key).context.catalog.segments(key)[0]
    known: Any = Segments([held_by(one, 2, epoch=number, sealed_ms=number) for number in range(40)])
    looks: Any = Looks()
    probe = DataSetProbe(known, None, None, looks, "cluster")
    cut_off = 0
    while not looks.seen:
        look = asyncio.create_task(probe(mount(2)))
        for _ in range(10):
            await asyncio.sleep(0)  # a quarter of the walk
        cut_off += look.cancel()
        await asyncio.gather(look, return_exceptions=True)
        assert cut_off < 10
    assert known.walks == 1 and cut_off > 1
    await probe.close()


async def test_a_segment_that_a_directory_is_not_listed_for_any_more_is_not_looked_at_there(two: SeveralNodes) -> None:
    """The directory refuses it, and was doubted for ever with all that it still has."""
    key, _ = await two.filled(segments=1)
    one = two.leader(key).context.catalog.segments(key)[0]
    known: Any = Segments([held_by(one, 2, 3, epoch=ms, sealed_ms=ms) for ms in (1, 2, 3)])
    looks: Any = Looks()
    probe = DataSetProbe(known, None, None, looks, "cluster")
    await probe(mount(2))
    (oldest,) = (segment for segment in known.by_key.values() if segment.seal.sealed_ms == 1)
    known.by_key[oldest.key] = replace(oldest, local_nodes=(3,))
    await probe(mount(2))
    assert looks.seen == [(2, 1), (2, 3), (2, 2), (2, 3)]
