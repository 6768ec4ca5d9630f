"""Direct topics on real nodes: what is acknowledged is in the object store, whichever nodes are lost
(docs/direct-spec.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import decode_records
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.machines.leading.chain_events import SegmentFlushFailed
from stratalog.model.commands.table_commands import AlterTopic, CommitParts, CompleteRemote
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import RemoteState
from stratalog.model.storage_policy import StoragePolicy
from stratalog.objects import ObjectStore, open_store
from stratalog.stored.remote.parts import check_part_header
from stratalog_node.node import wall_ms
from support.faulty_store import Fault, FaultyStore
from support.node_cluster import NodeCluster
from support.waiting import eventually

FAST = {"direct_commit_interval_ms": 5}
DIRECT = {"storage_policy": "Direct"}


@pytest.fixture
async def bucket() -> AsyncIterator[ObjectStore]:
    store = open_store("memory:")
    yield store
    await store.close()


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: ObjectStore) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch, bucket) as cluster:
        yield cluster


async def stored(cluster: NodeCluster, bucket: ObjectStore, key: ShardKey) -> list[bytes | None]:
    """The values below the commit offsets, read from the bucket alone by what the metadata name."""
    found: list[bytes | None] = []
    snapshot = await cluster.meta.service.snapshot()
    for segment in next(shard.segments for shard in snapshot.shards if shard.key == key):
        for part in segment.remote.parts:
            body = await bucket.get_range(part.object_key, part.position, part.position + part.size_bytes)
            end = check_part_header(body, cluster.meta.service.cluster_id, segment.key, part).index_position
            for position, header in walk(body[PART_HEADER_BYTES:end], source="part"):
                at = PART_HEADER_BYTES + position
                found += [one.value for one in decode_records(body[at : at + header.size_bytes])]
    return found


async def test_a_batch_is_acknowledged_once_the_metadata_name_its_part_and_no_node_replicates_it(
    cluster: NodeCluster, bucket: ObjectStore
) -> None:
    await cluster.start(1, 2, **FAST)
    key = await cluster.shard(2, **DIRECT)
    assert [await cluster.append(key, b"%d" % number) for number in range(3)] == [0, 1, 2]
    assert await stored(cluster, bucket, key) == [b"0", b"1", b"2"]
    (segment,) = cluster.segments(key)
    assert (segment.policy, segment.replicas) == (StoragePolicy.DIRECT, (cluster.leader(key),))
    assert await cluster.values(key) == [b"0", b"1", b"2"]


@pytest.mark.fault("direct-commits-wait")
@pytest.mark.parametrize("acks", [1, -1])
async def test_nothing_is_acknowledged_or_served_before_the_commit(cluster: NodeCluster, acks: int) -> None:
    await cluster.start(1, **FAST)
    key = await cluster.shard(1, **DIRECT)
    await cluster.append(key, b"first")
    cluster.meta.hold(CommitParts)
    waiting = cluster.offer(key, b"second", acks=acks)
    await eventually(lambda: cluster.meta.is_held(CommitParts))
    assert not waiting.done()
    assert await cluster.values(key) == [b"first"]
    cluster.meta.open_all()
    assert await waiting == 1
    assert await cluster.values(key) == [b"first", b"second"]


@pytest.mark.fault("direct-all-disks-lost")
async def test_when_every_disk_is_lost_all_that_was_acknowledged_is_served_by_a_new_node(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1, 2, **FAST)
    key = await cluster.shard(1, **DIRECT)
    for number in range(20):
        await cluster.append(key, b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
    for node_id in (1, 2):
        await cluster.wipe(node_id)
        await cluster.lose(node_id)
    await cluster.start(3, **FAST)
    assert await cluster.append(key, b"19", producer_id=7, producer_epoch=0, base_sequence=19) == 19, "it is there"
    assert await cluster.append(key, b"20", producer_id=7, producer_epoch=0, base_sequence=20) == 20
    assert await cluster.values(key) == [b"%d" % number for number in range(21)]
    sealed = await cluster.is_sealed(key)
    assert (sealed.end_offset, sealed.local_nodes, sealed.handed.given_up) == (20, (3,), ())


@pytest.mark.fault("direct-leader-deaf")
async def test_a_leader_that_is_lost_and_still_writes_acknowledges_nothing_more(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, **FAST)
    key = await cluster.shard(1, **DIRECT)
    await cluster.append(key, b"kept")
    old = cluster.leader(key)
    with cluster.deaf(old):
        late = cluster.offer(key, b"late")
        shard = cluster.led(key)
        await cluster.lose(old)
        other = 3 - old
        await eventually(lambda: cluster.segments(key, other)[-1].leader == other)
        ended = cluster.segments(key, other)[0]
        assert ended.end_offset in (1, 2), "its commit came before the fence, or never"
        if ended.end_offset == 1:
            later = cluster.nodes[old].shards.get(key)
            assert later is shard and not late.done()
    values = await cluster.values(key)
    if late.done() and late.exception() is None:
        assert values == [b"kept", b"late"]
    else:
        assert values in ([b"kept"], [b"kept", b"late"])


@pytest.mark.fault("direct-leader-restarts")
@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_leader_that_starts_again_ends_its_segment_where_the_object_store_s_data_end(
    cluster: NodeCluster, is_cut: bool
) -> None:
    """What its disk has beyond that is cut off, and what a power cut took from its disk is fetched."""
    await cluster.start(1, **FAST)
    key = await cluster.shard(1, **DIRECT)
    for number in range(4):
        await cluster.append(key, b"%d" % number)
    cluster.meta.hold(CommitParts)
    lost = cluster.offer(key, b"never acknowledged")
    await eventually(lambda: cluster.meta.is_held(CommitParts))
    first = cluster.segments(key)[0].key
    await (cluster.power_cut(1, first, 2) if is_cut else cluster.kill(1))
    assert not lost.done()
    cluster.meta.open_all()
    await cluster.start(1, **FAST)
    assert await cluster.append(key, b"4") == 4
    assert await cluster.values(key) == [b"0", b"1", b"2", b"3", b"4"]
    sealed = await cluster.is_sealed(key)
    assert (sealed.end_offset, sealed.handed.given_up) == (4, ())


@pytest.mark.fault("direct-commits-wait")
@pytest.mark.parametrize("first", [Fault.NONE, Fault.SLOW_DOWN, Fault.LOST_ANSWER, Fault.CUT])
async def test_ranges_of_a_shard_are_put_side_by_side_and_acknowledged_in_order_whatever_becomes_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Fault
) -> None:
    bucket = FaultyStore(open_store("memory:"), wall_ms)
    async with NodeCluster(tmp_path, monkeypatch, bucket) as cluster:
        await cluster.start(1, **FAST)
        key = await cluster.shard(1, **DIRECT)
        await cluster.append(key, b"before")
        bucket.gate.clear()
        bucket.script.append(first)
        begun, waiting = len(bucket.puts), []
        for number in range(3):
            waiting.append(cluster.offer(key, b"%d" % number))
            await eventually(lambda most=begun + number: len(bucket.puts) > most)
        assert not any(one.done() for one in waiting)
        bucket.gate.set()
        assert await asyncio.gather(*waiting) == [1, 2, 3]
        assert await stored(cluster, bucket.inner, key) == [b"before", b"0", b"1", b"2"]
        uploader = cluster.nodes[1].tier.uploader
        assert uploader is not None
        await eventually(lambda: uploader.stats.direct_unstored_bytes == 0)
        assert await cluster.append(key, b"after") == 4


@pytest.mark.fault("direct-commits-wait")
async def test_above_the_bound_batches_are_refused_until_the_object_store_takes_what_waits(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1, **FAST, direct_max_unacknowledged_bytes=1 << 10)
    key = await cluster.shard(1, **DIRECT)
    other = await cluster.shard(1, "replicated")
    cluster.meta.hold(CommitParts)
    waiting = [cluster.offer(key, b"x" * 300) for _ in range(4)]
    await asyncio.sleep(0)
    await eventually(lambda: cluster.meta.is_held(CommitParts))
    with pytest.raises(Unavailable, match=r"direct\.max\.unacknowledged\.bytes=1024"):
        await cluster.offer(key, b"too much")
    uploader = cluster.nodes[1].tier.uploader
    assert uploader is not None
    await eventually(lambda: uploader.stats.direct_unstored_bytes >= 1 << 10)
    assert await cluster.append(other, b"not its concern") == 0
    cluster.meta.open_all()
    assert await asyncio.gather(*waiting) == [0, 1, 2, 3]
    assert await cluster.append(key, b"room again") == 4
    await eventually(lambda: uploader.stats.direct_unstored_bytes == 0)


@pytest.mark.fault("direct-commits-wait")
async def test_what_is_written_behind_rolls_that_wait_for_the_object_store_counts_too(cluster: NodeCluster) -> None:
    await cluster.start(1, **FAST, direct_max_unacknowledged_bytes=1 << 10)
    key = await cluster.shard(1, **DIRECT, segment_bytes="300")
    await cluster.append(key, b"first")
    cluster.meta.hold(CommitParts)
    waiting = [cluster.offer(key, b"x" * 200)]
    await eventually(lambda: cluster.meta.is_held(CommitParts))
    uploader = cluster.nodes[1].tier.uploader
    assert uploader is not None
    for _ in range(5):  # each into a segment of its own
        before = uploader.stats.direct_unstored_bytes
        waiting.append(cluster.offer(key, b"x" * 200))
        await eventually(lambda before=before: uploader.stats.direct_unstored_bytes > before)
        if uploader.stats.direct_unstored_bytes >= 1 << 10:
            break
    with pytest.raises(Unavailable, match=r"direct\.max\.unacknowledged\.bytes=1024"):
        await cluster.offer(key, b"too much")
    cluster.meta.open_all()
    assert await asyncio.gather(*waiting) == list(range(1, len(waiting) + 1))
    await eventually(lambda: uploader.stats.direct_unstored_bytes == 0)
    assert await cluster.append(key, b"room again") == len(waiting) + 1


@pytest.mark.fault("direct-leader-doubts")
async def test_a_leader_that_cannot_vouch_for_its_copy_passes_the_shard_on(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, **FAST)
    key = await cluster.shard(1, **DIRECT)
    assert [await cluster.append(key, b"%d" % number) for number in range(3)] == [0, 1, 2]
    old = cluster.leader(key)
    shard, epoch = cluster.led(key), cluster.segments(key)[-1].epoch
    shard.handle(SegmentFlushFailed(epoch, "Input/output error"))
    await cluster.nodes[old].faulty_copies.check()
    other = 3 - old
    await eventually(lambda: cluster.segments(key, other)[-1].leader == other)
    assert (await cluster.is_sealed(key)).local_nodes == (other,)
    assert await cluster.append(key, b"3") == 3
    assert await cluster.values(key) == [b"0", b"1", b"2", b"3"]


async def test_a_topic_becomes_direct_and_replicated_again_while_it_is_written(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, **FAST, remote_upload_interval_ms=20)
    key = await cluster.shard(2)
    written = [await cluster.append(key, b"%d" % number) for number in range(3)]
    for settings in ({"storage.policy": "Direct"}, {}):
        await cluster.meta.service.perform(AlterTopic(key.topic_id, settings))
        wanted = StoragePolicy(settings.get("storage.policy", "Replicated"))

        def has_changed(wanted: StoragePolicy = wanted) -> bool:
            return cluster.segments(key)[-1].policy is wanted

        await eventually(has_changed)
        written += [await cluster.append(key, b"%d" % number) for number in range(len(written), len(written) + 3)]
    assert written == list(range(9))
    assert await cluster.values(key) == [b"%d" % number for number in range(9)]
    await eventually(lambda: len(cluster.segments(key)[-1].isr) == 2)
    assert len(cluster.segments(key)) == 3


async def test_a_single_node_changes_the_policy_of_a_topic_that_was_never_written(cluster: NodeCluster) -> None:
    await cluster.start(1, **FAST)
    key = await cluster.shard(1)
    await cluster.meta.service.perform(AlterTopic(key.topic_id, {"storage.policy": "Direct"}))
    await eventually(lambda: cluster.segments(key)[-1].policy is StoragePolicy.DIRECT)
    assert await cluster.append(key, b"0") == 0


async def test_a_shard_moves_to_a_new_node_while_an_idempotent_producer_writes(cluster: NodeCluster) -> None:
    await cluster.start(1, **FAST)
    keys = [await cluster.shard(1, name, **DIRECT) for name in ("flights", "routes")]
    sent = dict.fromkeys(keys, 0)

    async def send(key: ShardKey) -> None:
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sent[key]}
        assert await cluster.append(key, b"%d" % sent[key], **options) == sent[key]
        sent[key] += 1

    for key in keys * 2:
        await send(key)
    await cluster.start(2, **FAST)
    for key in keys:
        cluster.nodes[1].roll_elsewhere(cluster.segments(key)[-1].key)
    await eventually(lambda: sorted(cluster.segments(key)[-1].leader or 0 for key in keys) == [1, 2])
    for key in keys * 2:
        await send(key)
    assert [await cluster.values(key) for key in keys] == [[b"0", b"1", b"2", b"3"]] * 2


async def test_many_small_segments_roll_and_become_complete(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, **FAST)
    key = await cluster.shard(1, **DIRECT, segment_bytes="300")
    for number in range(12):
        assert await cluster.append(key, b"%d" % number * 60) == number
    assert await cluster.values(key) == [b"%d" % number * 60 for number in range(12)]
    assert len(cluster.segments(key)) > 4

    def is_complete() -> bool:
        return all(one.remote.state is RemoteState.COMPLETE for one in cluster.segments(key)[:-1])

    await eventually(is_complete)


@pytest.mark.fault("direct-holder-lost")
async def test_a_sealed_copy_that_is_lost_before_its_upload_is_complete_is_made_from_the_parts(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1, 2, **FAST)
    key = await cluster.shard(1, **DIRECT)
    for number in range(4):
        await cluster.append(key, b"%d" % number)
    cluster.meta.hold(CompleteRemote)
    holder = cluster.leader(key)
    cluster.nodes[holder].ask_roll(key)
    sealed = await cluster.is_sealed(key)
    assert sealed.local_nodes == (holder,)
    await cluster.wipe(holder)
    await cluster.lose(holder)
    await cluster.start(holder, **FAST)
    cluster.meta.open_all()

    def is_complete() -> bool:
        return cluster.segments(key)[0].remote.state is RemoteState.COMPLETE

    await eventually(is_complete, 30)
    assert await cluster.values(key) == [b"0", b"1", b"2", b"3"]
