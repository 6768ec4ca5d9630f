"""A cluster is destroyed, and rebuilt from its bucket by the command: what a user mounted is mounted again, and a
retired directory, which was on none of the lost disks, is read again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import CreateMount, EndMount, MountCut
from stratalog.model.cut import CutShard
from stratalog.model.errors import Conflict
from stratalog.model.ids import ShardKey
from stratalog.model.mounts import Mount, MountState
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.model.segment import GapReason, RemoteState, SegmentState
from stratalog.objects import ObjectStore, open_store
from stratalog.settings.process import ProcessSettings
from stratalog_meta.stores.rocksdb import RocksStore
from stratalog_node.volume.volume_node import VolumeNode
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.shard_rig import START_MS
from support.waiting import eventually
from unit.node.test_mounted_data_sets import is_served
from unit.node.test_rebuilt_clusters import place, until_complete, until_told

STRATALOG = str(Path(sys.executable).with_name("stratalog"))


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = open_store(str(tmp_path / "bucket"))
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.05)


async def rebuild(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """By the command, into `tmp_path / "made"`."""
    place = ("--bucket", str(tmp_path / "bucket"), "--data", str(tmp_path / "made"))
    return await asyncio.to_thread(
        subprocess.run,
        [STRATALOG, "meta", "rebuild", *place, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


async def rebuilt(tmp_path: Path, *arguments: str) -> Any:
    done = await rebuild(tmp_path, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@asynccontextmanager
async def made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> AsyncIterator[NodeCluster]:
    metadata = RocksStore(tmp_path / "made" / "meta")
    async with NodeCluster(tmp_path / "new", monkeypatch, store, metadata=metadata) as cluster:
        await cluster.meta.service._parts()[0].read(ShardTable.check_invariants)
        yield cluster


@asynccontextmanager
async def reading(cluster: NodeCluster, directory: Path) -> AsyncIterator[VolumeNode]:
    meta: Any = cluster.meta
    node = VolumeNode(ProcessSettings(), directory, "127.0.0.1", 0, meta)
    await node.start()
    try:
        yield node
    finally:
        await node.close()


async def retired_with_its_volume(cluster: NodeCluster, replicas: int = 1) -> tuple[ShardKey, int, list[bytes | None]]:
    """A segment that lies in no bucket, and in the directory of a node that has left."""
    leaving = Leaving(cluster, has_store=True)
    key = await cluster.shard(replicas, remote_storage_enable="false")
    for number in range(10):
        await cluster.append(key, b"value-%d" % number, producer_id=5, base_sequence=number)
    left = cluster.leader(key)
    values = await cluster.values(key)
    await leaving.retire(left, RetireMode.VOLUME)
    await leaving.until(step=RetireStep.MOUNT, of=left)
    await leaving.until(lambda: left not in cluster.nodes)
    return key, left, values


@pytest.mark.fault("rebuilds-metadata-cluster-mounts")
async def test_mounts_of_users_and_of_snapshots_are_mounted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, **QUICK)
        key = await cluster.shard(1, remote_storage_enable="true")
        for number in range(2):
            await cluster.append(key, b"%d-a" % number, b"%d-b" % number, b"%d-c" % number)
            assert cluster.nodes[1].ask_roll(key)
            await until_complete(cluster, key, number)
        service = cluster.meta.service
        when = 0, START_MS * 2
        await service.perform(CreateMount("for-ever", ("flights",), *when))
        await service.perform(CreateMount("a-while", ("flights",), *when, lasts_ms=3_600_000))
        await service.perform(CreateMount("over-soon", ("flights",), *when, lasts_ms=1))
        await service.perform(MountCut("month-end", (CutShard(key, 1, 5, 1),)))
        await until_told(cluster)
        mounts = {mount.name: mount for mount in (await service.snapshot()).mounts}
    assert len(mounts) == 4
    told = await rebuilt(tmp_path, "--nodes", "7")
    assert {one["name"]: one["expires_ms"] for one in told["mounts"]} == {
        name: mount.expires_ms for name, mount in mounts.items()
    }
    assert told["not_restored"] == [] and told["retired_nodes"] == []
    async with made_again(tmp_path, monkeypatch, bucket) as cluster:
        assert {mount.name: mount for mount in (await cluster.meta.service.snapshot()).mounts} == mounts
        await cluster.start(7, **QUICK)
        node = cluster.nodes[7]
        for name, base, end in (("for-ever", 0, 6), ("month-end", 1, 5)):
            await eventually(lambda name=name: node.shards.read_by_name(f"flights@{name}", 0) is not None)  # type: ignore[misc]
            view = node.shards.read_by_name(f"flights@{name}", 0)
            assert view is not None and (view.log_start_offset, view.high_watermark) == (base, end)
            assert b"1-b" in b"".join(map(bytes, await view.read(4, 1 << 20)))
        expiry = cluster.meta.service._expiry
        assert expiry is not None
        await expiry.end_expired()
        left = {mount.name for mount in (await cluster.meta.service.snapshot()).mounts}
        assert left == mounts.keys() - {"over-soon"}, "its time is over as ever"


@pytest.mark.fault("rebuilds-metadata-cluster-retired")
async def test_a_retired_directory_is_read_again_and_what_it_alone_has_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        key, left, values = await retired_with_its_volume(cluster)
        before = cluster.segments(key)[0]
        await until_told(cluster)
        storage_id = next(node.storage_id for node in (await cluster.meta.service.snapshot()).nodes if node.is_retired)

    refused = await rebuild(tmp_path, "--nodes", f"{left},8")
    assert refused.returncode == 2 and f"--without-volume {left}" in refused.stderr
    table = await rebuild(tmp_path, "--nodes", "7,8", "--dry-run")
    assert f"mount tier/{left} waits for the directory of node {left}, storage id {storage_id}" in table.stdout
    assert "1 segment only there" in " ".join(table.stdout.split())
    assert "stratalog node start --read-only" in table.stdout
    told = await rebuilt(tmp_path, "--nodes", "7,8")
    assert told["lost"] == []
    (only_there,) = told["in_volumes"]
    assert (only_there["from"], only_there["to"], only_there["nodes"]) == (0, 10, [left])
    (retired,) = told["retired_nodes"]
    assert (retired["node_id"], retired["storage_id"], retired["mode"]) == (left, storage_id, "volume")
    assert [(one["name"], one["mode"]) for one in told["mounts"]] == [(f"tier/{left}", "volume")]

    async with made_again(tmp_path, monkeypatch, bucket) as cluster:
        await cluster.start(7, 8, **QUICK)
        segment = cluster.segments(key)[0]
        assert (segment.state, segment.seal, segment.local_nodes) == (SegmentState.SEALED, before.seal, (left,))
        assert segment.remote.state is RemoteState.NONE
        async with reading(cluster, tmp_path / "old" / str(left)):
            await is_served(cluster, left)
            assert await cluster.values(key) == values
            assert await cluster.append(key, b"later", producer_id=5, base_sequence=10) == 10
            assert await cluster.values(key) == [*values, b"later"]


@pytest.mark.fault("rebuilds-metadata-cluster-retired")
async def test_a_new_node_under_the_id_of_a_lost_holder_counts_for_no_copy_and_reads_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        key, left, values = await retired_with_its_volume(cluster, replicas=2)
        before = cluster.segments(key)[0]
        (lost,) = [node_id for node_id in before.replicas if node_id != left]
        assert set(before.local_nodes) == {left, lost}
        await until_told(cluster)
    told = await rebuilt(tmp_path, "--nodes", f"{lost},9")
    assert [one["nodes"] for one in told["in_volumes"]] == [[left]]
    async with made_again(tmp_path, monkeypatch, bucket) as cluster:
        await cluster.start(lost, 9, **QUICK)
        async with reading(cluster, tmp_path / "old" / str(left)):
            await is_served(cluster, left)
            assert await cluster.values(key) == values
            now = cluster.segments(key)[0]
            assert (now.seal, now.local_nodes) == (before.seal, (left,)), "its record names who proved it, for good"
            with pytest.raises(Conflict, match="nothing else has 1 sealed segment"):
                await cluster.meta.service.perform(EndMount(f"tier/{left}"))


@pytest.mark.fault("rebuilds-metadata-cluster-retired")
async def test_a_retired_directory_that_differs_from_the_seal_is_not_read_after_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    """Without its index block the whole file is compared with the seal's digest."""
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, 2, **QUICK)
        key, left, _ = await retired_with_its_volume(cluster)
        await until_told(cluster)
        layout, first = cluster.layout(left), cluster.segments(key)[0].key
    await rebuilt(tmp_path, "--nodes", "7")
    path = layout.segment(first)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    layout.index(first).unlink(missing_ok=True)
    async with made_again(tmp_path, monkeypatch, bucket) as cluster:
        await cluster.start(7, **QUICK)
        async with reading(cluster, tmp_path / "old" / str(left)) as served:
            await eventually(lambda: served.files.stats.refusals >= 2)
            (mount,) = (await cluster.meta.service.snapshot()).mounts
            assert mount.state is MountState.TAKING and served.files.stats.reads == 0
            path.write_bytes(data)
            await is_served(cluster, left)


