"""A node answers for the shards that it leads, and names the leader of the others: what it knows of them may be old,
and an offset that is too low makes consumers jump."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.chain_events import ShardStopped
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.ids import ShardKey
from stratalog.model.listeners import Listener
from stratalog.model.metadata import ChangeSet, NodeInfo, SegmentChanged
from stratalog_node.serve.connections.context import ConnectionInfo
from stratalog_node.shards.log.shard_log import ShardLog
from support import kafka_oracle
from support.raw_client import batch_of
from support.serve_rig import ServeRig, WireClient
from support.shard_rig import NODE_ID
from support.waiting import eventually

OTHER = NODE_ID + 1
LED_ELSEWHERE = ErrorCode.NOT_LEADER_OR_FOLLOWER
LATEST, EARLIEST, AT_ONCE = -1, -2, 0


async def led_by_another(rig: ServeRig, *listeners: Listener) -> int:
    """The index of a shard of `flights` that another node leads."""
    await rig.meta.service.perform(RegisterNode(NodeInfo(OTHER, "disk-2", "elsewhere", 9092, listeners=listeners)))
    topic = await rig.meta.service.perform(CreateTopic("flights", shard_count=2, replication_factor=1))
    await eventually(lambda: rig.shards.get(ShardKey(topic.topic_id, 1)) is not None)
    (index,) = (n for n in range(2) if rig.shard(topic, n).leader is not None)
    return index


def name_another_leader(rig: ServeRig, shard: ShardLog) -> None:
    """As the watch does."""
    segment = replace(shard.segments[-1], leader=OTHER)
    rig.catalog.apply(ChangeSet(rig.catalog.version + 1, (SegmentChanged(segment),)))


async def fetch_v12(client: WireClient, partition: int, offset: int, max_wait_ms: int = AT_ONCE) -> Any:
    request = kafka_oracle.request_class(1)
    wanted = request.FetchTopic.FetchPartition(
        version=12,
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    await client.write(
        client.frame(
            1,
            12,
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[request.FetchTopic(version=12, topic="flights", partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id="",
        )
    )
    answer = kafka_oracle.decode_response(1, 12, await client.read_frame())
    return answer.responses[0].partitions[0]


async def list_offset(client: WireClient, partition: int, timestamp: int) -> tuple[int, int]:
    request = kafka_oracle.request_class(2)
    topic = request.ListOffsetsTopic
    asked = topic.ListOffsetsPartition(
        version=4, partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
    )
    topics = [topic(version=4, name="flights", partitions=[asked])]
    await client.write(client.frame(2, 4, replica_id=-1, isolation_level=0, topics=topics))
    answer = kafka_oracle.decode_response(2, 4, await client.read_frame()).topics[0].partitions[0]
    return answer.error_code, answer.offset


async def produce(client: WireClient, partition: int, version: int, *others: int) -> Any:
    """The whole answer."""
    request = kafka_oracle.request_class(0)
    data = request.TopicProduceData
    partition_data = [
        data.PartitionProduceData(version=version, index=index, records=batch_of(b"x"))
        for index in (partition, *others)
    ]
    await client.write(
        client.frame(
            0,
            version,
            transactional_id=None,
            acks=-1,
            timeout_ms=1_000,
            topic_data=[data(version=version, name="flights", partition_data=partition_data)],
        )
    )
    return kafka_oracle.decode_response(0, version, await client.read_frame())


def only(answer: Any) -> Any:
    """What it says of its first batch."""
    return answer.responses[0].partition_responses[0]


async def test_a_fetch_from_a_node_that_does_not_lead_gets_the_leader(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        index = await led_by_another(rig)
        found = await fetch_v12(rig.connect(), index, 0)
        assert (found.error_code, found.high_watermark) == (LED_ELSEWHERE, -1)
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (OTHER, 0)


@pytest.mark.fault("client-asks-node-lead", "clients-work-load-healthy")
async def test_an_offset_above_a_stale_end_is_not_out_of_range(tmp_path: Path) -> None:
    """The leader may have it: a consumer that gets error 1 jumps."""
    async with ServeRig(tmp_path) as rig:
        index = await led_by_another(rig)
        assert (await fetch_v12(rig.connect(), index, 1_000)).error_code == LED_ELSEWHERE


@pytest.mark.fault("client-asks-node-lead")
async def test_a_fetch_that_waits_learns_at_once_that_another_leads(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        waiting = asyncio.create_task(fetch_v12(rig.connect(), 0, 0, max_wait_ms=600_000))
        await eventually(lambda: bool(shard.waiters))
        name_another_leader(rig, shard)
        found = await waiting
        assert (found.error_code, found.current_leader.leader_id) == (LED_ELSEWHERE, OTHER)
        await rig.nothing_is_held()


async def test_a_deposed_leader_serves_no_client_though_the_metadata_still_name_it(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        assert rig.append(shard, b"one").is_acknowledged
        shard.handle(ShardStopped(Stop("fenced", StopCause.DEPOSED)))
        client = rig.connect()
        assert (await fetch_v12(client, 0, 0)).error_code == LED_ELSEWHERE
        assert (await list_offset(client, 0, LATEST))[0] == LED_ELSEWHERE
        assert (await list_offset(client, 0, EARLIEST))[0] == LED_ELSEWHERE


async def test_list_offsets_requires_the_leader(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        index = await led_by_another(rig)
        client = rig.connect()
        for timestamp in (LATEST, EARLIEST, 0):
            assert await list_offset(client, index, timestamp) == (LED_ELSEWHERE, -1)
        assert await list_offset(client, 1 - index, LATEST) == (0, 0)


@pytest.mark.fault("client-asks-node-lead-knows")
async def test_a_batch_for_another_leader_names_it_from_version_10_on(tmp_path: Path) -> None:
    """Not a storage error: there is nothing wrong with the disk, and clients look for the leader only at this code."""
    async with ServeRig(tmp_path) as rig:
        index = await led_by_another(rig)
        client = rig.connect()
        for version in range(3, 10):
            assert only(await produce(client, index, version)).error_code == LED_ELSEWHERE
        for version in (10, 11):
            answer = await produce(client, index, version)
            refused = only(answer)
            assert refused.error_code == LED_ELSEWHERE
            assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (OTHER, 0)
            assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [
                (OTHER, "elsewhere", 9092)
            ]
            of_both = await produce(client, index, version, 1 - index)
            assert [one.error_code for one in of_both.responses[0].partition_responses] == [LED_ELSEWHERE, 0]
            assert [node.node_id for node in of_both.node_endpoints] == [OTHER]
        served = await produce(client, 1 - index, 11)
        assert only(served).error_code == 0 and not served.node_endpoints


@pytest.mark.fault("clients-different-network-nodes")
async def test_a_batch_for_another_leader_names_its_address_of_the_listener_that_it_came_by(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        index = await led_by_another(rig, Listener("outside", "public.example", 30_002))
        for listener, told in (
            ("outside", [("public.example", 30_002)]),
            ("near", []),
            ("internal", [("elsewhere", 9092)]),
        ):
            client = rig.connect(info=ConnectionInfo("pair:1", "localhost", 9092, listener))
            for partitions in ((index,), (index, 1 - index)):
                answer = await produce(client, partitions[0], 10, *partitions[1:])
                assert only(answer).current_leader.leader_id == OTHER
                assert [(node.host, node.port) for node in answer.node_endpoints or ()] == told
