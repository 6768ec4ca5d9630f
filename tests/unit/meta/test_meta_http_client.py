"""The HTTP client on a bad day: what it sends again, what it never does, what it says when an answer is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.meta_api.transport import MAX_REQUESTS, Transport
from stratalog.model.commands.table_commands import (
    AddShards,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ProposeIsr,
    RegisterNode,
    RollSegment,
)
from stratalog.model.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog_meta.api.server import MetaServer
from support.fault_proxy import BlackHole, CutBody, FaultProxy, Latency, LostAnswer, Reset, Rule, ServerError
from support.meta_worlds import IMPATIENT, MetaWorld, collect, running
from support.scripted_server import Script, http_answer, scripted_server
from support.waiting import eventually

HASTY = RetryPolicy(
    attempts=3, attempt_s=0.3, connect_s=0.3, first_pause_s=0.001, longest_pause_s=0.01, silence_s=0.3, watch_gap_s=0.3
)
STEADY = replace(HASTY, attempt_s=10.0, connect_s=10.0, silence_s=10.0)
"""For tests in which only what the proxy does may go wrong, however busy the machine is."""


@asynccontextmanager
async def behind_faults(
    tmp_path: Path, policy: RetryPolicy = STEADY
) -> AsyncIterator[tuple[MetaWorld, HttpMetaClient, FaultProxy]]:
    """A service, and a client that reaches it through a proxy."""
    async with running("http/memory", tmp_path) as world:
        assert world.url is not None
        await world.node()
        async with FaultProxy(int(world.url.rpartition(":")[2])) as proxy:
            client = HttpMetaClient(proxy.endpoint, policy)
            yield world, client, proxy
            await client.close()


async def make_topic(client: HttpMetaClient, name: str = "orders") -> object:
    return await client.perform(CreateTopic(name, shard_count=1, replication_factor=1, settings={}))


async def test_an_absent_service_is_unavailable_for_reads_and_changes_alike() -> None:
    client = HttpMetaClient("http://127.0.0.1:1", HASTY)
    with pytest.raises(Unavailable, match="no meta service answers at"):
        await client.snapshot()
    with pytest.raises(Unavailable):
        await make_topic(client)
    with pytest.raises(Unavailable):
        await collect(client.watch(0), 1)
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await client.snapshot()


async def test_a_change_that_must_not_be_doubled_is_never_sent_again_when_its_answer_was_lost(tmp_path: Path) -> None:
    async with behind_faults(tmp_path) as (world, client, proxy):
        kept = await world.active(await world.topic("kept"))
        topic_id = kept.key.topic_id
        changes = {
            "create": lambda: make_topic(client, "new"),
            "add shards": lambda: client.perform(AddShards(topic_id, 2)),
            "alter": lambda: client.perform(AlterTopic(topic_id, {"a": "1"})),
            "isr": lambda: client.perform(ProposeIsr(kept.key, (1,), 0)),
            "delete": lambda: client.perform(DeleteTopic(topic_id)),
        }
        for name, change in changes.items():
            rule = proxy.add(Rule(LostAnswer()))
            with pytest.raises(OutcomeUnknown):
                await change()
            assert rule.hits == 1, name
            proxy.clear()
        assert [topic.name for topic in (await world.service.snapshot()).topics] == ["new"], "each was done"
        with pytest.raises(AlreadyExists):
            await make_topic(client, "new")


async def test_a_change_that_may_be_repeated_is_sent_again_when_its_answer_was_lost(tmp_path: Path) -> None:
    async with behind_faults(tmp_path) as (world, client, proxy):
        segment = await world.active(await world.topic())
        rule = proxy.add(Rule(LostAnswer(), target_contains="/roll-segment", times=2))
        rolled = await client.perform(RollSegment(segment.key, 10))
        assert rule.hits == 2 and rolled.base_offset == 10
        assert len((await world.service.snapshot()).shards[0].segments) == 2


async def test_a_change_that_never_gets_an_answer_ends_as_unknown(tmp_path: Path) -> None:
    async with behind_faults(tmp_path, HASTY) as (world, client, proxy):
        segment = await world.active(await world.topic())
        rule = proxy.add(Rule(BlackHole()))
        with pytest.raises(OutcomeUnknown, match="no answer within"):
            await client.perform(RollSegment(segment.key, 10))
        assert rule.hits == HASTY.attempts
        with pytest.raises(OutcomeUnknown):
            await make_topic(client, "other")
        assert rule.hits == HASTY.attempts + 1


async def test_reads_are_sent_again_and_end_as_unavailable(tmp_path: Path) -> None:
    async with behind_faults(tmp_path) as (_, client, proxy):
        for fault in (Reset(), CutBody(3), LostAnswer(), ServerError(502)):
            proxy.clear()
            rule = proxy.add(Rule(fault, times=2))
            await client.deleted_segments()
            rule = proxy.add(Rule(fault))
            with pytest.raises(Unavailable):
                await client.deleted_segments()
            assert rule.hits >= HASTY.attempts, fault  # aiohttp repeats a read on a kept connection by itself


async def test_a_snapshot_that_was_cut_short_is_asked_for_again(tmp_path: Path) -> None:
    async with behind_faults(tmp_path) as (world, client, proxy):
        await asyncio.gather(*(world.topic(f"topic-{number}") for number in range(30)))
        for fault in (CutBody(200), CutBody(0), Reset(), ServerError(503)):
            proxy.clear()
            rule = proxy.add(Rule(fault, target_contains="/v1/snapshot", times=2))
            assert await client.snapshot() == await world.service.snapshot()
            assert rule.hits == 2, fault
        proxy.add(Rule(CutBody(500), target_contains="/v1/snapshot"))
        with pytest.raises(Unavailable):
            await client.snapshot()


async def test_a_restart_of_the_service_interrupts_a_watch_and_loses_nothing(tmp_path: Path) -> None:
    async with running("in-process/memory", tmp_path) as world:
        server = MetaServer(world.service)
        url = await server.start("127.0.0.1", 0)
        client = HttpMetaClient(url, IMPATIENT)
        version = (await client.snapshot()).version
        watch = client.watch(version)
        await world.node(1)
        first = await anext(watch)
        await server.close()
        await world.node(2)
        await world.node(3)
        server = MetaServer(world.service)
        await server.start("127.0.0.1", int(url.rpartition(":")[2]))
        await world.node(4)
        rest = await asyncio.wait_for(collect(watch, 3), 10)
        assert [entry.version for entry in (first, *rest)] == list(range(version + 1, version + 5))
        await client.close()
        await server.close()


async def test_a_watch_that_falls_silent_is_taken_up_again() -> None:
    """A stream whose head came and then nothing: not even the sign of life that a service gives."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        if connections == 2:
            line = b'{"version":8,"changes":[]}\n'
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    policy = RetryPolicy(attempts=3, attempt_s=1, connect_s=1, first_pause_s=0.001, silence_s=0.1, watch_gap_s=5)
    client = HttpMetaClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", policy)
    (change_set,) = await asyncio.wait_for(collect(client.watch(7), 1), 10)
    assert change_set.version == 8 and connections == 2
    await client.close()
    server.close()