@pytest.mark.fault("rebuilds-metadata-cluster-retired")
async def test_a_directory_that_is_lost_too_is_given_up_by_name_and_what_it_had_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        key, left, _ = await retired_with_its_volume(cluster)
        await until_told(cluster)
    wrong = await rebuild(tmp_path, "--nodes", "7", "--without-volume", "99")
    assert wrong.returncode == 2 and "knows no directory of a node 99" in wrong.stderr
    giving_up = ("--nodes", f"7,{left}", "--without-volume", str(left))
    shown = " ".join((await rebuild(tmp_path, *giving_up, "--dry-run")).stdout.split())
    assert "lost: known, and not in the bucket" in shown and "a person gave up" in shown
    told = await rebuilt(tmp_path, *giving_up)
    assert [(one["from"], one["to"]) for one in told["lost"]] == [(0, 10)]
    assert told["in_volumes"] == told["mounts"] == told["retired_nodes"] == []
    assert {(one["kind"], one["name"]) for one in told["not_restored"]} == {
        ("retirement", str(left)),
        ("mount", f"tier/{left}"),
    }
    assert all(one["why"] and one["next_step"] for one in told["not_restored"])
    async with made_again(tmp_path, monkeypatch, bucket) as cluster:
        await cluster.start(7, left, **QUICK)
        assert await cluster.values(key) == [None] * 10, "no later offset moves"
        (filled, *_) = cluster.segments(key)
        assert [gap.reason for gap in filled.handed.given_up] in ([], [GapReason.UNCLEAN])


