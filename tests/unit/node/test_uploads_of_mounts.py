"""A node is retired with its volume before all of its data were in the object store: the mount's holder uploads the
rest from the directory, whatever happens meanwhile, and then the mount may end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import decode_records
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.commands.mount_commands import BeginMount, CloseVolume, EndMount, MoveMount
from stratalog.model.commands.table_commands import AlterTopic, CommitParts, DeleteTopic, ReplaceParts
from stratalog.model.errors import Conflict, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.mounts import MountMode, MountState
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog.objects.store import ObjectStore
from stratalog_node.node import StorageNode
from stratalog_node.volume.checked_files import Mark
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.waiting import eventually
from unit.node.test_mounted_data_sets import gone, is_served, mount_of
from unit.node.test_uploads_of_nodes import CHUNK, put_bytes, put_twice
from unit.node.test_volume_mounts import untouched, volume

LEFT = 1
"""The node that is retired."""
HOUR_MS = 3_600_000
SETTINGS = {
    "remote_upload_chunk_bytes": CHUNK,
    "remote_upload_interval_ms": HOUR_MS,
    "remote_orphan_grace_ms": HOUR_MS,
    "remote_delete_delay_ms": 0,
}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.05)
    monkeypatch.setattr("stratalog_node.mounts.holding._LONGEST_PAUSE_MS", 100)


def value(number: int) -> bytes:
    return b"%08d" % number * 2_000


def first(cluster: NodeCluster, key: ShardKey) -> Segment:
    return cluster.segments(key)[0]


def is_complete(cluster: NodeCluster, key: ShardKey) -> bool:
    return first(cluster, key).remote.state is RemoteState.COMPLETE


async def sealed(cluster: NodeCluster, count: int, *, committed: int = 0, **settings: str) -> ShardKey:
    """A shard whose first segment has `count` records; `committed` of them were offered to the object store, and the
    chunks that these fill are there. Only the retired node had a copy, and that node is gone."""
    await cluster.start(LEFT, **SETTINGS)
    key = await cluster.shard(1, **settings)
    for number in range(committed):
        await cluster.append(key, value(number))
    if committed:
        await eventually(lambda: cluster.segments(key)[0].remote.commit_offset > 0)
    cluster.meta.hold(CommitParts)
    for number in range(committed, count):
        await cluster.append(key, value(number))
    assert cluster.nodes[LEFT].ask_roll(key)
    await cluster.is_sealed(key)
    await cluster.start(2, 3, **SETTINGS)
    await gone(cluster, LEFT, MountMode.VOLUME)
    cluster.meta.release(CommitParts)
    return key


def holder_of(cluster: NodeCluster) -> StorageNode:
    mount = mount_of(cluster, LEFT)
    assert mount is not None and mount.holder is not None
    return cluster.nodes[mount.holder]


async def values_at(node: StorageNode, key: ShardKey, end_offset: int) -> list[bytes | None]:
    """As the shard's leader would read them."""
    shard = node.shards.get(key)
    assert shard is not None
    found: list[bytes | None] = []
    while len(found) < end_offset:
        data = b"".join(bytes(piece) for piece in await shard.read(len(found), 1 << 20))
        for position, header in walk(data, source="log"):
            found += [one.value for one in decode_records(data[position:][: header.size_bytes])]
    return found


