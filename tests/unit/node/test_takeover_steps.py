"""F5: a holder dies between any two steps of a take-over, with empty and deleted segments in the data set: the next one
converges, reads what has records, and serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import TakeMount
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.errors import Fenced
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.mounts import Mount, MountState
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog_node.node import wall_ms
from support.faulty_store import FaultyStore
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.waiting import eventually
from unit.node.test_mounted_data_sets import is_served, mount_of
from unit.node.test_volume_mounts import volume

SOON = QUICK | {"remote_orphan_grace_ms": 60_000}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.05)
    monkeypatch.setattr("stratalog_node.mounts.holding._LONGEST_PAUSE_MS", 100)


@asynccontextmanager
async def leaving(tmp_path: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[tuple[NodeCluster, FaultyStore]]:
    store = FaultyStore(open_memory(StoreSettings()), wall_ms)
    async with NodeCluster(tmp_path, patch, store) as cluster:
        await cluster.start(1, 2, 3, **SOON)
        yield cluster, store


async def data_set(cluster: NodeCluster, *, is_tiered: bool) -> tuple[ShardKey, int, list[bytes | None]]:
    """Three sealed segments of a node, the oldest deleted; what it was writing is empty, and will be sealed so."""
    key = await cluster.shard(1, remote_storage_enable=str(is_tiered).lower())
    for number in range(3):
        await cluster.append(key, b"%d-a" % number, b"%d-b" % number)
        assert cluster.nodes[cluster.leader(key)].ask_roll(key)
        await cluster.is_sealed(key, number)
        if is_tiered:
            await eventually(lambda number=number: segment(cluster, key, number).remote.state is RemoteState.COMPLETE)  # type: ignore[misc]
    left = cluster.leader(key)
    await cluster.meta.service.perform(AdvanceLogStart(key, 2))
    await eventually(lambda: cluster.segments(key)[0].epoch == 1)
    return key, left, [b"1-a", b"1-b", b"2-a", b"2-b"]


def segment(cluster: NodeCluster, key: ShardKey, epoch: int) -> Segment:
    return next(one for one in cluster.segments(key) if one.epoch == epoch)


async def retire(cluster: NodeCluster, left: int, mode: RetireMode) -> None:
    process = Leaving(cluster, has_store=True)
    await process.retire(left, mode)
    await process.until(step=RetireStep.MOUNT, of=left)
    await process.until(lambda: left not in cluster.nodes)


async def has_holder(cluster: NodeCluster, left: int) -> tuple[Mount, int]:
    await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.holder is not None)
    mount = mount_of(cluster, left)
    assert mount is not None and mount.holder is not None
    return mount, mount.holder


def hang(cluster: NodeCluster, store: FaultyStore, left: int, key: SegmentKey) -> list[str]:
    """Once the set is mounted, whoever looks for this segment's objects is not answered. Returns: what was asked."""
    asked: list[str] = []
    folder = f"/{key.base_offset:020}-{key.epoch}/"

    def hangs(name: str) -> bool:
        if mount_of(cluster, left) is None or not name.endswith(folder):
            return False
        asked.append(name)
        return True

    store.hangs = hangs
    return asked


async def converges(cluster: NodeCluster, left: int, before: Mount) -> None:
    """Under the next token, and under no earlier one."""
    dead = before.holder
    assert dead is not None
    old_life = cluster.nodes[dead].meta.life
    await cluster.kill(dead)
    await cluster.lose(dead)
    cluster.meta.open_all()
    await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.token > before.token)
    served = await is_served(cluster, left)
    assert served.holder in cluster.nodes and served.token == before.token + 1
    with pytest.raises(Fenced):
        await cluster.meta.service.perform(TakeMount(before.name, before.token, caller=old_life))
    await cluster.meta.service._parts()[0].read(ShardTable.check_invariants)


@pytest.mark.fault("holder-dies-two-steps")
@pytest.mark.parametrize("step", ["reads", "is about to say so", "said so and was not heard", "serves"])
async def test_a_holder_that_dies_at_any_step_is_followed_by_one_that_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with leaving(tmp_path, monkeypatch) as (cluster, store):
        key, left, values = await data_set(cluster, is_tiered=True)
        newest = cluster.segments(key)[1].key
        if step == "reads":
            asked = hang(cluster, store, left, newest)
        elif step == "is about to say so":
            cluster.meta.hold(TakeMount)
        elif step == "said so and was not heard":
            cluster.meta.lose_answer(TakeMount)
        await retire(cluster, left, RetireMode.OFFLOAD)
        mount, holder = await has_holder(cluster, left)
        ended = [one for one in cluster.segments(key) if one.state is SegmentState.SEALED]
        assert [one.end_offset - one.base_offset for one in ended if one.end_offset is not None] == [2, 2, 0]
        match step:
            case "reads":
                await eventually(lambda: asked)
                store.hangs = lambda _: False
            case "is about to say so":
                await eventually(lambda: cluster.meta.calls[TakeMount])
                assert mount_of(cluster, left) == mount and mount.state is MountState.TAKING
            case _:
                await is_served(cluster, left)
        await converges(cluster, left, mount)
        assert holder not in cluster.nodes
        assert await cluster.values(key) == values


@pytest.mark.fault("holder-dies-two-steps")
async def test_what_is_deleted_while_a_holder_reads_it_is_left_out_and_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leaving(tmp_path, monkeypatch) as (cluster, store):
        key, left, values = await data_set(cluster, is_tiered=True)
        oldest = cluster.segments(key)[0].key
        asked = hang(cluster, store, left, oldest)
        await retire(cluster, left, RetireMode.OFFLOAD)
        await eventually(lambda: asked)
        await cluster.meta.service.perform(AdvanceLogStart(key, 4))
        await eventually(lambda: cluster.segments(key)[0].epoch == 2)
        for name in await store.keys():
            if name.startswith(asked[0]):
                await store.inner.delete([name])  # its grace is over
        store.hangs = lambda _: False
        mount, holder = await has_holder(cluster, left)
        cluster.meta.open_all()
        await converges(cluster, left, mount)
        assert holder not in cluster.nodes
        assert await cluster.values(key) == values[2:]


@pytest.mark.fault("holder-dies-two-steps")
@pytest.mark.parametrize("step", ["waits for the directory", "is about to say so", "serves"])
async def test_a_directory_with_empty_and_deleted_segments_is_served_by_a_remaining_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with leaving(tmp_path, monkeypatch) as (cluster, _):
        key, left, values = await data_set(cluster, is_tiered=False)
        await retire(cluster, left, RetireMode.VOLUME)
        mount, holder = await has_holder(cluster, left)
        if step == "waits for the directory":
            await converges_without_serving(cluster, left, mount)
        async with volume(cluster, left) as served:
            if step != "waits for the directory":
                if step == "is about to say so":
                    cluster.meta.hold(TakeMount)
                    await eventually(lambda: served.files.stats.reads)
                else:
                    await is_served(cluster, left)
                await converges(cluster, left, mount)
            else:
                await is_served(cluster, left)
            assert holder not in cluster.nodes
            assert served.files.stats.reads, "the newest that has records was read, not an empty one"
            assert await cluster.values(key) == values


async def converges_without_serving(cluster: NodeCluster, left: int, before: Mount) -> None:
    assert before.holder is not None
    await cluster.kill(before.holder)
    await cluster.lose(before.holder)
    await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.token == before.token + 1)
    now = mount_of(cluster, left)
    assert now is not None and now.state is MountState.TAKING, "nobody reads the directory yet"