async def test_a_watch_gives_up_when_its_patience_ends(tmp_path: Path) -> None:
    async with behind_faults(tmp_path) as (_, client, proxy):
        await proxy.refuse()
        with pytest.raises(Unavailable, match="could not be taken up"):
            await asyncio.wait_for(collect(client.watch(1), 1), 10)


@pytest.mark.parametrize(
    "body",
    [b"", b"null\n", b"{}\n", b'{"version":9,"changes":[{"kind":"novel"}]}\n', b"<html>\n", b'{"version":9,"changes"'],
)
async def test_a_watch_of_something_else_is_not_a_watch(body: bytes) -> None:
    async with scripted_server(Script(http_answer("200 OK", body))) as server:
        client = HttpMetaClient(f"http://127.0.0.1:{server.port}", HASTY)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(collect(client.watch(1), 1), 10)
        await client.close()


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>hello</html>", b'{"cluster_id":5}'])
async def test_an_answer_that_cannot_be_read_is_unknown_for_changes_and_unavailable_for_reads(body: bytes) -> None:
    async with scripted_server(Script(http_answer("200 OK", body))) as server:
        client = HttpMetaClient(f"http://127.0.0.1:{server.port}", HASTY)
        with pytest.raises(OutcomeUnknown):
            await client.perform(RegisterNode(NodeInfo(1, "s", "h", 1)))
        with pytest.raises(Unavailable):
            await client.deleted_segments()
        with pytest.raises(Unavailable):
            await client.snapshot()
        await client.close()