async def names_in(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


@pytest.mark.fault("node-retired-volume-mode")
async def test_the_holder_uploads_what_only_the_directory_has_and_then_the_mount_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        key = await sealed(cluster, 100, committed=40)
        before = first(cluster, key)
        assert before.remote.state is RemoteState.PARTIAL and before.local_nodes == (LEFT,)
        there = set(await names_in(store))
        with pytest.raises(Conflict, match=r"wait until node . has uploaded those of topics with a remote tier"):
            await cluster.meta.service.perform(EndMount("tier/1"))
        with untouched(tmp_path / str(LEFT)):
            async with volume(cluster, LEFT):
                await eventually(lambda: is_complete(cluster, key), timeout=20)
                holder = holder_of(cluster)
                other = next(node for node in cluster.nodes.values() if node is not holder)
                await eventually(lambda: holder.tier.stats.segments_completed == 1)
                assert other.tier.stats.parts_committed == other.tier.stats.mounted_read_bytes == 0
                seal = before.seal
                assert seal is not None and 0 < holder.tier.stats.mounted_read_bytes < seal.size_bytes
                new = [name for name in await names_in(store) if name not in there and "/claims/" not in name]
                names = [ObjectNames("", holder.cluster_id).parse(name) for name in new]
                assert {(name.node_id, name.lock_epoch) for name in names} == {  # type: ignore[union-attr]
                    (holder.settings.node_id, holder.tier.uploader.lock.current.epoch)  # type: ignore[union-attr]
                }, "under its own write lock"
                await cluster.meta.service.perform(EndMount("tier/1"))
                await eventually(lambda: first(cluster, key).local_nodes == ())
        for node in cluster.nodes.values():
            assert await values_at(node, key, 100) == [value(number) for number in range(100)]
            assert node.tier.trouble() is None


@pytest.mark.fault("holder-dies-middle-upload")
async def test_a_holder_dies_in_the_middle_and_the_next_continues_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        key = await sealed(cluster, 200)
        async with volume(cluster, LEFT):
            await eventually(lambda: first(cluster, key).remote.commit_offset > 0)
            asked = cluster.meta.calls[CommitParts]
            cluster.meta.hold(CommitParts)
            await eventually(lambda: cluster.meta.calls[CommitParts] > asked)
            offset = first(cluster, key).remote.commit_offset
            died = holder_of(cluster).settings.node_id
            await cluster.kill(died)
            cluster.meta.release(CommitParts)
            assert first(cluster, key).remote.commit_offset == offset < 200
            await cluster.lose(died)
            await eventually(lambda: is_complete(cluster, key), timeout=20)
            assert holder_of(cluster).settings.node_id != died
        seal = first(cluster, key).seal
        assert seal is not None
        twice = await put_twice(store)
        assert len(twice) <= 2, "what the retired node and the dead holder had on their way"
        assert await put_bytes(store) - sum(twice) <= 1.05 * seal.size_bytes
        assert await values_at(holder_of(cluster), key, 200) == [value(number) for number in range(200)]


@pytest.mark.fault("holder-dies-middle-upload")
async def test_a_mount_that_is_moved_in_the_middle_has_one_uploader_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        key = await sealed(cluster, 200)
        async with volume(cluster, LEFT):
            await eventually(lambda: first(cluster, key).remote.commit_offset > 0)
            before = holder_of(cluster)
            with cluster.deaf(before.settings.node_id):  # it believes that it holds it still
                mount = await cluster.meta.service.perform(MoveMount("tier/1"))
                assert mount.holder is not None and mount.holder != before.settings.node_id
                after = cluster.nodes[mount.holder]
                now = after.catalog
                await eventually(
                    lambda: (one := now.segments(key)[0]).remote.state is RemoteState.COMPLETE and one, timeout=20
                )
                assert after.tier.stats.segments_completed == 1
                assert before.tier.stats.segments_completed == 0
        assert await values_at(after, key, 200) == [value(number) for number in range(200)]


@pytest.mark.fault("holder-dies-middle-upload")
async def test_a_mount_that_ends_in_the_middle_leaves_the_rest_to_a_node_that_has_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(LEFT, 2, **SETTINGS)
        key = await cluster.shard(2)
        cluster.meta.hold(CommitParts)
        for number in range(200):
            await cluster.append(key, value(number))
        assert cluster.nodes[cluster.leader(key)].ask_roll(key)
        await cluster.is_sealed(key, copies=2)
        await cluster.start(3, **SETTINGS)
        await cluster.kill(2)
        await cluster.lose(2)
        await gone(cluster, LEFT, MountMode.VOLUME)
        cluster.meta.release(CommitParts)
        async with volume(cluster, LEFT):
            await eventually(lambda: first(cluster, key).remote.commit_offset > 0)
            asked = cluster.meta.calls[CommitParts]
            cluster.meta.hold(CommitParts)
            await eventually(lambda: cluster.meta.calls[CommitParts] > asked)
            await cluster.start(2, **SETTINGS)
            await cluster.meta.service.perform(EndMount("tier/1"))
            offset = first(cluster, key).remote.commit_offset
            cluster.meta.release(CommitParts)
            await eventually(lambda: is_complete(cluster, key), timeout=20)
        assert 0 < offset < 200 and first(cluster, key).local_nodes == (2,)
        await eventually(lambda: cluster.nodes[2].tier.stats.segments_completed == 1)
        assert cluster.nodes[3].tier.stats.segments_completed == 0
        assert await values_at(cluster.nodes[3], key, 200) == [value(number) for number in range(200)]


@pytest.mark.fault("process-reads-directory-answer")
async def test_while_the_directory_is_away_uploads_wait_say_why_and_hold_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        key = await sealed(cluster, 200)
        holder = holder_of(cluster)
        await eventually(lambda: "directory of node 1 is not read now: run" in (holder.tier.trouble() or ""))
        assert first(cluster, key).remote.state is RemoteState.NONE
        seal, status = first(cluster, key).seal, holder.tier.uploader.status().uploader  # type: ignore[union-attr]
        assert seal is not None and status.mounted_unsent_bytes == status.unsent_bytes == seal.size_bytes
        async with volume(cluster, LEFT):
            await eventually(lambda: first(cluster, key).remote.commit_offset > 0)
            assert holder.tier.trouble() is None
            asked = cluster.meta.calls[CommitParts]
            cluster.meta.hold(CommitParts)
            await eventually(lambda: cluster.meta.calls[CommitParts] > asked)
            cluster.meta.hold(CloseVolume)  # it is killed, so its goodbye does not arrive
        cluster.meta.release(CommitParts)
        words = "what a retired node's directory alone has cannot be uploaded now: .* node 1"
        await eventually(lambda: re.search(words, holder.tier.trouble() or ""))
        await eventually(lambda: (now := mount_of(cluster, LEFT)) is not None and now.state is MountState.TAKING)
        stuck = first(cluster, key).remote.commit_offset
        own = await cluster.shard(1, "own")
        for number in range(40):
            await cluster.append(own, value(number))
        await eventually(lambda: cluster.segments(own)[0].remote.commit_offset > 0)
        assert first(cluster, key).remote.commit_offset == stuck < 200
        cluster.meta.open_all()
        async with volume(cluster, LEFT):
            await eventually(lambda: is_complete(cluster, key), timeout=20)
        assert await values_at(holder, key, 200) == [value(number) for number in range(200)]


@pytest.mark.fault("topic-segment-remote-tier")
async def test_a_topic_without_a_remote_tier_stays_in_the_directory_until_it_is_given_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        key = await sealed(cluster, 20, remote_storage_enable="false")
        async with volume(cluster, LEFT):
            await is_served(cluster, LEFT)
            tiered = await cluster.shard(1, "tiered")
            for number in range(40):
                await cluster.append(tiered, value(number))
            await eventually(lambda: cluster.segments(tiered)[0].remote.commit_offset > 0)
            assert first(cluster, key).remote.state is RemoteState.NONE
            assert holder_of(cluster).tier.trouble() is None
            with pytest.raises(Conflict, match="nothing else has 1 sealed segment of it"):
                await cluster.meta.service.perform(EndMount("tier/1"))
            await cluster.meta.service.perform(AlterTopic(key.topic_id, {"remote.storage.enable": "true"}))
            await eventually(lambda: is_complete(cluster, key), timeout=20)
            await cluster.meta.service.perform(EndMount("tier/1"))


def with_other_content(data: bytes, number: int = -1) -> bytes:
    """One batch says something else, and its CRC agrees."""
    at, header = list(walk(data[SEGMENT_HEADER_BYTES:], source="test", verify=False))[number]
    begin, changed = SEGMENT_HEADER_BYTES + at, bytearray(data)
    changed[begin + header.size_bytes - 100] ^= 1
    changed[begin + 17 : begin + 21] = crc32c(bytes(changed[begin + 21 : begin + header.size_bytes])).to_bytes(4, "big")
    return bytes(changed)


def with_a_flipped_bit(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def with_another_beginning(data: bytes) -> bytes:
    return with_other_content(data, 0)


REFUSED = "does not serve segment .* CORRUPT_MESSAGE"


@pytest.mark.fault("file-directory-damaged-uploaded", "file-retired-directory-sealed")
@pytest.mark.parametrize("damage", [with_a_flipped_bit, with_other_content, with_another_beginning])
async def test_what_is_damaged_in_the_directory_is_named_never_published_and_uploaded_once_it_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    is_long = damage is with_another_beginning
    count = 100 if is_long else 10  # many chunks, or less than one
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        key = await sealed(cluster, count)
        path = cluster.layout(LEFT).segment(first(cluster, key).key)
        good = path.read_bytes()
        path.write_bytes(damage(good))
        async with volume(cluster, LEFT):
            holder = holder_of(cluster)
            await eventually(lambda: re.search(REFUSED, holder.tier.trouble() or ""), timeout=20)
            assert first(cluster, key).remote.state is RemoteState.NONE, "nothing of it was committed"
            with pytest.raises(Unavailable):
                await values_at(holder, key, count)
            with pytest.raises(Conflict):
                await cluster.meta.service.perform(EndMount("tier/1"))
        path.write_bytes(good)
        async with volume(cluster, LEFT):
            await eventually(lambda: is_complete(cluster, key), timeout=20)
            assert holder.tier.trouble() is None
        assert await values_at(holder, key, count) == [value(number) for number in range(count)]


@pytest.mark.fault("file-retired-directory-sealed")
async def test_a_file_changed_while_it_is_read_is_detected_by_its_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the tick of the file system's clock in which it was checked, so that nothing tells it from what was there."""
    monkeypatch.setattr("stratalog_node.volume.checked_files.mark_of", lambda path: Mark(1, 1, 1 << 30, 1, 1))
    said = "end with digest .* the seal record says .* put the right file back there"
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        key = await sealed(cluster, 10, remote_storage_enable="false")
        path = cluster.layout(LEFT).segment(first(cluster, key).key)
        async with volume(cluster, LEFT):
            await is_served(cluster, LEFT)
            path.write_bytes(with_other_content(path.read_bytes()))
            await cluster.meta.service.perform(AlterTopic(key.topic_id, {"remote.storage.enable": "true"}))
            holder = holder_of(cluster)
            await eventually(lambda: re.search(said, holder.tier.trouble() or ""), timeout=20)
            assert first(cluster, key).remote.state is RemoteState.NONE, "nothing of it was committed"


# What else the holder does -----------------------------------------------------------------------------------------
@pytest.mark.fault("retired-node-left-parts")
async def test_the_holder_takes_parts_out_of_bundles_of_the_retired_node_and_then_the_bundles_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(LEFT, **(SETTINGS | {"remote_upload_interval_ms": 50}))
        key = await cluster.shard(1)
        await cluster.append(key, b"small")
        await eventually(lambda: first(cluster, key).remote.commit_offset > 0)
        cluster.meta.hold(ReplaceParts)
        assert cluster.nodes[LEFT].ask_roll(key)
        await cluster.is_sealed(key)
        await cluster.start(2, 3, **SETTINGS)
        await gone(cluster, LEFT, MountMode.VOLUME)
        bundles = ObjectNames("", cluster.nodes[2].cluster_id).node_bundles_prefix(LEFT)

        async def are_there() -> bool:
            return any(name.startswith(bundles) for name in await names_in(store))

        async with volume(cluster, LEFT):
            await is_served(cluster, LEFT)
            holder = holder_of(cluster)
            await holder.tier.janitor.sweep_now()
            assert await are_there(), "something refers to it"
            cluster.meta.release(ReplaceParts)
            await eventually(lambda: is_complete(cluster, key), timeout=20)
            for node in cluster.nodes.values():
                if node is not holder:
                    await node.tier.janitor.sweep_now()
            assert await are_there(), "it is the holder's to take away"
            await holder.tier.janitor.sweep_now()
            assert not await are_there()
        assert await values_at(holder, key, 1) == [b"small"]


@pytest.mark.fault("topic-segment-remote-tier")
@pytest.mark.parametrize("mode", [MountMode.OFFLOAD, MountMode.VOLUME])
async def test_the_holder_purges_deleted_segments_without_a_live_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: MountMode
) -> None:
    """In volume mode also of what was never uploaded: an upload that waits for the directory is given up."""
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(LEFT, **SETTINGS)
        whole = await cluster.shard(1, "whole")
        await cluster.append(whole, value(1))
        assert cluster.nodes[LEFT].ask_roll(whole)
        await eventually(lambda: is_complete(cluster, whole))
        unfinished = await cluster.shard(1, "unfinished")
        cluster.meta.hold(CommitParts)
        await cluster.append(unfinished, value(2))
        assert cluster.nodes[LEFT].ask_roll(unfinished)
        await cluster.is_sealed(unfinished)
        await cluster.start(2, 3, **SETTINGS)
        await gone(cluster, LEFT, mode)
        cluster.meta.release(CommitParts)
        holder = holder_of(cluster)
        other = next(node for node in cluster.nodes.values() if node is not holder)
        if mode is MountMode.VOLUME:
            await eventually(lambda: "directory of node 1 is not read now" in (holder.tier.trouble() or ""))
        for key in (whole, unfinished):
            await cluster.meta.service.perform(DeleteTopic(key.topic_id))
        await eventually(lambda: holder.tier.stats.segments_purged == 4)
        assert other.tier.stats.segments_purged == 0
        assert await cluster.meta.service.deleted_segments() == []
        data = ObjectNames("", holder.cluster_id).data_prefix
        assert [name for name in await names_in(store) if name.startswith(data)] == []
        await eventually(lambda: holder.tier.trouble() is None)
        await cluster.meta.service.perform(EndMount("tier/1"))


async def test_what_is_deleted_after_the_mount_ended_is_purged_though_all_its_replicas_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node was responsible for it, and its objects stayed in the bucket forever."""
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(LEFT, **SETTINGS)
        key = await cluster.shard(1)
        await cluster.append(key, value(1))
        assert cluster.nodes[LEFT].ask_roll(key)
        await eventually(lambda: is_complete(cluster, key))
        await cluster.start(2, 3, **SETTINGS | QUICK)
        leaving = Leaving(cluster, has_store=True)
        await leaving.retire(LEFT)
        await leaving.until(lambda: LEFT not in cluster.nodes)
        storage_id = (await leaving.node(LEFT)).storage_id
        await cluster.meta.service.perform(BeginMount(LEFT, storage_id, MountMode.OFFLOAD))
        await cluster.meta.service.perform(EndMount("tier/1"))
        data = ObjectNames("", cluster.nodes[2].cluster_id).data_prefix
        assert [name for name in await names_in(store) if name.startswith(data)]
        await cluster.meta.service.perform(DeleteTopic(key.topic_id))

        async def is_purged() -> bool:
            return not await cluster.meta.service.deleted_segments()

        await eventually(is_purged)
        assert [name for name in await names_in(store) if name.startswith(data)] == []


@pytest.mark.fault("topic-segment-remote-tier")
async def test_retention_continues_over_a_mount_and_the_holder_removes_what_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a retirement without offload: its first segment is uploaded by the holder, ended by the shard's present
    leader, and purged by the holder."""
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, 3, **(SETTINGS | QUICK))
        leaving = Leaving(cluster, has_store=True)
        key = await cluster.shard(1, retention_bytes="1", retention_ms="-1")
        left = cluster.leader(key)
        cluster.meta.hold(CommitParts)
        await cluster.append(key, value(1))
        await leaving.retire(left, RetireMode.VOLUME)
        await leaving.until(step=RetireStep.MOUNT, of=left)
        await leaving.until(lambda: left not in cluster.nodes)
        cluster.meta.release(CommitParts)
        assert first(cluster, key).remote.state is RemoteState.NONE, "what it had on its way is fenced"
        async with volume(cluster, left):
            await leaving.until(step=RetireStep.DONE, of=left)
            await eventually(lambda: is_complete(cluster, key), timeout=20)
            mount = mount_of(cluster, left)
            assert mount is not None and mount.holder is not None
            holder = cluster.nodes[mount.holder]
            await eventually(lambda: holder.tier.stats.segments_completed == 1)
            await cluster.append(key, b"after")
            purged = first(cluster, key).key
            await cluster.nodes[cluster.leader(key)].tier.retention.run_once()
            await eventually(lambda: first(cluster, key).key != purged)
            await eventually(lambda: holder.tier.stats.segments_purged == 1)
            assert sum(node.tier.stats.segments_purged for node in cluster.nodes.values()) == 1
            assert await cluster.meta.service.deleted_segments() == []
            await cluster.meta.service.perform(EndMount(mount.name))
        assert await cluster.values(key) == [b"after"]
