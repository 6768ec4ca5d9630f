"""A cluster is destroyed, its disks and its metadata: from the bucket alone it is made again, and nothing committed is
missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import AdvanceLogStart, AlterTopic
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import AlreadyExists, Conflict, NotFound
from stratalog.model.ids import ShardKey
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects import ObjectStore, open_store
from stratalog_meta import MetaService
from stratalog_meta.bucket.backups import BackupPlace
from stratalog_meta.bucket.rebuild import Rebuild, Rebuilt
from stratalog_meta.bucket.restore import restore_cut
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import wall_ms
from support.node_cluster import NodeCluster
from support.waiting import eventually

TIERED = {"remote_upload_interval_ms": 20}
NODES = (1, 2, 3)


@pytest.fixture
async def bucket() -> AsyncIterator[ObjectStore]:
    store = open_store("memory:")
    yield store
    await store.close()


def place(bucket: ObjectStore) -> BackupPlace:
    return BackupPlace(bucket, interval_s=0.02, soonest_s=0.02)


async def until_told(cluster: NodeCluster) -> None:
    service = cluster.meta.service

    async def is_told() -> bool:
        return service.backup_stats.version == await service.read_version()

    await eventually(is_told)


async def until_uploaded(cluster: NodeCluster, key: ShardKey) -> None:
    """All that is committed is in the bucket."""

    def is_there() -> bool:
        shard = cluster.led(key)
        last = cluster.segments(key)[-1]
        return shard is not None and max(last.remote.commit_offset, last.base_offset) == shard.high_watermark

    await eventually(is_there)


async def until_complete(cluster: NodeCluster, key: ShardKey, number: int) -> None:
    await eventually(lambda: cluster.segments(key)[number].remote.state is RemoteState.COMPLETE)


async def rebuild(bucket: ObjectStore, target: MemoryStore, nodes: tuple[int, ...] = NODES) -> Rebuilt:
    run = Rebuild(bucket, nodes, wall_ms, lambda *_: None)
    rebuilt = await run.run(await run.find_cluster(), target)
    await target.close()
    return rebuilt


async def loaded(store: MemoryStore) -> ShardTable:
    table = ShardTable.load(await store.load(), "store")
    await store.close()
    assert table is not None
    table.check_invariants()
    return table


@pytest.mark.fault("everything-bucket-lost-disks")
async def test_every_committed_record_of_a_destroyed_cluster_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    before, after = MemoryStore(), MemoryStore()
    sealed: list[Segment] = []
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, metadata=before, backups=place(bucket)) as cluster:
        await cluster.start(*NODES, **TIERED)
        keys = [await cluster.shard(3, name, remote_storage_enable="true") for name in ("flights", "trains")]
        for key in keys:
            for number in range(3):
                await cluster.append(key, b"%d-a" % number, b"%d-b" % number, producer_id=5, base_sequence=2 * number)
                if number < 2:
                    shard = cluster.led(key)
                    assert shard is not None
                    shard.ask_roll(wall_ms())
                    segment = await cluster.is_sealed(key, number)
                    await until_complete(cluster, key, number)
                    sealed.append(segment)
            await until_uploaded(cluster, key)
        await cluster.meta.service.perform(AdvanceLogStart(keys[1], 2))
        await until_told(cluster)
        told = {key: await cluster.values(key) for key in keys}
        starts = {key: (await cluster.meta.service.shard(key)).log_start_offset for key in keys}
        commits = {key: cluster.segments(key)[-1].remote.commit_offset for key in keys}
    rebuilt = await rebuild(bucket, after)
    assert not rebuilt.lost and not rebuilt.damaged
    table = await loaded(after)
    readable = [one for one in sealed if (one.end_offset or 0) > starts[one.key.shard_key]]
    assert len(readable) == 3, "of four sealed segments one is below a log start"
    made = {segment.key: segment.seal for shard in table.snapshot().shards for segment in shard.segments}
    assert {one.key: made.get(one.key) for one in readable} == {one.key: one.seal for one in readable}
    for key in keys:
        assert table.shard(key).log_start_offset == starts[key]
        assert table.shard(key).segments[-1].base_offset == commits[key]
    async with NodeCluster(tmp_path / "new", monkeypatch, bucket, metadata=after, backups=place(bucket)) as cluster:
        await cluster.start(*NODES, **TIERED)
        for key in keys:
            assert await cluster.values(key) == told[key]
            again = await cluster.append(key, b"2-a", b"2-b", producer_id=5, base_sequence=4)
            assert again == 4, "its producers are known: a repetition is none"
            assert await cluster.append(key, b"later") == 6
            assert await cluster.values(key) == [*told[key], b"later"]
        await until_told(cluster)
    with pytest.raises(Exception, match="older than the bucket"):
        async with NodeCluster(tmp_path / "third", monkeypatch, bucket, metadata=before, backups=place(bucket)):
            pass


@pytest.mark.fault("snapshot-older-data-bucket")
async def test_what_came_after_the_snapshot_is_found_and_its_topic_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    after = MemoryStore()
    hourly = BackupPlace(bucket, interval_s=3_600, soonest_s=0.02)
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=hourly) as cluster:
        key = None
        await cluster.start(1, **TIERED)
        key = await cluster.shard(1, remote_storage_enable="true")
        topic = (await cluster.meta.service.snapshot()).topics[0]
        backups = cluster.meta.service._backups
        assert backups is not None
        backups._is_wanted.set()
        await until_told(cluster)
        await backups.close()  # one may be wanted still, for the first of all was put just now
        await cluster.meta.service.perform(AlterTopic(topic.topic_id, {**topic.settings, "retention.ms": "-1"}))
        late = await cluster.shard(1, "late", remote_storage_enable="true")
        for one in (key, late):
            await cluster.append(one, b"a", b"b")
            shard = cluster.led(one)
            assert shard is not None
            shard.ask_roll(wall_ms())
            await until_complete(cluster, one, 0)
            await cluster.append(one, b"c")
            await until_uploaded(cluster, one)
        sealed = {one: cluster.segments(one)[0].seal for one in (key, late)}
    rebuilt = await rebuild(bucket, after, (7,))
    assert [one.name for one in rebuilt.plan.taken_in] == ["late"]
    table = await loaded(after)
    assert table.topic(key.topic_id).settings == topic.settings, "as of the snapshot"
    for one in (key, late):
        assert table.shard(one).segments[0].seal == sealed[one]
    async with NodeCluster(tmp_path / "new", monkeypatch, bucket, metadata=after) as cluster:
        await cluster.start(7, **TIERED)
        for one in (key, late):
            assert await cluster.values(one) == [b"a", b"b", b"c"]


async def test_a_damaged_index_block_in_the_bucket_keeps_no_cluster_from_being_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    after = MemoryStore()
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, **TIERED)
        key = await cluster.shard(1, remote_storage_enable="true")
        await cluster.append(key, b"a", producer_id=5, base_sequence=0)
        shard = cluster.led(key)
        assert shard is not None
        shard.ask_roll(wall_ms())
        await until_complete(cluster, key, 0)
        await cluster.append(key, b"b", producer_id=5, base_sequence=1)
        await until_uploaded(cluster, key)
        await until_told(cluster)
    (index,) = [info.key async for info in bucket.list("") if info.key.endswith(".index")]
    size_bytes = (await bucket.head(index)).size_bytes
    await bucket.delete([index])
    await bucket.put(index, [bytes(size_bytes)])
    rebuilt = await rebuild(bucket, after, (7,))
    assert list(rebuilt.damaged) == [index]
    async with NodeCluster(tmp_path / "new", monkeypatch, bucket, metadata=after) as cluster:
        await cluster.start(7, **TIERED)
        assert await cluster.append(key, b"b", producer_id=5, base_sequence=1) == 1, "it is a repetition"
        assert await cluster.append(key, b"c", producer_id=5, base_sequence=2) == 2


@pytest.mark.fault("groups-commit-offsets-producers")
async def test_a_cluster_restored_from_a_snapshot_knows_its_producers_as_of_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    """The cut ends inside a segment: what a producer wrote behind it does not count as a retry in the new cluster."""
    after = MemoryStore()
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket) as cluster:
        await cluster.start(1, **TIERED)
        key = await cluster.shard(1, remote_storage_enable="true")
        for number in range(6):
            await cluster.append(key, b"%d" % number, producer_id=5, base_sequence=number)
            if number in (1, 5):
                assert cluster.nodes[1].ask_roll(key)
                await until_complete(cluster, key, number // 5)
        topics = (await cluster.meta.service.snapshot()).topics
        cut = Cut(cluster.nodes[1].cluster_id, "cut", 1, topics, (CutShard(key, 0, 4, 1),))
    await restore_cut(bucket, cut, after, (7,), wall_ms(), lambda *_: None)
    await after.close()
    async with NodeCluster(tmp_path / "new", monkeypatch, bucket, metadata=after) as cluster:
        await cluster.start(7, **TIERED)
        assert await cluster.values(key) == [b"0", b"1", b"2", b"3"]
        for number in (1, 3):
            again = await cluster.append(key, b"%d" % number, producer_id=5, base_sequence=number)
            assert again == number, "a repetition is none"
        assert await cluster.append(key, b"other", producer_id=5, base_sequence=4) == 4
        assert await cluster.values(key) == [b"0", b"1", b"2", b"3", b"other"]


@pytest.mark.fault("everything-bucket-lost-disks")
async def test_a_disk_from_before_a_rebuild_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    after = MemoryStore()
    async with NodeCluster(tmp_path, monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, **TIERED)
        await until_told(cluster)
    await rebuild(bucket, after, (1,))
    async with NodeCluster(tmp_path, monkeypatch, bucket, metadata=after) as cluster:
        with pytest.raises(Conflict, match="a disk from before the metadata were rebuilt"):
            await cluster.start(1, **TIERED)


@pytest.mark.fault("starts-rebuild-store-use")
async def test_a_rebuild_goes_into_an_empty_store_and_needs_a_snapshot(bucket: ObjectStore) -> None:
    run = Rebuild(bucket, NODES, wall_ms, lambda *_: None)
    with pytest.raises(NotFound, match="no snapshot of any metadata"):
        await run.find_cluster()
    used = MemoryStore()
    service = MetaService(used, wall_ms)
    await service.start()
    await service.close()
    with pytest.raises(AlreadyExists, match="an empty store"):
        await run.run("cluster", used)
