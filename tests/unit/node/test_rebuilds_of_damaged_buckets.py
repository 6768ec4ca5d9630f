"""A bucket is damaged, and metadata are to be rebuilt from it: errors are named, and only what exists nowhere is given
up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import Corrupt, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState
from stratalog.objects import ObjectStore, open_store
from stratalog_cli.services.meta_rebuild import report_of
from stratalog_meta.bucket.restore import restore_cut
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import wall_ms
from support.node_cluster import NodeCluster
from support.waiting import eventually
from support.wrong_objects import rewritten_part
from unit.node.test_rebuilt_clusters import TIERED, place, rebuild, until_complete, until_told

SEGMENTS = 3


@pytest.fixture
async def bucket() -> AsyncIterator[ObjectStore]:
    store = open_store("memory:")
    yield store
    await store.close()


async def filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore, **settings: str
) -> tuple[ShardKey, Cut]:
    """A cluster, since destroyed, whose shard has three complete segments of two records each."""
    async with NodeCluster(tmp_path / "old", monkeypatch, bucket, backups=place(bucket)) as cluster:
        await cluster.start(1, **TIERED)
        key = await cluster.shard(1, remote_storage_enable="true", **settings)
        for number in range(SEGMENTS):
            await cluster.append(key, b"%d-a" % number, b"%d-b" % number)
            assert cluster.nodes[1].ask_roll(key)
            await until_complete(cluster, key, number)
        assert all(one.remote.state is RemoteState.COMPLETE for one in cluster.segments(key)[:SEGMENTS])
        await until_told(cluster)
        topics = (await cluster.meta.service.snapshot()).topics
        cut = Cut(cluster.nodes[1].cluster_id, "cut", 1, topics, (CutShard(key, 0, 2 * SEGMENTS, SEGMENTS - 1),))
    return key, cut


async def objects_of(bucket: ObjectStore, key: ShardKey, base_offset: int, ending: str = "") -> list[str]:
    folder = f"/data/{key.topic_id}/{key.shard}/{base_offset:020}-"
    return [info.key async for info in bucket.list("") if folder in info.key and info.key.endswith(ending)]


async def bundles_of(bucket: ObjectStore) -> list[str]:
    """Parts of any segment may still lie there: it depends on how soon it was sealed."""
    return [info.key async for info in bucket.list("") if "/bundles/" in info.key]


async def cut_short(bucket: ObjectStore, key: str, size_bytes: int) -> bytes:
    body = await bucket.get(key)
    await bucket.delete([key])
    await bucket.put(key, [body[:size_bytes]])
    return body


async def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore, metadata: MemoryStore
) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path / "new", monkeypatch, bucket, metadata=metadata) as cluster:
        await cluster.start(7, **TIERED)
        yield cluster


ALL = [b"%d-%s" % (number, half) for number in range(SEGMENTS) for half in (b"a", b"b")]


@pytest.mark.fault("bucket-damaged-metadata-rebuilt")
async def test_a_manifest_that_was_cut_is_named_and_its_segment_is_completed_of_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    """`lost []`, `damaged {}`: the manifest that the snapshot named was never read."""
    key, _ = await filled(tmp_path, monkeypatch, bucket)
    (manifest,) = await objects_of(bucket, key, 2, ".manifest")
    await cut_short(bucket, manifest, 40)
    after = MemoryStore()
    rebuilt = await rebuild(bucket, after, (7,))
    assert list(rebuilt.damaged) == [manifest]
    assert not rebuilt.lost and not rebuilt.holes and rebuilt.segments_published >= 1
    async for cluster in served(tmp_path, monkeypatch, bucket, after):
        assert await cluster.values(key) == ALL


@pytest.mark.fault("bucket-damaged-metadata-rebuilt")
@pytest.mark.parametrize("left", [None, 100])
async def test_a_chunk_that_is_gone_or_cut_is_named_and_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore, left: int | None
) -> None:
    """The segment stays as it was: once the object is put back, its records are read."""
    key, _ = await filled(tmp_path, monkeypatch, bucket)
    (chunk,) = await objects_of(bucket, key, 2, ".chunk")
    body = await bucket.get(chunk)
    await bucket.delete([chunk, *await bundles_of(bucket)])
    if left is not None:
        await bucket.put(chunk, [body[:left]])
    after = MemoryStore()
    rebuilt = await rebuild(bucket, after, (7,))
    assert not rebuilt.lost and not rebuilt.gone
    (told,) = report_of(rebuilt, is_dry_run=False)["unreadable"]
    assert (told["base_offset"], told["from"], told["to"], told["object"]) == (2, 2, 4, chunk)
    assert told["why"] == ("it is gone" if left is None else f"it has {left} bytes, {len(body):,} are needed")
    async for cluster in served(tmp_path, monkeypatch, bucket, after):
        with pytest.raises(StratalogError):
            await cluster.values(key)
        await bucket.delete([chunk])
        await bucket.put(chunk, [body])

        async def is_read(cluster: NodeCluster = cluster) -> bool:
            with suppress(StratalogError):
                return await cluster.values(key) == ALL
            return False

        await eventually(is_read)  # after the pause since the range was refused


async def test_what_a_lost_chunk_had_is_taken_of_another_attempt_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    key, _ = await filled(tmp_path, monkeypatch, bucket)
    (chunk,) = await objects_of(bucket, key, 2, ".chunk")
    names = ObjectNames("", chunk.partition("/")[0])
    body = await bucket.get(chunk)
    moved = names.chunk(SegmentKey(key.topic_id, key.shard, 1, 2), 2, 4, node_id=1, lock_epoch=1, attempt=1)
    await bucket.delete([chunk, *await bundles_of(bucket)])
    await bucket.put(moved, rewritten_part(body, attempt=1))
    after = MemoryStore()
    rebuilt = await rebuild(bucket, after, (7,))
    assert not rebuilt.lost and not rebuilt.holes
    async for cluster in served(tmp_path, monkeypatch, bucket, after):
        assert await cluster.values(key) == ALL


@pytest.mark.fault("oldest-segments-topic-gone")
async def test_the_oldest_segment_of_a_topic_that_keeps_all_is_lost_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    """It was called deleted since the snapshot, which nothing may have done."""
    key, _ = await filled(tmp_path, monkeypatch, bucket, retention_ms="-1")
    await bucket.delete([*await objects_of(bucket, key, 0), *await bundles_of(bucket)])
    rebuilt = await rebuild(bucket, MemoryStore(), (7,))
    assert [(one.segment.base_offset, one.base_offset, one.end_offset) for one in rebuilt.lost] == [(0, 0, 2)]
    assert not rebuilt.gone and rebuilt.plan.shards[0].log_start_offset == 0


@pytest.mark.fault("oldest-segments-topic-gone")
@pytest.mark.parametrize(("setting", "value"), [("retention_ms", str(1 << 50)), ("retention_bytes", "3600000")])
async def test_what_retention_may_have_deleted_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore, setting: str, value: str
) -> None:
    key, _ = await filled(tmp_path, monkeypatch, bucket, **{setting: value})
    await bucket.delete([*await objects_of(bucket, key, 0), *await bundles_of(bucket)])
    rebuilt = await rebuild(bucket, MemoryStore(), (7,))
    is_expired = setting == "retention_bytes"  # by time no record is old enough
    assert [one.base_offset for one in rebuilt.gone] == ([0] if is_expired else [])
    assert [one.base_offset for one in rebuilt.lost] == ([] if is_expired else [0])


@pytest.mark.fault("snapshot-restored-bucket-lacks")
async def test_a_restore_names_all_that_the_bucket_lacks_before_it_copies_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore
) -> None:
    key, cut = await filled(tmp_path, monkeypatch, bucket)
    (chunk,), (short,) = [await objects_of(bucket, key, base, ".chunk") for base in (0, 4)]
    await bucket.delete([chunk])
    whole = await cut_short(bucket, short, 100)
    before = {info.key async for info in bucket.list("")}
    with pytest.raises(Corrupt) as raised:
        await restore_cut(bucket, cut, MemoryStore(), (7,), wall_ms(), lambda *_: None)
    words = str(raised.value)
    assert "2 faults" in words and "nothing was restored" in words
    assert f"flights-0, segment 0-0: [0, 2) in {chunk}: it is gone" in words
    assert f"segment 4-2: [4, 6) in {short}: it has 100 bytes, {len(whole):,} are needed" in words
    (manifest,) = await objects_of(bucket, key, 2, ".manifest")
    await cut_short(bucket, manifest, 40)
    with pytest.raises(Corrupt, match=f"segment 2-1: {manifest}"):
        await restore_cut(bucket, cut, MemoryStore(), (7,), wall_ms(), lambda *_: None)
    assert {info.key async for info in bucket.list("")} == before
