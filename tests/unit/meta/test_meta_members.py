"""What the meta service answers to callers that act for another: a node, the operator, a client, no certificate."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.mount_commands import CloseVolume
from stratalog.model.commands.retirement_commands import ReleaseNode, RetireNode
from stratalog.model.errors import Conflict, Fenced, Forbidden
from stratalog.model.metadata import Heartbeat, Life, NodeInfo, life_name
from stratalog.model.segment import Segment
from stratalog_meta.api.routes import ROUTES
from support.stream_client import client_side
from unit.meta.test_meta_tls import ONE, TOKEN, TWO, Secure, secure


@dataclass(frozen=True)
class Nodes:
    clients: tuple[HttpMetaClient, HttpMetaClient]
    lives: tuple[Life, Life]
    tokens: tuple[int, int]


async def two_nodes(one: Secure) -> Nodes:
    clients = one.client(one.issue("node/1")), one.client(one.issue("node/2"))
    first = await clients[0].perform(commands.RegisterNode(ONE))
    second = await clients[1].perform(commands.RegisterNode(TWO))
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
        take = commands.AcquireLock("tier/2", life_name(2, life.epoch), 60_000, caller=life)
        held = await nodes.clients[1].perform(take)
        for attack in (replace(take, caller=nodes.lives[0]), commands.ReleaseLock(held, caller=nodes.lives[0])):
            with pytest.raises(Forbidden, match="holds lock 'tier/1' under its own name"):
                await nodes.clients[0].perform(attack)
        assert (await nodes.clients[1].perform(replace(take, renews=held.epoch))).epoch == held.epoch


async def test_no_node_keeps_the_disk_of_another_out(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        with pytest.raises(Forbidden):
            await nodes.clients[0].perform(commands.AcquireLock("disk/disk-3", "node-1/1", 1, caller=nodes.lives[0]))
        third = NodeInfo(3, "disk-3", "127.0.0.1", 9094)
        assert (await one.client(one.issue("node/3")).perform(commands.RegisterNode(third))).node_epoch == 1


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize("who", ["anonymous", "alice", "operator", "meta"])
async def test_who_names_no_life_asks_for_nothing_that_is_a_nodes(tmp_path: Path, who: str) -> None:
    """With the cluster's token, too. A roll would cut off what was acknowledged, a smaller ISR would lose it."""
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        await nodes.clients[0].perform(commands.CreateTopic("flights", 1, 2, {}, caller=nodes.lives[0]))
        segment = await only_segment(nodes.clients[0])
        assert segment.leader is not None
        thief = one.client(None if who == "anonymous" else one.issue(who), token=TOKEN)
        before = await thief.read_version()
        attacks: tuple[commands.Command[object], ...] = (
            commands.ProposeIsr(segment.key, (segment.leader,), segment.isr_version),
            commands.PrepareSegment(segment.key),
            commands.RollSegment(segment.key, 0),
            commands.PromiseFence(segment.key, 1, 0, 0, True),
            commands.ForgetLocal((), 2),
            commands.PurgeSegments(()),
            commands.AllocateProducerIds(1),
            commands.AcquireLock("tier/2", life_name(2, nodes.lives[1].epoch), 60_000),
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
        life = Life(1, (await client.perform(commands.RegisterNode(ONE))).node_epoch)
        assert (await client.perform(commands.AcquireLock("tier/2", "node-2/1", 60_000, caller=life))).epoch == 1
        with pytest.raises(Conflict):
            await client.perform(commands.AcquireLock("tier/2", "job-1", 60_000))


# What is read -------------------------------------------------------------------------------------------------------
READS = [route.path for route in ROUTES if route.method == "GET"]
WATCH = "/v1/watch?after=0"
IDS = {"topic_id": "", "shard": "0", "epoch": "0", "base_offset": "0"}


async def answers(one: Secure, tmp_path: Path, who: str, *paths: str) -> list[bytes]:
    """Of a watch its first line; empty where the answer is an error."""
    tls = client_side(one.authority, None if who == "anonymous" else one.issue(who), tmp_path / who.replace("/", "-"))
    read = []
    async with aiohttp.ClientSession(one.server.address, headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        for path in paths:
            async with session.get(path, ssl=tls) as got:
                text = await (got.content.readline() if "watch" in path else got.read())
                read.append(text if got.status == 200 else b"")
    return read


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize("who", ["anonymous", "alice", "operator", "meta", "node/1"])
async def test_only_nodes_read_the_tokens_of_lives(tmp_path: Path, who: str) -> None:
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        topic = await nodes.clients[0].perform(commands.CreateTopic("flights", 1, 2, {}, caller=nodes.lives[0]))
        paths = [path.format(**{**IDS, "topic_id": topic.topic_id}) for path in READS]
        paths = [f"{path}?topic=flights&shard=0" if "/lists/" in path else path for path in paths]
        paths += ["/v1/snapshot", WATCH]
        read = dict(zip(paths, await answers(one, tmp_path, who, *paths), strict=True))
        assert [path for path, answer in read.items() if not answer] == []
        shown = {path for path, answer in read.items() if any(str(token).encode() in answer for token in nodes.tokens)}
        everything = {"/v1/nodes", "/v1/outline", "/v1/snapshot", WATCH}
        assert shown == (everything if who == "node/1" else set())


async def test_lines_of_a_watch_that_a_node_has_read_are_not_given_to_another_reader(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        token = str(nodes.tokens[0]).encode()
        lines = [line for who in ("node/1", "operator", "node/2") for line in await answers(one, tmp_path, who, WATCH)]
        assert [token in line for line in lines] == [True, False, True]
        (with_token, without) = (json.loads(line)["changes"] for line in lines[:2])
        assert [strip_token(change) for change in with_token] == [strip_token(change) for change in without]


def strip_token(change: dict[str, Any]) -> dict[str, Any]:
    return {kind: {name: {**fields, "token": 0} for name, fields in told.items()} for kind, told in change.items()}


async def test_a_retired_node_reads_the_keys_of_users_no_more(tmp_path: Path) -> None:
    """Its certificate is good, and its directory may be read by another process: it still reads everything else."""
    async with secure(tmp_path) as one:
        nodes = await two_nodes(one)
        second = one.client(one.issue("node/2"), with_credentials=True)
        watch = aiter(second.watch(0))
        await anext(watch)
        await one.client(one.issue("operator")).perform(RetireNode(2))
        (record,) = [node.retirement for node in (await one.service.snapshot()).nodes if node.node_id == 2]
        assert record is not None
        assert await one.service.perform(ReleaseNode(2, record))
        with pytest.raises(Forbidden, match="was retired"):
            async for _ in watch:
                pass
        for read in (second.snapshot, lambda: anext(aiter(second.watch(0)))):
            with pytest.raises(Forbidden, match="was retired"):
                await read()
        reader, life = one.client(one.issue("node/2")), nodes.lives[1]
        assert [node.token for node in await reader.nodes()] == [nodes.tokens[0], 0], "its own ended"
        for late in (commands.RegisterNode(TWO), commands.CreateTopic("late", 1, 1, {}, caller=life)):
            with pytest.raises(Fenced, match="was retired"):
                await reader.perform(late)
        with pytest.raises(Fenced):
            await reader.heartbeat(Heartbeat(life))
