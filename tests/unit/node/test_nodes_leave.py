"""Whole nodes leave a cluster: producers continue, no byte of what has a remote tier moves between nodes, everything is
readable afterwards, and the node is refused when it comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stratalog.machines.leading.sealed_producers import Producers
from stratalog.model.commands.table_commands import CommitParts, NoteLives, ReportReplica
from stratalog.model.errors import Fenced, StratalogError, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.retirement import RetireMode, RetireStep, WaitReason
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog.objects.store import ObjectStore
from stratalog_node.node import wall_ms
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.waiting import eventually
from unit.node.test_uploads_of_nodes import CHUNK


@pytest.fixture
def store() -> ObjectStore:
    return open_memory(StoreSettings())


@pytest.fixture
async def tiered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        yield cluster


@pytest.fixture
async def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        yield cluster


@pytest.mark.fault("meta-service-leader-dies")
async def test_a_node_leaves_while_producers_continue_and_nothing_moves_between_nodes(tiered: NodeCluster) -> None:
    leaving = Leaving(tiered, has_store=True)
    key = await tiered.shard(replicas=1)
    idle = await tiered.shard(replicas=1, name="idle")
    acknowledged = [await tiered.append(key, b"before-%d" % number) for number in range(5)]
    gone = tiered.leader(key)
    is_over = asyncio.Event()

    async def produce() -> None:
        number = 0
        while not is_over.is_set():
            with contextlib.suppress(StratalogError):  # refused: a client then finds the present leader
                acknowledged.append(await tiered.append(key, b"during-%d" % number))
            number += 1
            await asyncio.sleep(0.01)

    producing = asyncio.get_running_loop().create_task(produce())
    await leaving.retire(gone)
    await leaving.until(step=RetireStep.DONE, of=gone)
    is_over.set()
    await producing
    assert [step for node_id, step in leaving.steps if node_id == gone] == [
        step for step in RetireStep if (gone, step) in leaving.steps
    ], "in their order"
    assert {RetireStep.SEAL, RetireStep.VERIFY, RetireStep.RELEASE} <= {step for _, step in leaving.steps}
    values = await tiered.values(key)
    assert len(values) >= len(acknowledged) == len(set(acknowledged)) and values[:5] == [
        b"before-%d" % number for number in range(5)
    ]
    assert gone not in tiered.nodes
    for shard in (key, idle):
        segments = tiered.segments(shard)
        assert all(gone not in (*one.local_nodes, one.leader) for one in segments)
        assert all(
            one.remote.state is RemoteState.COMPLETE or one.end_offset == one.base_offset
            for one in segments
            if one.state is SegmentState.SEALED and gone in one.replicas
        )
    assert all(node.following.stats.catch_up_bytes == 0 for node in tiered.nodes.values()), "no byte between nodes"
    record = await leaving.record(gone)
    assert record.inventory_key is not None and tiered.store is not None
    inventory = await tiered.store.get(record.inventory_key)
    assert b'"digest"' in inventory and record.storage_id.encode() in inventory
    with pytest.raises(Fenced, match="was retired"):
        await tiered.start(gone, **QUICK)


@pytest.mark.fault("topics-remote-tier")
async def test_without_a_remote_tier_others_copy_what_it_has_before_it_goes(plain: NodeCluster) -> None:
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=2)
    values = [b"value-%d" % number for number in range(20)]
    for value in values:
        await plain.append(key, value)
    gone = plain.leader(key)
    await leaving.retire(gone)
    await leaving.until(step=RetireStep.DONE, of=gone)
    assert await plain.values(key) == values
    for segment in plain.segments(key):
        if segment.end_offset != segment.base_offset and segment.seal is not None:
            assert len(segment.local_nodes) == 2 and gone not in segment.local_nodes
    assert (await leaving.record(gone)).inventory_key is None, "there is no bucket to write it to"


@pytest.mark.fault("retirement-cancelled-retired-node")
async def test_a_retirement_that_is_taken_back_costs_nothing(tiered: NodeCluster) -> None:
    leaving = Leaving(tiered, has_store=True)
    key = await tiered.shard(replicas=1)
    await tiered.append(key, b"one")
    stays = tiered.leader(key)
    await leaving.retire(stays)
    await leaving.until(step=RetireStep.VERIFY, of=stays)
    await leaving.cancel(stays)
    await leaving.run_checks()
    assert (await leaving.node(stays)).retirement is None
    for number in range(3):
        await tiered.shard(replicas=1, name=f"new-{number}")
    led = [tiered.leader(shard) for shard in list(tiered.nodes[stays].catalog.shard_keys())]
    assert stays in led, "it gets segments again"
    assert (await tiered.values(key))[0] == b"one"


@pytest.mark.fault("node-died-permanently")
async def test_a_node_that_died_leaves_when_others_or_the_bucket_have_all_of_it(tiered: NodeCluster) -> None:
    leaving = Leaving(tiered, has_store=True)
    key = await tiered.shard(replicas=2)
    for number in range(5):
        await tiered.append(key, b"value-%d" % number)
    gone = tiered.leader(key)
    await tiered.kill(gone)
    await tiered.lose(gone)
    await leaving.retire(gone)
    await leaving.until(step=RetireStep.DONE, of=gone)
    assert (await tiered.values(key))[:5] == [b"value-%d" % number for number in range(5)]
    assert (await leaving.record(gone)).given_up_count == 0


@pytest.mark.fault("node-died-permanently")
async def test_what_only_a_dead_node_had_is_waited_for_and_given_up_by_name(plain: NodeCluster) -> None:
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=1)
    await plain.append(key, b"lost", b"too")
    gone = plain.leader(key)
    assert plain.nodes[gone].ask_roll(key)
    await plain.is_sealed(key)
    await plain.append(key, b"lost with it")
    storage_id = (await leaving.node(gone)).storage_id
    await plain.kill(gone)
    await plain.lose(gone)
    await leaving.retire(gone)
    for _ in range(4):
        await leaving.run_checks()
    wait = (await leaving.record(gone)).wait
    assert wait is not None and wait.reason is WaitReason.SHARD_UNAVAILABLE
    with pytest.raises(StratalogError, match="spelled out"):
        await leaving.retire(gone, force="another")
    await leaving.retire(gone, force=storage_id)
    await leaving.until(step=RetireStep.DONE, of=gone)
    record = await leaving.record(gone)
    assert record.is_forced and record.given_up_count == 2
    assert sorted((one.base_offset, one.end_offset) for one in record.given_up) == [(0, 2), (2, 2)], "one was open"
    offset = await plain.append(key, b"it goes on")
    assert offset >= 2


@pytest.mark.fault("node-given-force-last")
async def test_a_shard_continues_though_only_the_dead_node_knew_its_producers(plain: NodeCluster) -> None:
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=1)
    writer = {"producer_id": 7, "producer_epoch": 0}
    await plain.append(key, b"lost", b"too", **writer, base_sequence=0)
    gone = plain.leader(key)
    assert plain.nodes[gone].ask_roll(key)
    sealed = await plain.is_sealed(key)
    assert sealed.seal is not None and sealed.seal.producers.count == 1
    storage_id = (await leaving.node(gone)).storage_id
    await plain.kill(gone)
    await plain.lose(gone)
    await leaving.retire(gone, force=storage_id)
    await leaving.until(step=RetireStep.DONE, of=gone)
    assert await plain.append(key, b"it goes on", producer_id=8, producer_epoch=0, base_sequence=0) >= 2


@pytest.mark.fault("dead-node-leave-topic")
async def test_a_dead_node_that_a_majority_needs_is_named_and_given_up_without_a_loss(plain: NodeCluster) -> None:
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=2, acks_policy="quorum")
    values = [b"value-%d" % number for number in range(5)]
    for value in values:
        await plain.append(key, value)
    gone = next(one for one in plain.segments(key)[0].replicas if one != plain.leader(key))
    storage_id = (await leaving.node(gone)).storage_id
    await plain.kill(gone)
    await plain.lose(gone)
    await leaving.retire(gone)
    for _ in range(4):
        await leaving.run_checks()
    record = await leaving.record(gone)
    assert record.step is RetireStep.SEAL and record.wait is not None
    assert record.wait.reason is WaitReason.SHARD_UNAVAILABLE and f"nodes [{gone}] are not alive" in record.wait.words
    await leaving.retire(gone, force=storage_id)
    await leaving.until(step=RetireStep.DONE, of=gone)
    assert (await leaving.record(gone)).given_up_count == 0
    await plain.append(key, b"it goes on")
    assert await plain.values(key) == [*values, b"it goes on"]
    assert gone not in plain.segments(key)[-1].replicas and len(plain.segments(key)[-1].replicas) == 2


@pytest.mark.fault("node-given-force-uploaded")
async def test_a_producer_continues_though_the_dead_node_had_uploaded_only_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    """What it wrote last is lost, so what it sends next does not follow on what is left: that must not end it."""
    async with NodeCluster(tmp_path, monkeypatch, store) as cluster:
        await cluster.start(
            1, 2, 3, **(QUICK | {"remote_upload_interval_ms": 3_600_000, "remote_upload_chunk_bytes": CHUNK})
        )
        leaving = Leaving(cluster, has_store=True)
        key = await cluster.shard(replicas=1)
        sequences = iter(range(1_000))

        async def append() -> int:
            value = b"x" * (CHUNK // 8)
            return await cluster.append(key, value, producer_id=7, producer_epoch=0, base_sequence=next(sequences))

        while cluster.segments(key)[0].remote.commit_offset <= 0:
            await append()
        cluster.meta.hold(CommitParts)
        for _ in range(20):
            await append()
        gone = cluster.leader(key)
        assert cluster.nodes[gone].ask_roll(key)
        await cluster.is_sealed(key)
        storage_id = (await leaving.node(gone)).storage_id
        await cluster.kill(gone)
        await cluster.lose(gone)
        cluster.meta.release(CommitParts)
        await leaving.retire(gone, force=storage_id)
        await leaving.until(step=RetireStep.DONE, of=gone)
        lost, opened = sorted((await leaving.record(gone)).given_up, key=lambda one: one.base_offset)
        assert opened.base_offset == opened.end_offset == lost.end_offset
        assert 0 < lost.base_offset < lost.end_offset
        await cluster.leads_again(key)
        for number in range(2):  # one after the other, as it sends
            sent = cluster.offer(key, b"more", producer_id=7, producer_epoch=0, base_sequence=next(sequences))
            assert await sent == lost.end_offset + number, "it goes on behind what was given up"
        out_of_order = cluster.offer(key, b"no", producer_id=7, producer_epoch=0, base_sequence=next(sequences) + 1)
        with pytest.raises(Unavailable, match="out of order"):
            await out_of_order


@pytest.mark.fault("check-finds-cannot-read")
async def test_of_a_volume_the_node_reads_its_own_files_and_a_damaged_one_is_named(plain: NodeCluster) -> None:
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=1)
    await plain.append(key, b"one", b"two")
    gone = plain.leader(key)
    plain.nodes[gone].shards.get(key).ask_roll(wall_ms())  # type: ignore[union-attr]
    segment = (await plain.is_sealed(key)).key
    path = plain.layout(gone).segment(segment)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    await leaving.retire(gone, RetireMode.VOLUME)
    waits = []

    def is_named() -> bool:
        node = plain.nodes[gone].catalog.node(gone)
        wait = None if node is None or node.retirement is None else node.retirement.wait
        waits.append(wait)
        return wait is not None and wait.reason is WaitReason.DIGEST_MISMATCH

    await leaving.until(is_named)
    assert str(path.name) in waits[-1].words  # type: ignore[union-attr]
    path.write_bytes(good)
    await leaving.until(step=RetireStep.RELEASE, of=gone)
    assert segment in [one.key for one in plain.segments(key) if gone in one.local_nodes]
    await eventually(lambda: gone not in plain.nodes)


@pytest.mark.fault("node-leaves-empty-segment")
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_shard_continues_behind_an_empty_segment_that_only_the_departed_node_had(
    plain: NodeCluster, is_lost: bool
) -> None:
    """An empty segment is not copied. A leader that started again waited for its table of producers forever."""
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=1)
    writer = {"producer_id": 7, "producer_epoch": 0}
    await plain.append(key, b"once", **writer, base_sequence=0)
    gone = plain.leader(key)
    assert plain.nodes[gone].ask_roll(key)
    await plain.is_sealed(key)
    await leaving.retire(gone)
    await eventually_seen(leaving, lambda: plain.led(key) is not None and plain.leader(key) != gone)
    empty = await plain.is_sealed(key, epoch=1)
    assert empty.seal is not None and empty.base_offset == empty.end_offset and empty.seal.producers.count == 1
    if is_lost:  # with the records before the empty one, which others had not copied yet
        storage_id = (await leaving.node(gone)).storage_id
        await plain.kill(gone)
        await plain.lose(gone)
        await leaving.retire(gone, force=storage_id)
    await leaving.until(step=RetireStep.DONE, of=gone)
    assert plain.segments(key)[1].local_nodes == ()
    leads = plain.leader(key)
    await plain.kill(leads)
    await plain.lose(leads)
    await plain.start(leads, **QUICK)
    offset = await plain.append(key, b"once", **writer, base_sequence=0)
    assert offset == (1 if is_lost else 0), "it is known as long as its records are there"


@pytest.mark.fault("node-released")
async def test_producers_that_a_forced_node_knows_are_not_forgotten_while_it_may_come_back(plain: NodeCluster) -> None:
    """It had what was written before, and a repetition of that was taken for something new meanwhile."""
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=1)
    sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    await plain.append(key, b"once", b"only", **sent)
    away = plain.leader(key)
    await leaving.retire(away)
    await eventually_seen(leaving, lambda: plain.led(key) is not None and plain.leader(key) != away)
    await plain.is_sealed(key)
    leads = plain.leader(key)
    storage_id = (await leaving.node(away)).storage_id
    await plain.kill(away)
    await plain.lose(away)
    await plain.kill(leads)
    await plain.lose(leads)
    await leaving.retire(away, force=storage_id)
    await plain.start(leads, **QUICK)
    repeated = asyncio.create_task(plain.append(key, b"once", b"only", **sent))
    node = plain.nodes[leads]
    await eventually(lambda: repeated.done() or node.shards.get(key).context.tables._sought)
    await plain.start(away, **QUICK)
    assert await repeated == 0, "it is not written again"
    assert await plain.values(key) == [b"once", b"only"]


async def test_two_nodes_that_died_are_released_though_shards_wait_for_the_release_of_the_one_and_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table before the one shard's open segment, on node 2, is on node 1 alone, and with the other shard it is the
    other way round. Neither was ever released, and both shards refused writes."""
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, **QUICK)
        leaving = Leaving(cluster, has_store=False)
        keys: dict[int, ShardKey] = {}
        for number in range(2):
            key = await cluster.shard(replicas=1, name=f"topic-{number}")
            keys[cluster.leader(key)] = key
            await cluster.append(key, b"once", producer_id=7, producer_epoch=0, base_sequence=0)
        await leaving.retire(1)
        await eventually_seen(leaving, lambda: cluster.led(keys[1]) is not None and cluster.leader(keys[1]) == 2)
        await leaving.cancel(1)
        await cluster.meta.service.perform(NoteLives(full=((await leaving.node(2)).life,)))
        assert cluster.nodes[2].ask_roll(keys[2])
        await eventually(lambda: cluster.led(keys[2]) is not None and cluster.leader(keys[2]) == 1)
        for key in keys.values():
            await cluster.is_sealed(key)
        await cluster.start(3, **QUICK)
        for node_id in (1, 2):
            await cluster.kill(node_id)
            await cluster.lose(node_id)
        for node_id in (1, 2):
            await leaving.retire(node_id, force=(await leaving.node(node_id)).storage_id)
        for node_id in (1, 2):
            await leaving.until(step=RetireStep.DONE, of=node_id)
        for key in keys.values():
            await cluster.append(key, b"new")


