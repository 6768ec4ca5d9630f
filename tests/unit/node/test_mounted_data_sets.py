"""Another node holds what a retired one left: it reads it first, then serves it, and does its background work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.commands.mount_commands import BeginMount, TakeMount
from stratalog.model.commands.table_commands import NoteLives, RegisterNode
from stratalog.model.errors import Fenced
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.segment import RemoteState
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog_node.mounts.holding import _AT_ONCE
from support.node_cluster import NodeCluster
from support.waiting import eventually

QUICK = {"remote_upload_interval_ms": 50, "remote_orphan_grace_ms": 60_000}


def mount_of(cluster: NodeCluster, node_id: int) -> Mount | None:
    return next(iter(cluster.nodes.values())).catalog.mount_of(node_id)


async def is_served(cluster: NodeCluster, node_id: int) -> Mount:
    def served() -> bool:
        mount = mount_of(cluster, node_id)
        return mount is not None and mount.state is MountState.SERVING

    await eventually(served)
    mount = mount_of(cluster, node_id)
    assert mount is not None
    return mount


async def gone(cluster: NodeCluster, node_id: int, mode: MountMode = MountMode.OFFLOAD) -> Mount:
    """Its process has ended, its lease is over, and its data set is mounted."""
    await cluster.stop(node_id)
    await cluster.lose(node_id)
    node = next(node for node in (await cluster.meta.service.snapshot()).nodes if node.node_id == node_id)
    return await cluster.meta.service.perform(BeginMount(node_id, node.storage_id, mode))


@pytest.mark.fault("holder-retired-node-data", "replaced-holder-continues")
async def test_a_holder_serves_what_a_node_left_and_another_takes_over_when_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        key = await cluster.shard(1)
        left = cluster.leader(key)
        for number in range(5):
            await cluster.append(key, b"before-%d" % number)
        assert cluster.nodes[left].ask_roll(key)
        await cluster.is_sealed(key)
        await eventually(lambda: cluster.segments(key)[0].remote.state is RemoteState.COMPLETE)
        names = ObjectNames("", cluster.nodes[left].cluster_id)
        await gone(cluster, left)
        first = await is_served(cluster, left)
        assert first.holder in cluster.nodes and first.holder is not None
        holder = cluster.nodes[first.holder]
        await eventually(lambda: holder.mounts.stats.held == 1)
        assert holder.mounts.stats.taken == 1

        orphan = names.chunk(cluster.segments(key)[0].key, 0, 5, node_id=left, lock_epoch=1, attempt=99)
        await store.put(orphan, [b"x"])
        monkeypatch.setattr(holder.tier.janitor._orphans, "_grace_ms", -1)
        assert (await holder.tier.janitor.sweep_now()).orphans == 1
        assert orphan not in [info.key async for info in store.list(names.data_prefix)]

        await cluster.kill(first.holder)
        await cluster.lose(first.holder)
        await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.token > first.token)
        second = await is_served(cluster, left)
        assert second.holder in cluster.nodes and second.token == first.token + 1
        with pytest.raises(Fenced):
            await cluster.meta.service.perform(TakeMount(first.name, first.token, caller=holder.meta.life))


async def pretended_mounts(cluster: NodeCluster, count: int) -> None:
    """So many data sets of nodes that never were more than their names, all held by node 1."""
    service = cluster.meta.service
    for node_id in range(2, 2 + count):
        registered = await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
        await service._parts()[0].submit(NoteLives(lost=(Life(node_id, registered.node_epoch),)))
        await service.perform(BeginMount(node_id, f"disk-{node_id}", MountMode.OFFLOAD))


@pytest.mark.fault("machines-directories-retired-nodes")
@pytest.mark.parametrize(("silent", "timeout_ms"), [(20, 600_000), (100, 100)], ids=["a few", "more than at once"])
async def test_mounts_that_do_not_answer_keep_no_other_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: int, timeout_ms: int
) -> None:
    asked: list[str] = []
    most = 0

    async def probe(mount: Mount) -> None:
        nonlocal most
        if mount.node_id < 2 + silent:
            asked.append(mount.name)
            most = max(most, len(asked))
            try:
                await asyncio.Event().wait()
            finally:
                asked.remove(mount.name)

    monkeypatch.setattr("stratalog_node.node.DataSetProbe.__call__", lambda _, mount: probe(mount))
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, remote_upload_timeout_ms=timeout_ms)
        await pretended_mounts(cluster, silent + 1)
        await is_served(cluster, 2 + silent)
        if silent > _AT_ONCE:
            await eventually(lambda: most == _AT_ONCE)
        assert most <= _AT_ONCE and cluster.nodes[1].mounts.stats.taken == 1


@pytest.mark.fault("retired-node-started")
async def test_a_retired_node_that_is_started_again_is_refused_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        await gone(cluster, 2)
        await is_served(cluster, 2)
        with pytest.raises(Fenced, match="node 2 was retired: its data set is mounted in offload mode, held by node 1"):
            await cluster.start(2)


@pytest.mark.fault("holder-cannot-read-mounted")
async def test_a_holder_that_cannot_read_what_is_mounted_gives_it_up_and_another_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(3, **QUICK)
        key = await cluster.shard(1)
        await cluster.append(key, b"before")
        assert cluster.nodes[3].ask_roll(key)
        await eventually(lambda: cluster.segments(key)[0].remote.state is RemoteState.COMPLETE)
        monkeypatch.setattr("stratalog_node.mounts.holding._FIRST_PAUSE_MS", 1)
        cluster.store = None
        await cluster.start(1)
        cluster.store = store
        mount = await gone(cluster, 3)
        assert mount.holder == 1, "there is no other yet"
        await eventually(lambda: cluster.nodes[1].mounts.stats.waiting == 1)
        await cluster.start(2, **QUICK)
        served = await is_served(cluster, 3)
        assert served.holder == 2 and served.token > mount.token
        await eventually(lambda: cluster.nodes[1].mounts.stats.given_up == 1)
