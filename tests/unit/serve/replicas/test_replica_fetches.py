"""Followers over the Kafka port: they read what is not committed, and only their fetches confirm."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import ReplicaFetch, SegmentAsk, encode_replica_fetch
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import ChangeSet, SegmentChanged
from stratalog_node.serve.replicas.replica_session import ReplicaSession
from stratalog_node.shards.copies.local_copy import NotCached
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import ShardReader
from support.replica_client import Follows, ReplicaClient, ask_of, offsets_in, register
from support.serve_rig import ServeRig
from support.waiting import eventually

FOLLOWER, STRANGER = 2, 3


async def replicated(rig: ServeRig, shards: int = 1) -> list[ShardLog]:
    """Shards of `flights` that this node leads, followed by node 2."""
    topic = await rig.meta.service.perform(
        CreateTopic("flights", shard_count=2 * shards, replication_factor=2, settings={"min.insync.replicas": "1"})
    )
    await eventually(lambda: rig.shards.get(ShardKey(topic.topic_id, 2 * shards - 1)) is not None)
    found = [rig.shard(topic, index) for index in range(2 * shards)]
    return [shard for shard in found if shard.is_leader][:shards]


async def follower_of(rig: ServeRig) -> ReplicaClient:
    return ReplicaClient(rig.connect(), await register(rig, FOLLOWER))


async def test_a_replica_reads_what_is_not_committed_and_asking_behind_it_commits_it(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        asked = rig.append(shard, b"one", b"two")
        assert not asked.is_answered and shard.high_watermark == 0
        answer = await follower.fetch(ask_of(shard, 0))
        assert offsets_in(answer) == [(shard.key.shard, 0, 2)]
        assert (answer.segments[0].high_watermark, answer.segments[0].leader) == (0, rig.context.node_id)
        assert not asked.is_answered, "that it was sent says nothing"
        await follower.send(ask_of(shard, 2))
        await eventually(lambda: asked.is_acknowledged)
        assert shard.high_watermark == 2


async def test_a_held_round_is_answered_by_an_append_before_it_is_committed(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        await follower.fetch(max_wait_ms=0)
        await follower.send(ask_of(shard, 0))
        assert rig.shards.get(shard.key) is shard
        asked = rig.append(shard, b"one")
        assert offsets_in(await follower.receive()) == [(shard.key.shard, 0, 1)]
        assert not asked.is_answered
        await follower.send(ask_of(shard, 1))
        await eventually(lambda: asked.is_acknowledged)


async def test_the_next_round_ends_the_one_that_is_held(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        one, two = await replicated(rig, 2)
        await follower.fetch(max_wait_ms=0)
        await follower.send(ask_of(one, 0))
        await follower.send(ask_of(two, 0))
        assert (await follower.receive()).segments == []
        rig.append(two, b"x")
        assert offsets_in(await follower.receive()) == [(two.key.shard, 0, 1)]


async def test_what_was_sent_is_not_sent_again_before_the_follower_reports_where_it_is(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        one, two = await replicated(rig, 2)
        rig.append(one, b"1")
        assert offsets_in(await follower.fetch(ask_of(one, 0), ask_of(two, 0))) == [(one.key.shard, 0, 1)]
        await follower.send()
        rig.append(one, b"2")
        rig.append(two, b"x")
        assert offsets_in(await follower.receive()) == [(two.key.shard, 0, 1)], "of the other one alone"
        again = await follower.fetch(ask_of(one, 0))
        assert offsets_in(again) == [(one.key.shard, 0, 1), (one.key.shard, 1, 2)]


async def test_a_round_that_ends_in_vain_reports_what_was_committed_meanwhile_and_tells_it_once(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        rig.append(shard, b"one")
        await follower.fetch(ask_of(shard, 0))
        told = await follower.fetch(ask_of(shard, 1), max_wait_ms=1)
        assert [segment.high_watermark for segment in told.segments] == [1]
        assert (await follower.fetch(max_wait_ms=1)).segments == []


async def test_a_thousand_idle_segments_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    real = ReplicaSession.find

    def look(session: ReplicaSession, name: object) -> object:
        looks.append(name)
        return real(session, name)  # type: ignore[arg-type]

    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        shards = await replicated(rig, 1_000)
        monkeypatch.setattr(ReplicaSession, "find", look)
        await follower.send(*(ask_of(shard, 0) for shard in shards))
        await eventually(lambda: len(looks) >= 1_000)
        for number in range(20):
            rig.append(shards[7], b"x")
            assert len(offsets_in(await follower.receive())) == 1
            await follower.send(ask_of(shards[7], number + 1))
            await eventually(lambda end=number + 1: shards[7].high_watermark == end)
        assert len(looks) <= 1_000 + 2 * 20, "a round costs what moved"


def empty_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def cold(*_: object, **__: object) -> None:
        raise NotCached

    monkeypatch.setattr(ShardReader, "read_hot", cold)


async def test_a_catching_up_replica_reads_from_the_disk_without_blocking_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        rig.append(shard, b"one")

        empty_page_cache(monkeypatch)
        assert offsets_in(await follower.fetch(ask_of(shard, 0))) == [(shard.key.shard, 0, 1)]
        assert rig.reader.outstanding_bytes == 0
        stats = rig.server.stats
        assert stats.replica_cold_reads == 1 and stats.replica_cold_bytes > 0


@pytest.mark.fault("leader-cannot-open-read")
async def test_a_file_that_cannot_be_opened_keeps_a_follower_from_nothing_else(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        broken, whole = await replicated(rig, 2)
        rig.append(broken, b"one")
        rig.append(whole, b"x")
        assert broken.active is not None
        await broken.make_durable()
        broken.active.file.close()
        path = rig.file_of(broken, broken.active.key.epoch)
        path.rename(path.with_suffix(".whole"))
        path.mkdir()
        assert offsets_in(await follower.fetch(ask_of(broken, 0), ask_of(whole, 0))) == [(whole.key.shard, 0, 1)]
        codes = {one.shard: one.error_code for one in (await follower.fetch(ask_of(whole, 1))).segments}
        assert codes[broken.key.shard] == ErrorCode.KAFKA_STORAGE_ERROR
        assert not broken.waiters and not broken.active.followers, "it was refused, and is asked for no more"
        path.rmdir()
        path.with_suffix(".whole").rename(path)
        assert offsets_in(await follower.fetch(ask_of(broken, 0))) == [(broken.key.shard, 0, 1)]


@pytest.mark.fault("segment-far")
async def test_rounds_that_always_have_data_do_not_block_reads_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a read that waits for the disk does not delay what is in memory."""
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        far, near = await replicated(rig, 2)
        rig.append(far, b"one")
        hot, local = ShardReader.read_hot, ShardReader.read_local
        gate = asyncio.Event()

        def one_is_cold(reader: ShardReader, shard: ShardLog, *rest: Any, **options: Any) -> Any:
            if shard is far:
                raise NotCached
            return hot(reader, shard, *rest, **options)

        async def slow(reader: ShardReader, *rest: Any) -> Any:
            await gate.wait()
            return await local(reader, *rest)

        monkeypatch.setattr(ShardReader, "read_hot", one_is_cold)
        monkeypatch.setattr(ShardReader, "read_local", slow)
        await follower.send(ask_of(far, 0), ask_of(near, 0))
        found: list[tuple[int, int, int]] = []
        for number in range(5):
            rig.append(near, b"x")
            found += offsets_in(await follower.receive())
            await follower.send(ask_of(near, number + 1))
        assert found == [(near.key.shard, number, number + 1) for number in range(5)]
        gate.set()
        answered = offsets_in(await follower.receive())
        assert answered == [(far.key.shard, 0, 1)]
        await follower.send(ask_of(far, 1))
        rig.append(near, b"x")
        assert offsets_in(await follower.receive()) == [(near.key.shard, 5, 6)]
    assert rig.reader.outstanding_bytes == 0


