"""Two nodes, one of which has a second disk that fails, or is not there at a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog_node.disk.layout import segment_path
from stratalog_node.node import wall_ms
from stratalog_node.shards.copies.sealed import SealedCopy
from support.node_cluster import NodeCluster
from support.waiting import eventually


async def _moved(cluster: NodeCluster, key: ShardKey) -> SegmentKey:
    """A sealed segment of two copies, of which that of node 2 lies on its second disk."""
    await cluster.append(key, b"one", b"two")
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    segment = await cluster.is_sealed(key, 0, copies=2)
    layout = cluster.nodes[2].layout
    await eventually(lambda: segment.key in layout.moved)
    await eventually(lambda: not segment_path(layout.root, segment.key).exists())
    return segment.key


def _holders(cluster: NodeCluster, key: ShardKey) -> tuple[int, ...]:
    return cluster.segments(key, 1)[0].local_nodes


def _copy(cluster: NodeCluster, key: SegmentKey) -> SealedCopy | None:
    shard = cluster.nodes[2].shards.get(key.shard_key)
    copy = shard.copies.get(key.epoch) if shard is not None else None
    return copy if isinstance(copy, SealedCopy) else None


async def _start_second(cluster: NodeCluster, hdd: Path) -> None:
    await cluster.start(2, data_dirs=f"hdd:{hdd}", data_move_after_ms=0)


@pytest.mark.fault("data-directory-failed")
async def test_copies_of_a_disk_that_fails_are_made_again_on_the_first(cluster: NodeCluster, tmp_path: Path) -> None:
    hdd = tmp_path / "hdd"
    hdd.mkdir()
    cluster.patch.setattr("stratalog_node.shards.moves.directory_watch._POLL_S", 0.01)
    cluster.patch.setattr("stratalog_node.replication.lost_copy_reports.POLL_S", 0.01)
    await cluster.start(1)
    await _start_second(cluster, hdd)
    key = await cluster.shard(replicas=2)
    segment = await _moved(cluster, key)
    node = cluster.nodes[2]
    (hdd / "directory.json").rename(tmp_path / "kept")
    first = segment_path(node.layout.root, segment)
    await eventually(lambda: (copy := _copy(cluster, segment)) is not None and copy.file.path == first, 20.0)
    await eventually(lambda: 2 in _holders(cluster, key))
    assert node.is_over.is_set() is False and node.readiness() == {}
    assert any(str(hdd) in line for line in node.damage())
    await cluster.append(key, b"three")

    # The disk was only unplugged: its copy is a second one now, and goes.
    await cluster.stop(2)
    (tmp_path / "kept").rename(hdd / "directory.json")
    await cluster.start(2, data_dirs=f"hdd:{hdd}", data_move_after_ms=-1)
    await eventually(lambda: not segment_path(hdd, segment).exists())
    copy = _copy(cluster, segment)
    assert copy is not None and copy.file.path == segment_path(cluster.nodes[2].layout.root, segment)


@pytest.mark.fault("data-directory-absent")
async def test_copies_of_an_absent_disk_are_not_reported_as_lost(cluster: NodeCluster, tmp_path: Path) -> None:
    hdd = tmp_path / "hdd"
    hdd.mkdir()
    await cluster.start(1)
    await _start_second(cluster, hdd)
    key = await cluster.shard(replicas=2)
    segment = await _moved(cluster, key)
    await cluster.stop(2)
    hdd.rename(tmp_path / "unplugged")
    hdd.mkdir()
    await _start_second(cluster, hdd)
    await cluster.nodes[2].lost_copies.check()
    assert _copy(cluster, segment) is None and 2 in _holders(cluster, key)
    await cluster.append(key, b"three")
    await cluster.stop(2)
    hdd.rmdir()
    (tmp_path / "unplugged").rename(hdd)
    await _start_second(cluster, hdd)
    copy = _copy(cluster, segment)
    assert copy is not None and copy.file.path == segment_path(hdd, segment)
    assert 2 in _holders(cluster, key)


async def test_a_disk_that_is_taken_out_of_the_settings_is_given_up(cluster: NodeCluster, tmp_path: Path) -> None:
    hdd = tmp_path / "hdd"
    hdd.mkdir()
    cluster.patch.setattr("stratalog_node.replication.lost_copy_reports.POLL_S", 0.01)
    await cluster.start(1)
    await _start_second(cluster, hdd)
    key = await cluster.shard(replicas=2)
    segment = await _moved(cluster, key)
    await cluster.stop(2)
    await cluster.start(2)
    first = segment_path(cluster.nodes[2].layout.root, segment)
    await eventually(lambda: (copy := _copy(cluster, segment)) is not None and copy.file.path == first, 20.0)
    assert segment_path(hdd, segment).exists(), "its files are kept"
