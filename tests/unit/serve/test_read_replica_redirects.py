"""Fetches that name a rack: sent to a replica by the leader, and back by a replica, but never to and fro."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.listeners import Listener
from stratalog.model.metadata import ChangeSet, NodeInfo, SegmentChanged
from stratalog.model.segment import Segment
from stratalog.settings.choices import ReadPolicy
from stratalog_node.serve.connections.context import ConnectionInfo
from stratalog_node.serve.fetching import read_replicas
from stratalog_node.shards.log.shard_log import ShardLog
from support import kafka_oracle
from support.sealed_shards import sealed_shard
from support.serve_rig import ServeRig, WireClient
from support.shard_rig import NODE_ID
from support.waiting import eventually

OTHER = NODE_ID + 1
END = 3


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ServeRig]:
    async with ServeRig(tmp_path, read_replica_min_bytes=1) as rig:
        yield rig


def change(rig: ServeRig, *segments: Segment) -> None:
    """As the watch does."""
    changes = tuple(SegmentChanged(segment) for segment in segments)
    rig.catalog.apply(ChangeSet(rig.catalog.version + 1, changes))


async def held_by_both(rig: ServeRig, *listeners: Listener) -> ShardLog:
    """Three records sealed, at this node and at one in rack b; nothing in the active segment."""
    shard = await sealed_shard(rig, values=END)
    await rig.meta.service.perform(RegisterNode(NodeInfo(OTHER, "disk-2", "elsewhere", 9092, "b", listeners)))
    await eventually(lambda: rig.catalog.node(OTHER) is not None)
    sealed, active = shard.segments
    both = (NODE_ID, OTHER)
    change(rig, replace(sealed, local_nodes=both, replicas=both), replace(active, replicas=both))
    return shard


async def led_by_the_other(rig: ServeRig) -> ShardLog:
    shard = await held_by_both(rig)
    change(rig, replace(shard.segments[-1], leader=OTHER))
    assert not shard.is_leader
    return shard


async def fetch(client: WireClient, offset: int, rack: str = "b", epoch: int = -1, wait_ms: int = 0) -> Any:
    request = kafka_oracle.request_class(1)
    wanted = request.FetchTopic.FetchPartition(
        version=12,
        partition=0,
        current_leader_epoch=epoch,
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
            max_wait_ms=wait_ms,
            min_bytes=1 << 20,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[request.FetchTopic(version=12, topic="flights", partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id=rack,
        )
    )
    answer = kafka_oracle.decode_response(1, 12, await client.read_frame())
    return answer.responses[0].partitions[0]


def told(found: Any) -> tuple[int, int, bool]:
    """Error, preferred read replica, and whether there are records."""
    return found.error_code, found.preferred_read_replica, bool(found.records)


SERVED = (0, -1, True)


@pytest.mark.fault("client-ignores-replica-sent")
async def test_a_reader_that_does_not_go_where_it_is_sent_is_served(rig: ServeRig) -> None:
    await held_by_both(rig)
    client = rig.connect()
    found = await fetch(client, 0)
    assert told(found) == (0, OTHER, False)
    assert found.high_watermark == END
    assert [told(await fetch(client, 0)) for _ in range(3)] == [SERVED] * 3


@pytest.mark.fault("clients-different-network-nodes")
async def test_no_client_is_sent_to_a_replica_without_its_listener(rig: ServeRig) -> None:
    await held_by_both(rig, Listener("outside", "public.example", 30_002))

    def client(listener: str) -> WireClient:
        return rig.connect(info=ConnectionInfo("pair:1", "localhost", 9092, listener))

    assert told(await fetch(client("near"), 0)) == SERVED
    assert told(await fetch(client("outside"), 0)) == (0, OTHER, False)


@pytest.mark.fault("client-ignores-replica-sent")
async def test_after_a_minute_it_is_sent_again(rig: ServeRig) -> None:
    await held_by_both(rig)
    client = rig.connect()
    assert told(await fetch(client, 0)) == (0, OTHER, False)
    rig.steady.now_ms += 59_000
    rig.turn.read_clocks()
    assert told(await fetch(client, 0)) == SERVED
    rig.steady.now_ms += 1_000
    rig.turn.read_clocks()
    assert told(await fetch(client, 0)) == (0, OTHER, False)


async def test_another_connection_is_another_reader(rig: ServeRig) -> None:
    await held_by_both(rig)
    assert [told(await fetch(rig.connect(), 0)) for _ in range(2)] == [(0, OTHER, False)] * 2
    await rig.nothing_is_held()


async def test_active_data_and_clients_without_a_rack_are_served_by_the_leader(rig: ServeRig) -> None:
    shard = await held_by_both(rig)
    rig.append(shard, b"active")
    client = rig.connect()
    assert told(await fetch(client, END)) == SERVED
    assert told(await fetch(client, 0, rack="")) == SERVED


@pytest.mark.fault("replica-metadata-old-log")
async def test_a_replica_serves_what_is_sealed_at_once_whatever_epoch_the_client_names(rig: ServeRig) -> None:
    await led_by_the_other(rig)
    client = rig.connect()
    for epoch in (-1, 0, 1, 7):
        found = await fetch(client, 0, epoch=epoch, wait_ms=600_000)  # more than there is, which it would wait for
        assert told(found) == SERVED
        assert (found.high_watermark, found.log_start_offset) == (END, 0)


@pytest.mark.fault("client-ignores-replica-sent")
async def test_a_reader_at_the_replicas_end_is_sent_back_but_not_twice_at_once(rig: ServeRig) -> None:
    await led_by_the_other(rig)
    client = rig.connect()
    assert told(await fetch(client, END)) == (0, OTHER, False)
    found = await fetch(client, END)
    assert (found.error_code, found.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, OTHER)
    rig.steady.now_ms += 5_000
    rig.turn.read_clocks()
    assert told(await fetch(client, END)) == (0, OTHER, False)


@pytest.mark.fault("replica-metadata-old-log")
@pytest.mark.parametrize("offset", [0, 1_000])
async def test_a_replica_never_says_out_of_range(rig: ServeRig, offset: int) -> None:
    """What it knows of either end may be old."""
    shard = await led_by_the_other(rig)
    shard.log_start_offset = 2
    client = rig.connect()
    assert told(await fetch(client, offset)) == (0, OTHER, False)
    assert (await fetch(client, offset)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_copy_that_is_not_proved_is_not_served(rig: ServeRig) -> None:
    shard = await led_by_the_other(rig)
    change(rig, replace(shard.segments[0], local_nodes=(OTHER,)))
    assert told(await fetch(rig.connect(), 0)) == (0, OTHER, False)


@pytest.mark.fault("replica-metadata-old-log")
async def test_without_a_leader_a_reader_gets_an_error_to_look_for_one(rig: ServeRig) -> None:
    shard = await led_by_the_other(rig)
    change(rig, replace(shard.segments[-1], leader=None))
    client = rig.connect()
    assert told(await fetch(client, 0)) == SERVED
    assert (await fetch(client, END)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_replica_serves_no_client_without_a_rack(rig: ServeRig) -> None:
    await led_by_the_other(rig)
    assert (await fetch(rig.connect(), 0, rack="")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_reader_of_data_in_the_object_store_is_sent_nowhere(rig: ServeRig) -> None:
    shard = await held_by_both(rig)
    shard.rules.read_policy = ReadPolicy.NOT_IN_MEMORY
    assert told(await fetch(rig.connect(), 0)) == SERVED
    change(rig, replace(shard.segments[-1], leader=OTHER))
    assert told(await fetch(rig.connect(), 0)) == (0, OTHER, False)


async def test_what_is_remembered_of_readers_is_bounded(rig: ServeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_replicas, "_ALL_REMEMBERED", 3)
    await held_by_both(rig)
    readers = rig.server._readers
    clients = [rig.connect() for _ in range(5)]
    for client in clients:
        assert told(await fetch(client, 0)) == (0, OTHER, False)
        assert readers._remembered == sum(map(len, readers._sent.values())) <= 3
    for client in clients:
        client.connection.close("the test ends it")
    assert readers._remembered == 0 and not readers._sent