@pytest.mark.fault("node-given-force-replica")
async def test_producers_are_not_forgotten_before_a_returning_node_could_report_its_copy(plain: NodeCluster) -> None:
    """It reads its copy before it tells of it. A repetition was stored again meanwhile."""
    leaving = Leaving(plain, has_store=False)
    key = await plain.shard(replicas=2)
    sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    await plain.append(key, b"once", b"only", **sent)
    gone = plain.leader(key)
    (returns,) = (one for one in plain.segments(key)[0].replicas if one != gone)
    await plain.kill(returns)
    await plain.lose(returns)
    assert plain.nodes[gone].ask_roll(key)
    assert (await plain.is_sealed(key)).local_nodes == (gone,)
    storage_id = (await leaving.node(gone)).storage_id
    await plain.kill(gone)
    await plain.lose(gone)
    await leaving.retire(gone, force=storage_id)
    await eventually_seen(leaving, lambda: plain.segments(key)[-1].leader != gone)
    repeated = asyncio.create_task(plain.append(key, b"once", b"only", **sent))
    (leads,) = plain.nodes
    tables = plain.nodes[leads].shards.get(key).context.tables  # type: ignore[union-attr]
    await eventually(lambda: tables._sought)
    plain.meta.hold(ReportReplica)
    await plain.start(returns, **QUICK)
    sealed = plain.segments(key)[0]
    asked = tables._stand_in
    judged: list[bool] = []

    async def counted(segment: Segment, *, is_far: bool) -> Producers | None:
        judged.append(plain.nodes[leads].catalog.are_producers_lost(segment))
        return await asked(segment, is_far=is_far)

    tables._stand_in = counted  # type: ignore[method-assign]
    await eventually(lambda: judged.count(True) > 1 or repeated.done())
    assert not tables._instead and not repeated.done() and sealed.local_nodes == (gone,)
    plain.meta.release(ReportReplica)
    assert await repeated == 0, "it is not written again"


async def eventually_seen(leaving: Leaving, predicate: Callable[[], bool]) -> None:
    """By looks of the service's leader, which has no copies made."""

    async def is_so() -> bool:
        await leaving.leader().run_pass()
        return predicate()

    await eventually(is_so)
