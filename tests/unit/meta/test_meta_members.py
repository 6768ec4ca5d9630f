"""What the meta service answers to callers that act for another: a node, the operator, a client, no certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.mount_commands import CloseVolume
from stratalog.model.commands.table_commands import (
    AcquireLock,
    AllocateProducerIds,
    Command,
    CreateTopic,
    ForgetLocal,
    PrepareSegment,
    PromiseFence,
    ProposeIsr,
    PurgeSegments,
    RegisterNode,
    ReleaseLock,
    RollSegment,
)
from stratalog.model.errors import Conflict, Forbidden
from stratalog.model.metadata import Life, NodeInfo, life_name
from stratalog.model.segment import Segment
from unit.meta.test_meta_tls import ONE, TOKEN, TWO, Secure, secure


@dataclass(frozen=True)
class Nodes:
    clients: tuple[HttpMetaClient, HttpMetaClient]
    lives: tuple[Life, Life]
    tokens: tuple[int, int]


async def two_nodes(one: Secure) -> Nodes:
    clients = one.client(one.issue("node/1")), one.client(one.issue("node/2"))
    first = await clients[0].perform(RegisterNode(ONE))
    second = await clients[1].perform(RegisterNode(TWO))
    lives = Life(1, first.node_epoch), Life(2, second.node_epoch)
    return Nodes(clients, lives, (first.token, second.token))


async def only_segment(client: HttpMetaClient) -> Segment:
    (shard,) = (await client.snapshot()).shards
    return shard.segments[-1]


@pytest.mark.fault("token-stolen-other-certificate")
async def test_a_node_takes_and_gives_back_no_lock_of_another(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        life = nodes.lives[1]
        take = AcquireLock("tier/2", life_name(2, life.epoch), 60_000, caller=life)
        held = await nodes.clients[1].perform(take)
        for attack in (replace(take, caller=nodes.lives[0]), ReleaseLock(held, caller=nodes.lives[0])):
            with pytest.raises(Forbidden, match="holds lock 'tier/1' under its own name"):
                await nodes.clients[0].perform(attack)
        assert (await nodes.clients[1].perform(replace(take, renews=held.epoch))).epoch == held.epoch


async def test_no_node_keeps_the_disk_of_another_out(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        with pytest.raises(Forbidden):
            await nodes.clients[0].perform(AcquireLock("disk/disk-3", "node-1/1", 1, caller=nodes.lives[0]))
        third = NodeInfo(3, "disk-3", "127.0.0.1", 9094)
        assert (await one.client(one.issue("node/3")).perform(RegisterNode(third))).node_epoch == 1


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize("who", ["nobody", "alice", "operator", "meta"])
async def test_who_names_no_life_asks_for_nothing_that_is_a_nodes(tmp_path: Path, who: str) -> None:
    """With the cluster's token, too. A roll would cut off what was acknowledged, a smaller ISR would lose it."""
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        await nodes.clients[0].perform(CreateTopic("flights", 1, 2, {}, caller=nodes.lives[0]))
        segment = await only_segment(nodes.clients[0])
        assert segment.leader is not None
        thief = one.client(None if who == "nobody" else one.issue(who), token=TOKEN)
        before = await thief.read_version()
        attacks: tuple[Command[object], ...] = (
            ProposeIsr(segment.key, (segment.leader,), segment.isr_version),
            PrepareSegment(segment.key),
            RollSegment(segment.key, 0),
            PromiseFence(segment.key, 1, 0, 0, True),
            ForgetLocal((), 2),
            PurgeSegments(()),
            AllocateProducerIds(1),
            AcquireLock("tier/2", life_name(2, nodes.lives[1].epoch), 60_000),
        )
        for attack in attacks:
            with pytest.raises(Forbidden):
                await thief.perform(attack)
        assert await thief.read_version() == before
        assert await only_segment(nodes.clients[0]) == segment


async def test_a_node_closes_its_volume_in_no_life_of_another(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        with pytest.raises(Forbidden, match="only node 2"):
            await nodes.clients[0].perform(CloseVolume(1, "start", caller=nodes.lives[1]))


async def test_where_no_certificates_are_asked_for_the_token_still_decides_alone(tmp_path: Path) -> None:
    async with secure(tmp_path, part="alice") as one:
        client = one.client(None, token=TOKEN)
        life = Life(1, (await client.perform(RegisterNode(ONE))).node_epoch)
        assert (await client.perform(AcquireLock("tier/2", "node-2/1", 60_000, caller=life))).epoch == 1
        with pytest.raises(Conflict):
            await client.perform(AcquireLock("tier/2", "job-1", 60_000))
