"""Three nodes hold each segment and one uploads it: every byte goes up once except for one chunk, whichever node is
killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import CommitParts, CompleteRemote
from stratalog.model.ids import ShardKey
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog.objects.store import ObjectStore
from support.node_cluster import NodeCluster
from support.waiting import eventually

CHUNK = 256 * 1024
VALUE = b"v" * 16_000


async def put_bytes(store: ObjectStore) -> int:
    """Nothing is deleted here, and each attempt has a name of its own."""
    return sum([info.size_bytes async for info in store.list("") if "/claims/" not in info.key])


async def put_twice(store: ObjectStore) -> list[int]:
    """Sizes of the chunks that went up again, each under a name of its own for the same first offset."""
    names = sorted([(info.key.rpartition("/")[2], info.size_bytes) async for info in store.list("")])
    chunks = [(name.partition("-")[0], size_bytes) for name, size_bytes in names if name.endswith(".chunk")]
    return [size_bytes for (first, size_bytes), (before, _) in zip(chunks[1:], chunks, strict=False) if first == before]


def is_in_store(cluster: NodeCluster, key: ShardKey, epoch: int) -> bool:
    return any(one.epoch == epoch and one.remote.state is RemoteState.COMPLETE for one in cluster.segments(key))


def produced_bytes(segments: list[Segment]) -> int:
    return sum(segment.seal.size_bytes for segment in segments if segment.seal is not None)


@pytest.mark.fault("node-uploads-replicated-segment", "node-upload-segment-leader")
async def test_a_killed_uploader_costs_one_chunk_at_most_and_another_continues_at_the_commit_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(1, 2, 3, remote_upload_chunk_bytes=CHUNK, remote_upload_interval_ms=3_600_000)
        key = await cluster.shard(3)
        for _ in range(100):
            await cluster.append(key, VALUE)
        uploader = cluster.leader(key)
        await eventually(lambda: cluster.segments(key)[0].remote.commit_offset > 0)
        asked = cluster.meta.calls[CommitParts]
        cluster.meta.hold(CommitParts)
        for _ in range(100):
            await cluster.append(key, VALUE)
        await eventually(lambda: cluster.meta.calls[CommitParts] > asked)
        offset = cluster.segments(key)[0].remote.commit_offset
        await cluster.kill(uploader)
        cluster.meta.release(CommitParts)
        await cluster.lose(uploader)
        await eventually(lambda: is_in_store(cluster, key, 0), timeout=20)
        (ended, *_) = cluster.segments(key)
        assert ended.remote.commit_offset >= offset
        produced = produced_bytes(cluster.segments(key)[:1])
        twice = await put_twice(store)
        assert len(twice) <= 1, "one chunk at most goes up again"
        assert 200 * len(VALUE) <= produced
        assert await put_bytes(store) - sum(twice) <= 1.05 * produced


@pytest.mark.fault("node-reports-copy-completes")
async def test_a_node_that_completes_a_segment_too_late_keeps_its_write_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duty for one segment has passed on, which it does not know yet: its other work does not stop for that."""
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, remote_upload_interval_ms=20)
        key = await cluster.shard(2)
        cluster.meta.hold(CompleteRemote)
        await cluster.append(key, VALUE)
        shard = await cluster.leads_again(key)
        late = shard.context.node_id
        uploader = cluster.nodes[late].tier.uploader
        assert uploader is not None
        shard.ask_roll(0)
        await eventually(lambda: cluster.meta.calls[CompleteRemote] == 1)
        held = uploader.lock.current
        assert held is not None
        with cluster.deaf(late):
            await cluster.lose(late)
            cluster.meta.release(CompleteRemote)
            await eventually(lambda: is_in_store_at(cluster, 3 - late, key))
            await eventually(lambda: not uploader._uploads)
            assert uploader.lock.current == held
        await cluster.restore_heartbeats(late)


def is_in_store_at(cluster: NodeCluster, node_id: int, key: ShardKey) -> bool:
    return cluster.segments(key, node_id)[0].remote.state is RemoteState.COMPLETE
