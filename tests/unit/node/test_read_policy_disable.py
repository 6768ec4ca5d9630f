"""Nodes of a topic with `remote.read.policy=Disable`: a node leaves, and every record stays readable; where no copy is
left, a consumer gets an error with the reason in the log."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.model.commands.table_commands import MoveReplicas
from stratalog.model.errors import OutOfReach
from stratalog.model.ids import ShardKey
from stratalog.model.retirement import RetireStep
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog.objects.store import ObjectStore
from stratalog_node.node import wall_ms
from stratalog_node.replication import store_source
from stratalog_node.tier.cold.cold_reader import ColdReader
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.tiered_shards import TieredShardRig
from unit.shards.log.test_unreadable_copies import sealed

VALUES_OF_NODES = [b"value-%d" % number for number in range(5)]


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
async def test_a_node_leaves_once_others_have_what_readers_may_not_take_from_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        leaving = Leaving(cluster, has_store=True)
        key = await cluster.shard(replicas=1, remote_read_policy="Disable", remote_storage_enable="true")
        for value in VALUES_OF_NODES:
            await cluster.append(key, value)
        gone = cluster.leader(key)
        await leaving.retire(gone)
        await leaving.until(step=RetireStep.DONE, of=gone)
        first = cluster.segments(key)[0]
        assert first.local_nodes and gone not in first.local_nodes
        await cluster.until(lambda: cluster.segments(key)[0].remote.state is RemoteState.COMPLETE)
        assert (await cluster.values(key))[:5] == VALUES_OF_NODES


async def stored(cluster: NodeCluster, key: ShardKey) -> Segment:
    """The first segment, sealed and whole in the bucket."""
    for value in VALUES_OF_NODES:
        await cluster.append(key, value)
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    await cluster.is_sealed(key)
    await cluster.until(lambda: cluster.segments(key)[0].remote.state is RemoteState.COMPLETE)
    return cluster.segments(key)[0]


async def repair(cluster: NodeCluster, away: int) -> None:
    """As the meta service does once a node has been away for a while."""
    steps = plan_moves(await cluster.meta.service.snapshot(), frozenset({away}), frozenset())
    while True:
        try:
            next(steps)
        except StopIteration as done:
            await cluster.meta.service.perform(MoveReplicas(tuple(done.value.moves)))
            return


async def chunk_with(store: ObjectStore, text: bytes) -> tuple[str, bytes]:
    """Of the sealed segment: a bundle that was uploaded while it was written may still hold the text, too."""
    async for info in store.list(""):
        if info.key.endswith(".chunk") and text in (whole := await store.get(info.key)):
            return info.key, whole
    raise AssertionError(f"no chunk holds {text!r}")


async def replaced(store: ObjectStore, key: str, body: bytes) -> None:
    await store.delete([key])
    await store.put(key, [body])


@pytest.mark.fault("all-local-copies-lost-bucket-whole")
async def test_a_copy_is_made_from_the_bucket_when_its_only_holder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket had all of it, and it stayed unreadable for ever: copies were made of living nodes' copies alone."""
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        key = await cluster.shard(replicas=1, remote_read_policy="Disable", remote_storage_enable="true")
        gone = cluster.leader(key)
        first = await stored(cluster, key)
        whole = cluster.layout(gone).segment(first.key).read_bytes()
        await cluster.wipe(gone)
        await cluster.lose(gone)
        await repair(cluster, away=gone)
        await cluster.until(lambda: len(cluster.segments(key)[0].local_nodes) == 2)
        (made,) = {*cluster.segments(key)[0].local_nodes} - {gone}
        path = cluster.layout(made).segment(first.key)
        assert path.read_bytes()[SEGMENT_HEADER_BYTES:] == whole[SEGMENT_HEADER_BYTES:]
        assert cluster.nodes[made].following.stats.stored_bytes == len(whole) - SEGMENT_HEADER_BYTES
        shard = cluster.nodes[made].shards.get(key)
        assert shard is not None
        batches = await shard.workers.reader.read_to_keep(shard, 0, 1 << 20)
        assert b"value-4" in b"".join(batches)


@pytest.mark.fault("holders-dead-and-silent")
async def test_a_copy_from_the_bucket_waits_for_no_holder_that_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment waited 3 to 6 s for each dead node whose machine answers nothing. With two of them and others in
    line it lost its place before the bucket's turn came, again and again."""
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, **QUICK)
        key = await cluster.shard(replicas=1, remote_read_policy="Disable", remote_storage_enable="true")
        gone = cluster.leader(key)
        await stored(cluster, key)
        _, port = cluster.nodes[gone].address
        await cluster.wipe(gone)
        await cluster.lose(gone)
        with socket.create_server(("127.0.0.1", port)) as silent:
            await repair(cluster, away=gone)
            await cluster.until(lambda: 3 - gone in cluster.segments(key)[0].local_nodes)
            silent.setblocking(False)
            with pytest.raises(BlockingIOError):
                silent.accept()


@pytest.mark.fault("bucket-silent-holder-back")
async def test_a_copy_comes_from_a_node_that_is_back_while_the_bucket_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_source, "_ANSWER_S", 0.05)
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        await cluster.start(1, 2, **QUICK)
        key = await cluster.shard(replicas=1, remote_read_policy="Disable", remote_storage_enable="true")
        gone = cluster.leader(key)
        await stored(cluster, key)
        await cluster.kill(gone)
        await cluster.lose(gone)
        is_asked = asyncio.Event()

        async def silent(*_: object) -> list[bytes | memoryview]:
            is_asked.set()
            return await asyncio.Future()

        monkeypatch.setattr(ColdReader, "read", silent)
        await repair(cluster, away=gone)
        await is_asked.wait()
        await cluster.start(gone, **QUICK)
        await cluster.until(lambda: 3 - gone in cluster.segments(key)[0].local_nodes)


@pytest.mark.fault("all-local-copies-lost-bucket-whole")
async def test_what_the_bucket_has_damaged_is_never_mistaken_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_memory(StoreSettings())
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(1, 2, **QUICK)
        key = await cluster.shard(replicas=1, remote_read_policy="Disable", remote_storage_enable="true")
        gone = cluster.leader(key)
        await stored(cluster, key)
        chunk, whole = await chunk_with(store, b"value-3")
        await replaced(store, chunk, whole.replace(b"value-3", b"VALUE-3"))
        await cluster.wipe(gone)
        await cluster.lose(gone)
        await repair(cluster, away=gone)
        made = 3 - gone
        following = cluster.nodes[made].following
        await cluster.until(lambda: following.stats.copies_due == 1)
        cold = cluster.nodes[made].remote_reads.cold
        assert cold is not None
        await cluster.until(lambda: cold.stats.corrupt_ranges > 0)
        assert made not in cluster.segments(key)[0].local_nodes
        await replaced(store, chunk, whole)
        await cluster.until(lambda: made in cluster.segments(key)[0].local_nodes)


@pytest.mark.fault("consumer-reads-bucket-remote-read-policy")
async def test_a_read_that_the_policy_alone_refuses_is_an_error_and_is_counted(tmp_path: Path) -> None:
    """It was a retriable code without a word anywhere: consumers waited without an end."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await sealed(rig, remote_storage_enable="true", remote_read_policy="Disable")
        await rig.uploaded()
        rig.file_of(shard, 0).unlink()
        shard.copies[0].file.close()
        for count in (1, 2):
            with pytest.raises(OutOfReach, match=r"remote\.read\.policy=Disable keeps readers out: .*NotInDisk"):
                await rig.reader.read(shard, 0, 1 << 20)
            assert rig.local.context.stats.barred_reads == count
