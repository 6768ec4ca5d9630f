"""The addresses that a client gets depend on its listener: each node's address of that name, if it has one."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.ids import ShardKey
from stratalog.model.listeners import Listener
from stratalog.model.metadata import NodeInfo
from stratalog_node.groups.placement import shard_of
from stratalog_node.serve.connections.context import ConnectionInfo
from support.control_bench import ControlBench, control_bench
from support.replica_client import ReplicaClient, ask_of, register
from support.serve_rig import ServeRig
from support.waiting import eventually

OUTSIDE = ConnectionInfo("client:1", "public.example", 30_001, "outside")
WITH = NodeInfo(2, "storage-2", "in-2.example", 9192, listeners=(Listener("outside", "public.example", 30_002),))
WITHOUT = NodeInfo(3, "storage-3", "in-3.example", 9193)


async def three_nodes(bench: ControlBench) -> None:
    """This one, one with the outside listener, and one without."""
    own = bench.catalog.node(1)
    assert own is not None
    has_both = replace(own.info, listeners=(Listener("outside", "public.example", 30_001),))
    for node in (has_both, WITH, WITHOUT):
        await bench.meta.perform(RegisterNode(node))
    await bench.shown(lambda: bench.catalog.node(3) is not None)


def addresses(nodes: Any) -> list[tuple[str, int]]:
    return [(node.host, node.port) for node in nodes]


@pytest.mark.fault("clients-different-network-nodes")
@pytest.mark.parametrize("version", range(13))
async def test_metadata_name_only_nodes_that_have_the_listener_and_the_code_that_kafka_has_for_it(version: int) -> None:
    async with control_bench() as bench:
        await three_nodes(bench)
        orders = await bench.topic("orders", shards=3)
        asked: dict[str, Any] = {"topics": [{"name": orders.name}], "allow_auto_topic_creation": False}
        told = await bench.ask(3, version, via=OUTSIDE, **asked)
        assert addresses(told.brokers) == [("public.example", 30_001), ("public.example", 30_002)]
        code = 72 if version >= 6 else 5
        led = sorted((one.error_code, one.leader_id) for one in told.topics[0].partitions)
        assert led == [(0, 1), (0, 2), (code, -1)]
        if version >= 5:
            away = [list(one.offline_replicas) for one in told.topics[0].partitions if one.leader_id == -1]
            assert away == [[3]]
        inside = await bench.ask(3, version, **asked)
        assert addresses(inside.brokers)[1:] == [("in-2.example", 9192), ("in-3.example", 9193)]
        assert sorted(one.leader_id for one in inside.topics[0].partitions) == [1, 2, 3]


async def test_a_node_that_gets_the_listener_is_listed_from_then_on() -> None:
    async with control_bench() as bench:
        await three_nodes(bench)
        orders = await bench.topic("orders", shards=3)

        async def leaders() -> list[int]:
            told = await bench.ask(3, 9, via=OUTSIDE, topics=[{"name": orders.name}], allow_auto_topic_creation=False)
            return sorted(one.leader_id for one in told.topics[0].partitions)

        assert await leaders() == [-1, 1, 2]
        await bench.meta.perform(
            RegisterNode(replace(WITHOUT, listeners=(Listener("outside", "public.example", 30_003),)))
        )
        await bench.shown(lambda: (node := bench.catalog.node(3)) is not None and node.listeners != ())
        assert await leaders() == [1, 2, 3]


async def test_clusters_are_described_by_the_listener() -> None:
    async with control_bench() as bench:
        await three_nodes(bench)
        told = await bench.ask(60, 1, via=OUTSIDE, include_cluster_authorized_operations=False, endpoint_type=1)
        assert addresses(told.brokers) == [("public.example", 30_001), ("public.example", 30_002)]


@pytest.mark.fault("clients-different-network-nodes")
@pytest.mark.parametrize("version", [0, 3, 6])
async def test_a_coordinator_without_the_listener_is_not_available_to_its_clients(version: int) -> None:
    async with control_bench() as bench:
        await three_nodes(bench)
        topic = await bench.group_log(shards=6)
        groups: dict[int, str] = {}
        for number in range(200):
            led = bench.catalog.leader_of(ShardKey(topic.topic_id, shard_of(f"group-{number}", 6)))
            assert led is not None
            groups.setdefault(led[0], f"group-{number}")
        found = {}
        for node_id, group in groups.items():
            told = await bench.ask(10, version, via=OUTSIDE, key=group, key_type=0, coordinator_keys=[group])
            one = told.coordinators[0] if version >= 4 else told
            found[node_id] = (one.error_code, one.host, one.port)
        assert found == {1: (0, "public.example", 30_001), 2: (0, "public.example", 30_002), 3: (15, "", -1)}


@pytest.mark.fault("clients-different-network-nodes")
async def test_replicas_are_served_by_the_internal_listener_alone(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        follows = await register(rig, 2)
        shard = await rig.shard_of()
        assert rig.append(shard, b"one").is_acknowledged
        inside = ReplicaClient(rig.connect(), follows)
        await inside.send(ask_of(shard, 0), max_wait_ms=0)
        assert (await inside.receive()).error_code == 0
        stranger = rig.connect(info=ConnectionInfo("pair:1", "public.example", 1, "outside"))
        outside = ReplicaClient(stranger, follows)
        await outside.send(ask_of(shard, 0), max_wait_ms=0)
        await eventually(lambda: stranger.connection not in rig.server._connections)
        assert rig.server.stats.closed_for_fault == 1


OF_BROKERS = {
    "LeaderAndIsr": 4,
    "StopReplica": 5,
    "UpdateMetadata": 6,
    "ControlledShutdown": 7,
    "WriteTxnMarkers": 27,
    "Vote": 52,
    "BeginQuorumEpoch": 53,
    "EndQuorumEpoch": 54,
    "AlterPartition": 56,
    "Envelope": 58,
    "FetchSnapshot": 59,
    "BrokerRegistration": 62,
    "BrokerHeartbeat": 63,
    "UnregisterBroker": 64,
    "AllocateProducerIds": 67,
    "ControllerRegistration": 70,
    "AssignReplicasToDirs": 73,
    "AddRaftVoter": 80,
    "RemoveRaftVoter": 81,
    "UpdateRaftVoter": 82,
}
"""What brokers and controllers of Kafka ask each other. An Envelope would carry a request in another user's name."""


