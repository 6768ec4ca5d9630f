"""Other nodes read sealed segments over the Kafka port, with the token of their life, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import (
    FINAL_EPOCH,
    NO_SESSION,
    ReplicaAnswer,
    ReplicaFetch,
    SegmentAsk,
    decode_replica_answer,
    encode_replica_fetch,
)
from stratalog_node.shards.log.shard_log import ShardLog
from support.replica_client import Follows, ask_of, offsets_in, register
from support.sealed_shards import sealed_shard
from support.serve_rig import ServeRig, WireClient
from support.shard_rig import START_MS

STRANGER = 7


async def sealed_read(client: WireClient, asker: Follows, *asks: SegmentAsk) -> ReplicaAnswer:
    request = ReplicaFetch(asker.node_id, asker.token, 0, 1 << 20, NO_SESSION, FINAL_EPOCH, list(asks))
    await client.write(encode_replica_fetch(1, "node-7", request))
    _, answer = decode_replica_answer(memoryview(await client.read_frame())[4:])
    return answer


async def code_for(rig: ServeRig, ask: SegmentAsk) -> int:
    answer = await sealed_read(rig.connect(), await register(rig, STRANGER), ask)
    return answer.segments[0].error_code


async def test_a_node_without_a_replica_reads_sealed_data_and_confirms_nothing(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=3)
        answer = await sealed_read(rig.connect(), await register(rig, STRANGER), ask_of(shard, 1))
        assert offsets_in(answer) == [(0, 1, 2), (0, 2, 3)]
        assert answer.session_id == NO_SESSION
        assert rig.server.stats.sealed_reads == 1
        await rig.nothing_is_held()


async def test_after_a_restart_it_comes_from_the_disk_and_is_checked(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await sealed_shard(rig, values=3)
        await rig.stop()
        await rig.start()
        (shard,) = [shard for shard in rig.shards.all() if shard.topic.name == "flights"]
        answer = await sealed_read(rig.connect(), await register(rig, STRANGER), ask_of(shard, 0))
        assert offsets_in(answer) == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]
        await rig.nothing_is_held()


@pytest.mark.fault("client-node-earlier-life")
async def test_what_is_not_sealed_is_not_read(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await sealed_shard(rig)
        rig.append(shard, b"above")
        assert await code_for(rig, ask_of(shard, 3, epoch=1)) == ErrorCode.REPLICA_NOT_AVAILABLE
        assert await code_for(rig, ask_of(shard, 3, epoch=0)) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await code_for(rig, ask_of(shard, 0, epoch=9)) == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.fault("client-node-earlier-life")
async def test_only_nodes_with_the_token_of_a_present_life_read(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await sealed_shard(rig)
        asker = await register(rig, STRANGER)
        for token in (0, asker.token + 1):
            answer = await sealed_read(rig.connect(), Follows(STRANGER, token), ask_of(shard, 0))
            assert (answer.error_code, answer.segments) == (ErrorCode.BROKER_ID_NOT_REGISTERED, [])
        await register(rig, STRANGER)
        answer = await sealed_read(rig.connect(), asker, ask_of(shard, 0))
        assert (answer.error_code, answer.segments) == (ErrorCode.STALE_BROKER_EPOCH, [])
        client = rig.connect()
        await client.write(
            encode_replica_fetch(1, "x", ReplicaFetch(-1, -1, 0, 1, NO_SESSION, FINAL_EPOCH, [ask_of(shard, 0)]))
        )
        assert await client.is_closed()


async def test_a_copy_found_damaged_is_not_given_to_others(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await sealed_shard(rig, values=3)
        await rig.stop()
        (path,) = [path for path in rig.layout.segments.rglob("*-0.seg") if path.stat().st_size > 200]
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(bytes(data))
        await rig.start()
        (shard,) = [shard for shard in rig.shards.all() if shard.topic.name == "flights"]
        assert await code_for(rig, ask_of(shard, 0)) == ErrorCode.CORRUPT_MESSAGE
        assert await code_for(rig, ask_of(shard, 0)) == ErrorCode.REPLICA_NOT_AVAILABLE


def by_time(shard: ShardLog, offset: int, timestamp_ms: int) -> SegmentAsk:
    return ask_of(shard, offset)._replace(timestamp_ms=timestamp_ms)


async def test_the_first_batch_that_claims_a_time_is_found(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for number in range(3):
            rig.append(shard, b"a", b"b", at_ms=START_MS + 10 * number)
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        asker, client = await register(rig, STRANGER), rig.connect()
        for offset, at_ms, base_offset in ((0, 0, 0), (0, 1, 0), (0, 2, 2), (0, 11, 2), (3, 0, 2), (4, 0, 4)):
            answer = await sealed_read(client, asker, by_time(shard, offset, START_MS + at_ms))
            (data,) = answer.segments[0].records
            assert [header.base_offset for _, header in walk(data, source="answer")] == [base_offset]
        answer = await sealed_read(client, asker, by_time(shard, 0, START_MS + 22))
        assert (answer.segments[0].error_code, answer.segments[0].records) == (0, ())