@pytest.mark.fault("segment-far")
async def test_what_was_read_for_a_follower_that_goes_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        rig.append(shard, b"one")

        empty_page_cache(monkeypatch)
        await follower.send(ask_of(shard, 0), max_wait_ms=0)
        assert (await follower.receive()).segments == []
        await eventually(lambda: rig.server.stats.replica_cold_reads == 1)
        follower.client.close()
        await eventually(lambda: rig.reader.outstanding_bytes == 0)


# Authentication ---------------------------------------------------------------------------------------------------
@pytest.mark.fault("client-invents-replica-id", "clients-work-load-healthy")
async def test_a_made_up_token_moves_nothing_and_reads_nothing(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        real = await register(rig, FOLLOWER)
        (shard,) = await replicated(rig)
        asked = rig.append(shard, b"one")
        for follows in (Follows(FOLLOWER, real.token + 1), Follows(FOLLOWER, 0), Follows(77, real.token)):
            liar = ReplicaClient(rig.connect(), follows)
            for offset in (0, 1):
                answer = await liar.fetch(ask_of(shard, offset))
                assert (answer.error_code, answer.segments) == (ErrorCode.BROKER_ID_NOT_REGISTERED, [])
        assert not asked.is_answered and shard.high_watermark == 0


@pytest.mark.fault("client-invents-replica-id", "clients-work-load-healthy")
@pytest.mark.parametrize("version", [4, 11, 12])
async def test_a_client_that_makes_up_a_replica_id_is_served_as_a_client(tmp_path: Path, version: int) -> None:
    async with ServeRig(tmp_path) as rig:
        await register(rig, FOLLOWER)
        (shard,) = await replicated(rig)
        asked = rig.append(shard, b"one")
        client = rig.connect()
        for offset in (0, 1):
            frame = bytearray(client.fetch_frame("flights", offset, partitions=(shard.key.shard,), max_wait_ms=0))
            position = frame.index(b"\xff\xff\xff\xff")  # the replica id, of a consumer -1
            frame[position : position + 4] = FOLLOWER.to_bytes(4, "big")
            await client.write(bytes(frame))
            (found,) = await client.fetched()
            assert (found.error_code, found.records, found.high_watermark) == (0, b"", 0)
        assert not asked.is_answered and shard.high_watermark == 0


async def test_version_15_without_a_replica_is_not_served(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        client = rig.connect()
        await client.write(encode_replica_fetch(1, "client", ReplicaFetch(-1, -1, 0, 1 << 20, 0, 0)))
        assert await client.is_closed()


@pytest.mark.fault("client-invents-replica-id", "fenced-leader-earlier-life")
async def test_an_old_life_is_fenced_and_its_session_with_it(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        rig.append(shard, b"one")
        await follower.fetch(ask_of(shard, 0))
        await register(rig, FOLLOWER, was_stopped=True)
        answer = await follower.fetch(ask_of(shard, 1))
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert shard.high_watermark == 0


async def test_a_node_without_a_replica_of_a_segment_neither_reads_nor_moves_it(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await register(rig, FOLLOWER)
        (shard,) = await replicated(rig)
        stranger = ReplicaClient(rig.connect(), await register(rig, STRANGER))
        rig.append(shard, b"one")
        answer = await stranger.fetch(ask_of(shard, 0))
        assert [segment.error_code for segment in answer.segments] == [ErrorCode.REPLICA_NOT_AVAILABLE]
        assert shard.active is not None and not shard.active.followers and not shard.waiters


# What is refused ------------------------------------------------------------------------------------------------------
async def test_an_offset_above_the_end_is_out_of_range_and_a_later_epoch_not_known(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        rig.append(shard, b"one")
        (above,) = (await follower.fetch(ask_of(shard, 2))).segments
        assert above.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        (later,) = (await follower.fetch(ask_of(shard, 0, epoch=5))).segments
        assert (later.error_code, later.epoch) == (ErrorCode.UNKNOWN_LEADER_EPOCH, 5)


@pytest.mark.fault("follower-asks-new-topic")
async def test_a_topic_that_the_metadata_tell_of_between_a_round_and_its_look_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client waits there: the follower never heard of the written batches, and none of them was acknowledged."""
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        apply, take, late = rig.catalog.apply, ReplicaSession.update, list[ChangeSet]()

        def take_and_hear(self: ReplicaSession, request: ReplicaFetch) -> object:
            fault = take(self, request)
            while late:
                apply(late.pop(0))
            return fault

        monkeypatch.setattr(rig.catalog, "apply", late.append)
        settings = {"min.insync.replicas": "1"}
        topic = await rig.meta.service.perform(CreateTopic("flights", 2, replication_factor=2, settings=settings))
        await eventually(lambda: late)
        monkeypatch.setattr(ReplicaSession, "update", take_and_hear)
        asks = [SegmentAsk(topic.topic_id, index, 0, 0, 1 << 20) for index in range(2)]
        answer = await asyncio.wait_for(follower.fetch(*asks), 30)
        assert {one.error_code for one in answer.segments} == {ErrorCode.UNKNOWN_TOPIC_ID}
        monkeypatch.undo()
        shard = next(found for index in range(2) if (found := rig.shard(topic, index)).is_leader)
        await follower.send(ask_of(shard, 0))
        rig.append(shard, b"one")
        assert offsets_in(await follower.receive()) == [(shard.key.shard, 0, 1)]


async def test_a_held_round_learns_at_once_that_another_leads(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        rig.append(shard, b"one")
        await follower.fetch(ask_of(shard, 0))
        waiting = asyncio.create_task(follower.fetch(ask_of(shard, 1)))
        await eventually(lambda: shard.high_watermark == 1)
        segment = replace(shard.segments[-1], leader=STRANGER)
        rig.catalog.apply(ChangeSet(rig.catalog.version + 1, (SegmentChanged(segment),)))
        (refused,) = (await waiting).segments
        assert (refused.error_code, refused.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, STRANGER)


async def test_an_unknown_session_starts_again(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        follower.session_id, follower.session_epoch = 99, 3
        assert (await follower.fetch()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        follower.session_id = follower.session_epoch = 0
        assert (await follower.fetch(max_wait_ms=0)).error_code == 0
        follower.session_epoch = 9
        assert (await follower.fetch()).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_connection_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follower = await follower_of(rig)
        (shard,) = await replicated(rig)
        rig.append(shard, b"one")
        await follower.fetch(ask_of(shard, 0))
        await follower.send(ask_of(shard, 1))
        await eventually(lambda: shard.high_watermark == 1)
        follower.client.close()
        await rig.nothing_is_held()
        assert shard.active is not None
        await eventually(lambda: not shard.active.followers)
