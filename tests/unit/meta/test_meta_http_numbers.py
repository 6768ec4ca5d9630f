"""Every number that the HTTP API takes has bounds: what lies outside is refused in words, and nothing changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.meta_api.wire import wire_of
from stratalog.model.commands import table_commands
from stratalog.model.commands.mount_commands import (
    BeginMount,
    CloseVolume,
    CreateMount,
    DoubtMount,
    EndMount,
    MountCut,
    MoveMount,
    OpenVolume,
    ReleaseMount,
    TakeMount,
)
from stratalog.model.commands.retirement_commands import CancelRetirement, ReportInventory, ReportSighting, RetireNode
from stratalog.model.commands.rights_commands import AlterCredentials, AlterQuotas, CreateRules, DeleteRules
from stratalog.model.cut import CutShard
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, NodeInfo, PartCommit, PartReplacement
from stratalog.model.mounts import MountMode
from stratalog.model.producers import ProducerTally
from stratalog.model.quotas import QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import CredentialName, ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import RemotePart, SealRecord
from support.meta_worlds import MetaWorld, part, running, seal_record

HUGE = (2**63, 10**400)
MINUS = (-(2**63) - 1, -(10**400))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MetaWorld]:
    async with running("http/memory", tmp_path) as started:
        yield started


@pytest.fixture
async def http(world: MetaWorld) -> AsyncIterator[aiohttp.ClientSession]:
    assert world.url is not None
    async with aiohttp.ClientSession(world.url) as session:
        yield session


def asked(command: table_commands.Command[Any]) -> tuple[str, Any]:
    """Where a command is sent, and its body."""
    wire = wire_of(command)
    return wire.path, json.loads(wire.body.write(command))


def sealed(segment: SegmentKey) -> SealRecord:
    producers = ProducerTally(7, b"\xd2" * 16, 5_000, 86_400_000)
    record = seal_record(segment, 10)
    return SealRecord(record.epoch, 0, 10, 1, 2, 10, b"\xd1" * 8, producers, record.replicas, record.sealed_ms)


def with_each_number(body: Any, number: int) -> Iterator[Any]:
    """The body once for each of its numbers, which is `number` then."""
    for path in list(numbers_in(body)):
        if path[-1] == "expires_ms":
            continue  # it is not read: a lock's epoch counts
        changed = deepcopy(body)
        place = changed
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = number
        yield changed


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from numbers_in(inner, (*path, key))


async def commands_with_numbers(world: MetaWorld) -> list[table_commands.Command[Any]]:
    """One of each kind, and each would be performed as it is."""
    active = await world.ready_topic("orders", shard_count=1)
    log = await world.client.perform(table_commands.CreateTopic(GROUP_LOG, 1, 1, is_internal=True))
    topic_id, lock = active.key.topic_id, await world.lock()
    following = (await world.client.perform(table_commands.RollSegment(active.key, 10))).key
    old = RemotePart("x", 0, 1, 0, 5)
    commands: list[table_commands.Command[Any]] = [
        table_commands.RegisterNode(NodeInfo(1, "s", "h", 1)),
        table_commands.CreateTopic("new", 1, 1),
        table_commands.AddShards(topic_id, 2),
        table_commands.WidenTopic(log.topic_id, 1),
        table_commands.AlterTopic(topic_id, {}, shard_count=2),
        table_commands.SealTopic(topic_id, 1),
        table_commands.RollElsewhere((following,)),
        table_commands.AdvanceLogStart(active.key.shard_key, 1),
        table_commands.PrepareSegment(following),
        table_commands.RollSegment(following, 20),
        table_commands.ProposeIsr(following, (1,), 0),
        table_commands.BeginRecovery(following),
        table_commands.PromiseFence(following, 2, 15, 12, True),
        table_commands.SealUnclean(following),
        table_commands.SealSegment(active.key, sealed(active.key)),
        table_commands.ReportReplica(active.key, sealed(active.key)),
        table_commands.AcquireLock("tier/2", "node-1/1", 1_000),
        table_commands.ReleaseLock(lock),
        table_commands.AllocateProducerIds(1),
        table_commands.CommitParts(lock, (PartCommit(active.key, -1, part(0, 5)),)),
        table_commands.ReplaceParts(lock, (PartReplacement(active.key, (old,), (part(0, 5),)),)),
        table_commands.CompleteRemote(lock, active.key, "m", b"d", 1),
        table_commands.ReplaceManifest(lock, active.key, b"d", "n", b"e", 1),
        table_commands.ForgetLocal((following,), 1),
        table_commands.ReportLostCopies((following,)),
        table_commands.ReportFaultyCopies((following,)),
        table_commands.PurgeSegments((following,)),
        table_commands.DeleteTopic(topic_id),
        *await mount_commands(world),
        RetireNode(1),
        CancelRetirement(1),
        ReportSighting(1, "s", 1, 3),
        ReportInventory(1, "s", 1, "key"),
        *rights_commands(),
    ]
    assert {type(command) for command in commands} == set(table_commands.COMMANDS)
    return commands


def rights_commands() -> list[table_commands.Command[Any]]:
    resource = Resource(ResourceType.TOPIC, "orders")
    keys = ScramCredential(b"salt", b"s" * 32, b"k" * 32, 4_096)
    mechanism = ScramMechanism.SCRAM_SHA_256
    return [
        CreateRules((Rule(resource, "User:a", "*", Operation.READ, Permission.ALLOW),)),
        DeleteRules((RuleFilter(),)),
        AlterCredentials((CredentialName("b", mechanism),), (UserCredential("a", mechanism, keys),)),
        AlterQuotas((QuotaAlteration(QuotaEntity("a"), (QuotaChange(QuotaKey.PRODUCER_BYTE_RATE, 1.0),)),)),
    ]


async def mount_commands(world: MetaWorld) -> list[table_commands.Command[Any]]:
    """Of a node that is gone, whose data set the only living one holds."""
    snapshot = await world.client.snapshot()
    life, shard = snapshot.nodes[0].life, snapshot.shards[0].key
    for node_id in (7, 8, 9):
        told = await world.client.perform(table_commands.RegisterNode(NodeInfo(node_id, f"s{node_id}", "h", 1)))
        await world.service.perform(table_commands.NoteLives(lost=(Life(node_id, told.node_epoch),)))
    await world.client.perform(BeginMount(7, "s7", MountMode.VOLUME))
    mount = await world.client.perform(BeginMount(9, "s9", MountMode.OFFLOAD))
    return [
        BeginMount(8, "s8", MountMode.OFFLOAD),
        TakeMount(mount.name, mount.token, caller=life),
        ReleaseMount(mount.name, mount.token),
        MoveMount(mount.name, life.node_id),
        EndMount(mount.name, "s7"),
        DoubtMount(mount.name, mount.token, caller=life),
        OpenVolume(7, "s7", "host", 9092, "start"),
        CreateMount("by-hand", ("orders",), 0, 10),
        MountCut("of-june", (CutShard(shard, 0, 10, 0),)),
        CloseVolume(7, "start"),
    ]


@pytest.mark.fault("request-http-numbers-sense")
async def test_a_number_outside_its_bounds_changes_nothing(world: MetaWorld, http: aiohttp.ClientSession) -> None:
    commands = await commands_with_numbers(world)
    before = await world.client.snapshot()
    for path, body in map(asked, commands):
        for number in (*HUGE, *MINUS):
            for changed in with_each_number(body, number):
                async with http.post(path, json=changed) as response:
                    told = await response.json(content_type=None)
                    assert 400 <= response.status < 500, (path, changed, told)
    after = await world.client.snapshot()
    assert after.version == before.version and after == before


@pytest.mark.fault("request-http-numbers-sense")
async def test_a_number_in_a_path_or_a_query_has_bounds_too(http: aiohttp.ClientSession) -> None:
    for number in ("9" * 5_000, str(2**63), "-1", "1.5", "²", "x"):
        for path in (f"/v1/watch?after={number}", f"/v1/topics?limit={number}"):
            async with http.get(path) as response:
                assert response.status == 400, path
    async with http.get("/v1/topics?limit=1001") as response:
        assert response.status == 400


@pytest.mark.fault("request-http-numbers-sense")
@pytest.mark.parametrize("ttl_ms", [2**63, 2**63 - 1, 3_600_001, 0, -1])
async def test_a_lease_lasts_an_hour_at_most(http: aiohttp.ClientSession, world: MetaWorld, ttl_ms: int) -> None:
    """A lock for 2^63 ms kept a node from its own objects forever."""
    body = {"name": "tier/1", "holder": "somebody", "ttl_ms": ttl_ms}
    async with http.post("/v1/commands/acquire-lock", json=body) as response:
        assert response.status == 400
    assert (await world.lock()).epoch == 1


async def test_names_have_a_longest_one(http: aiohttp.ClientSession) -> None:
    for field in ("storage_id", "host", "rack"):
        node = {"node_id": 1, "storage_id": "s", "host": "h", "port": 1} | {field: "x" * 513}
        async with http.post("/v1/commands/register-node", json={"node": node}) as response:
            assert response.status == 400


async def test_one_request_names_a_limited_number_of_segments(http: aiohttp.ClientSession, world: MetaWorld) -> None:
    segment = await world.ready_topic()
    keys = (segment.key,) * 10_001
    for path, body in map(asked, (table_commands.PurgeSegments(keys), table_commands.ForgetLocal(keys, 1))):
        async with http.post(path, json=body) as response:
            assert response.status == 413