@pytest.mark.parametrize("listener", ["internal", "outside"])
async def test_no_client_is_heard_as_a_broker_or_a_controller(tmp_path: Path, listener: str) -> None:
    async with ServeRig(tmp_path) as rig:
        for name, key in OF_BROKERS.items():
            client = rig.connect(info=ConnectionInfo("pair:1", "public.example", 1, listener))
            header = struct.pack(">hhih", key, 0, 7, -1)
            await client.write(struct.pack(">i", len(header)) + header)
            assert await client.is_closed(), name
        assert rig.server.stats.closed_for_fault == len(OF_BROKERS)
        assert rig.server.stats.control_errors == 0


@pytest.mark.parametrize("replica_id", [0, 1, 2, -2])
async def test_a_reader_that_calls_itself_a_replica_is_served_as_a_reader(tmp_path: Path, replica_id: int) -> None:
    """As a follower it would move the high watermark, or see what is not committed."""
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        assert rig.append(shard, b"one").is_acknowledged
        client = rig.connect(info=ConnectionInfo("pair:1", "public.example", 1, "outside"))
        frame = bytearray(client.fetch_frame("flights", 0))
        where = frame.index(struct.pack(">i", -1), 12)
        frame[where : where + 4] = struct.pack(">i", replica_id)
        await client.write(bytes(frame))
        (fetched,) = await client.fetched()
        assert (fetched.error_code, fetched.high_watermark) == (0, 1)
        assert b"one" in fetched.records