@pytest.mark.fault("metadata-rebuilt-nodes-leaving")
async def test_retirements_that_were_not_over_are_listed_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, 2, 3, 4, **QUICK)
        leaving = Leaving(cluster, has_store=True)
        key = await cluster.shard(1, remote_storage_enable="true")
        await cluster.append(key, b"a", b"b")
        gone = cluster.leader(key)
        await leaving.retire(gone)
        await leaving.until(step=RetireStep.DONE, of=gone)
        first, second = list(cluster.nodes)[:2]
        await leaving.retire(first)
        await leaving.retire(second, RetireMode.VOLUME)
        await until_told(cluster)
        old: list[Mount] = list((await cluster.meta.service.snapshot()).mounts)
    assert [mount.node_id for mount in old] == [gone]
    told = await rebuilt(tmp_path, "--nodes", f"{first},9")
    steps = {one["name"]: one["next_step"] for one in told["not_restored"]}
    assert steps.keys() == {str(first), str(second)}
    assert f"stratalog nodes retire {first} --mode offload" in steps[str(first)]
    assert "keep its disk" in steps[str(second)]
    assert [(one["node_id"], one["step"]) for one in told["retired_nodes"]] == [(gone, "done")]
    assert [(one["name"], one["mode"]) for one in told["mounts"]] == [(f"tier/{gone}", "offload")]
    async with made_again(tmp_path, monkeypatch, bucket) as cluster:
        (mount,) = (await cluster.meta.service.snapshot()).mounts
        assert mount.state is MountState.WAITING and mount.token > old[0].token
        await cluster.start(first, **QUICK)
        served = await is_served(cluster, gone)
        assert served.holder == first and served.token == mount.token + 1
        assert await cluster.values(key) == [b"a", b"b"]
        await eventually(lambda: cluster.nodes[first].mounts.stats.held == 1)