async def test_a_page_of_a_stranger_is_not_mistaken_for_not_found() -> None:
    async with scripted_server(Script(http_answer("404 Not Found", b"<html>nginx</html>"))) as server:
        client = HttpMetaClient(f"http://127.0.0.1:{server.port}", HASTY)
        with pytest.raises(OutcomeUnknown):
            await make_topic(client)
        with pytest.raises(Unavailable):
            await client.deleted_segments()
        await client.close()


async def test_single_records_are_read_by_their_keys(tmp_path: Path) -> None:
    async with behind_faults(tmp_path) as (world, client, _):
        segment = await world.active(await world.topic())
        assert await client.segment(segment.key) == segment
        assert (await client.shard(segment.key.shard_key)).segments == (segment,)
        assert (await client.topic(segment.key.topic_id)).name == "orders"
        with pytest.raises(NotFound):
            await client.segment(segment.key._replace(epoch=9))


async def test_a_crowd_of_requests_waits_its_turn_without_running_out_of_time(tmp_path: Path) -> None:
    """A request's time begins when it is sent: requests beyond the limit wait, and are not given up."""
    policy = replace(STEADY, connect_s=2.0)
    async with behind_faults(tmp_path, policy) as (world, client, proxy):
        proxy.add(Rule(Latency(0.6)))
        await asyncio.gather(*(make_topic(client, f"topic-{number}") for number in range(150)))
        assert len((await world.service.snapshot()).topics) == 150
        assert proxy.seen.faults["Latency"] == 150


async def test_a_connection_that_is_not_made_in_time_has_sent_nothing() -> None:
    """The queue of the listening socket is full, so the kernel answers no further client."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        client = HttpMetaClient(f"http://127.0.0.1:{port}", replace(STEADY, connect_s=0.2, attempts=1))
        with pytest.raises(Unavailable, match="no meta service answers"):
            await make_topic(client)
        await client.close()


async def test_a_heartbeat_does_not_wait_behind_what_the_shards_of_a_node_ask_for(tmp_path: Path) -> None:
    """After a fault that is thousands of commands, and the lease would run out meanwhile."""
    async with behind_faults(tmp_path) as (_, client, proxy):
        registration = await client.perform(RegisterNode(NodeInfo(7, "disk-7", "host", 9092)))
        proxy.add(Rule(BlackHole(), target_contains="create-topic"))
        hanging = [asyncio.ensure_future(make_topic(client, f"topic-{number}")) for number in range(2 * MAX_REQUESTS)]
        await eventually(lambda: proxy.seen.faults["BlackHole"] == MAX_REQUESTS)
        assert (await client.heartbeat(Heartbeat(Life(7, registration.node_epoch)))).version >= 0
        assert proxy.seen.faults["BlackHole"] == MAX_REQUESTS, "it waited until some of them were given up"
        for one in hanging:
            one.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_watch_that_broke_off_is_taken_up_again_at_short_intervals_however_long_there_is_no_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a node does not hear it does not do."""
    attempts: list[int] = []

    async def pause(_: Transport, attempt: int) -> None:
        attempts.append(attempt)
        if len(attempts) == 30:
            raise Unavailable("enough")

    monkeypatch.setattr(Transport, "pause", pause)
    client = HttpMetaClient("http://127.0.0.1:1", RetryPolicy())
    with pytest.raises(Unavailable, match="enough"):
        await anext(client.watch(0))
    await client.close()
    assert max(RetryPolicy().pause_s(attempt, lambda: 1.0) for attempt in attempts) < 0.5
