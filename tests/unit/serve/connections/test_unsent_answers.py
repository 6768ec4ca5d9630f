"""What clients ask for and do not take is bounded for the whole node, not for each connection alone."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.messages import EncodedBody, build, encode_entity, request_type
from stratalog.model.errors import Unavailable
from stratalog_node.serve.connections.answer import Answer
from stratalog_node.serve.connections.connection import _HIGH_WATER_BYTES, Connection
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.control import LARGE_AT_ONCE
from support import kafka_oracle
from support.serve_rig import ServeRig, WireClient
from support.waiting import eventually

_KEYS = [f"group-{number:06d}" for number in range(20_000)]
"""The answer names each of them: about a megabyte."""
_LIMIT_BYTES = 4 << 20


async def _ask(client: WireClient) -> None:
    await client.write(client.frame(10, 4, key_type=0, coordinator_keys=_KEYS))


@asynccontextmanager
async def _rig_without_a_timer(tmp_path: Path, **settings: Any) -> AsyncIterator[ServeRig]:
    """It looks when the test says so: a second of a slow machine must not count besides."""
    async with ServeRig(tmp_path, **settings) as rig:
        assert rig.server._reaper is not None
        rig.server._reaper.cancel()
        yield rig


def _look(rig: ServeRig, *, after_ms: int = 1_000) -> None:
    """After a second, as the node does; later where its loop stood still."""
    rig.steady.now_ms += after_ms
    rig.server._reap()
    assert rig.server._reaper is not None
    rig.server._reaper.cancel()


@pytest.mark.fault("clients-ask-large-answers-read", "clients-ask-large-answers-read-none")
async def test_unread_answers_are_bounded_for_the_whole_node(tmp_path: Path) -> None:
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=_LIMIT_BYTES) as rig:
        unsent_answers = rig.server._control.unsent_answers
        idle = [rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(12)]
        for client in idle:
            await _ask(client)
        await eventually(lambda: unsent_answers.is_full and unsent_answers._asking)
        made = [connection for connection, _, _ in unsent_answers._held.values()]
        assert unsent_answers.size_bytes <= _LIMIT_BYTES + LARGE_AT_ONCE * (2 << 20) and len(made) < len(idle)
        _look(rig, after_ms=0)
        _look(rig)
        assert not any(client.connection.is_closed for client in idle), "they may be about to read"
        for _ in range(2):
            _look(rig)
        closed = [connection.is_closed for connection in made]
        assert closed == sorted(closed, reverse=True) and any(closed) and not closed[-1], "the oldest go, and no more"
        assert 0 < unsent_answers.size_bytes <= _LIMIT_BYTES
        for client in idle:
            client.close()
        await eventually(lambda: unsent_answers.size_bytes == 0)


@pytest.mark.fault("clients-ask-large-answers-read", "clients-ask-large-answers-read-none")
async def test_a_slow_reader_is_closed_for_an_answer_of_long_ago(tmp_path: Path) -> None:
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        slow, new = (rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(2))
        await _ask(slow)
        await eventually(lambda: slow.connection._out)
        for _ in range(11):
            _look(rig)
        slow.connection.last_active_ms = rig.steady.now_ms
        assert not slow.connection.is_closed, "alone it may take its time"
        await _ask(new)
        await eventually(lambda: rig.server._control.unsent_answers._asking)
        _look(rig, after_ms=0)
        await eventually(lambda: new.connection._out)
        assert slow.connection.is_closed and not new.connection.is_closed


@pytest.mark.fault("clients-ask-topics-once", "clients-ask-topics-once-restart")
async def test_no_client_is_closed_for_time_in_which_the_node_was_blocked(tmp_path: Path) -> None:
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        clients = [rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(3)]
        for client in clients:
            await client.write(client.frame(10, 4, key_type=0, coordinator_keys=_KEYS[:1]))
            await client.read_frame()
        rig.steady.now_ms += 30_000  # their requests lay in the sockets meanwhile
        for client in clients:
            await _ask(client)
        await eventually(lambda: rig.server._control.unsent_answers._asking)
        for _ in range(2):
            _look(rig, after_ms=15_000)
            assert not any(client.connection.is_closed for client in clients)
        for client in clients:
            answer = kafka_oracle.decode_response(10, 4, await client.read_frame())
            assert len(answer.coordinators) == len(_KEYS)


@pytest.mark.fault("clients-ask-topics-once", "clients-ask-topics-once-restart")
async def test_all_clients_that_ask_for_all_topics_at_once_are_answered(tmp_path: Path) -> None:
    """As after a restart. They are answered as fast as they read, a few at a time, and none is given up."""
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        for number in range(300):
            await rig.shard_of(f"topic-with-a-rather-long-name-{number:04d}")
        unsent_answers = rig.server._control.unsent_answers
        clients = [rig.connect() for _ in range(200)]
        for client in clients:
            await client.write(client.frame(3, 5, topics=None, allow_auto_topic_creation=False))
        most = 0
        for client in clients:
            answer = kafka_oracle.decode_response(3, 5, await client.read_frame())
            assert len(answer.topics) == 300
            most = max(most, unsent_answers.size_bytes)
            _look(rig)
        assert most <= (64 << 10) + LARGE_AT_ONCE * (64 << 10)
        assert not any(client.connection.is_closed for client in clients)


@pytest.mark.fault("clients-ask-topics-once", "clients-ask-topics-once-restart")
async def test_waiters_for_room_are_woken_one_at_a_time(tmp_path: Path) -> None:
    """Thousands would run for each answer that is taken, all but one of them in vain."""
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        unsent_answers = rig.server._control.unsent_answers
        answer, clients = Answer(), [rig.connect() for _ in range(20)]
        unsent_answers.hold(answer, clients[0].connection, 65 << 10)
        for client in clients:
            await client.write(client.frame(3, 5, topics=None, allow_auto_topic_creation=False))
        await eventually(lambda: rig.server.stats.control_requests == len(clients) and unsent_answers._asking)
        assert unsent_answers._asking == 1
        assert answer.release is not None
        answer.release()
        for client in clients:
            await client.read_frame()


@pytest.mark.fault("clients-ask-topics-once", "clients-ask-topics-once-restart")
@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (3, 0, {"topics": []}),
        (3, 12, {"topics": None, "allow_auto_topic_creation": False}),
        (9, 7, {"group_id": "g", "topics": None, "require_stable": False}),
        (9, 8, {"groups": [("g", None)], "require_stable": False}),
        (16, 4, {"states_filter": []}),
        (35, 4, {"topics": None}),
    ],
)
async def test_few_bytes_that_ask_for_all_there_is_wait_with_the_large_ones(
    tmp_path: Path, key: int, version: int, fields: dict[str, Any]
) -> None:
    begun = 0

    async def handler(context: RequestContext, request: Any) -> Any:
        nonlocal begun
        begun += 1
        raise Unavailable("it was begun")

    if "groups" in fields:
        group = kafka_oracle.request_class(key).OffsetFetchRequestGroup
        fields = fields | {
            "groups": [group(version=version, group_id=name, topics=of) for name, of in fields["groups"]]
        }
    async with _rig_without_a_timer(tmp_path) as rig:
        desk = rig.server._control
        rig.server._apis[key] = replace(rig.server._apis[key], handler=handler)
        for _ in range(LARGE_AT_ONCE):
            await desk.large.acquire()
        client = rig.connect()
        await client.write(client.frame(key, version, **fields))
        await eventually(lambda: desk.large._waiters)
        assert not begun
        for _ in range(LARGE_AT_ONCE):
            desk.large.release()
        await eventually(lambda: begun)
        assert not desk.large.locked()


async def test_an_answer_larger_than_the_limit_goes_alone_and_what_was_taken_counts_no_more(tmp_path: Path) -> None:
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        client = rig.connect()
        for _ in range(3):
            await _ask(client)
            answer = kafka_oracle.decode_response(10, 4, await client.read_frame())
            assert len(answer.coordinators) == len(_KEYS)
            await eventually(lambda: rig.server._control.unsent_answers.size_bytes == 0)


_SMALL = 1_000
"""Keys of a request that is decoded at once; the answer is four times as large."""


def _small(client: WireClient) -> bytes:
    return client.frame(10, 4, key_type=0, coordinator_keys=_KEYS[:_SMALL])


async def _all_come(client: WireClient, count: int) -> int:
    """How large one of them is."""
    size = 0
    for _ in range(count):
        frame = await client.read_frame()
        assert len(kafka_oracle.decode_response(10, 4, frame).coordinators) == _SMALL
        size = len(frame)
    return size


@pytest.mark.fault("client-sends-hundreds-small", "client-sends-hundreds-small-questions")
@pytest.mark.parametrize("is_behind_fetch", [False, True])
async def test_a_client_that_asks_without_reading_gets_one_answer_above_its_limit(
    tmp_path: Path, is_behind_fetch: bool
) -> None:
    """Nor does a fetch that waits for data keep more behind it."""
    async with _rig_without_a_timer(tmp_path) as rig, asyncio.TaskGroup() as group:
        shard = await rig.shard_of()
        client = rig.connect(send_buffer=4096, receive_buffer=4096)
        await client.write(_small(client))
        size = await _all_come(client, 1)
        if is_behind_fetch:
            await client.write(client.fetch_frame("flights", 0, max_wait_ms=60_000))
        # Where the node answers as fast as it reads, it stops reading first, and the rest is written only later.
        group.create_task(client.write(b"".join(_small(client) for _ in range(250))))
        connection, unsent_answers = client.connection, rig.server._control.unsent_answers
        await eventually(lambda: connection._out.size_bytes + connection._held_bytes > _HIGH_WATER_BYTES)
        await eventually(lambda: connection._parked)
        assert 2 * size < unsent_answers.size_bytes <= _HIGH_WATER_BYTES + size
        if is_behind_fetch:
            rig.append(shard, b"it comes")
            assert (await client.fetched())[0].records
        await _all_come(client, 250)
        await rig.nothing_is_held()


@pytest.mark.fault("client-sends-hundreds-small", "client-sends-hundreds-small-questions")
@pytest.mark.parametrize(("key", "version"), [(3, 12), (9, 8), (10, 4), (15, 5), (16, 4), (32, 4), (35, 4), (69, 0)])
async def test_no_answer_from_memory_is_built_ahead_for_a_client_that_does_not_read(
    tmp_path: Path, key: int, version: int
) -> None:
    """A few bytes name a group of a thousand members, or a topic of as many shards."""
    begun = 0

    async def handler(context: RequestContext, request: Any) -> Any:
        nonlocal begun
        begun += 1
        return EncodedBody(bytes(2 << 20))

    schema = request_type(key, version)
    body = encode_entity(build(schema, **{one.name: _empty(one.name) for one in fields(schema)}))
    frame = struct.pack(">hhihB", key, version, 1, -1, 0) + body
    async with _rig_without_a_timer(tmp_path) as rig:
        rig.server._apis[key] = replace(rig.server._apis[key], handler=handler)
        client = rig.connect(send_buffer=4096, receive_buffer=4096)
        await client.write((struct.pack(">i", len(frame)) + frame) * 20)
        await eventually(lambda: client.connection._parked)
        assert 2 <= begun <= 3
        for _ in range(20):
            assert len(await client.read_frame()) > 2 << 20
        await rig.nothing_is_held()


def _empty(name: str) -> object:
    if name.startswith(("include", "require", "allow")):
        return False
    return "" if name.endswith("_id") else 0 if name.endswith("type") else ()


@pytest.mark.fault("client-sends-hundreds-small", "client-sends-hundreds-small-questions")
async def test_beyond_the_limit_each_client_is_owed_one_answer(tmp_path: Path) -> None:
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        clients = [rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(10)]
        for client in clients:
            await client.write(_small(client))
            size = await _all_come(client, 1)
        for client in clients:
            await client.write(b"".join(_small(client) for _ in range(8)))
        await eventually(lambda: all(client.connection._parked for client in clients))
        assert rig.server._control.unsent_answers.size_bytes <= (64 << 10) + len(clients) * size
        for client in clients:
            await _all_come(client, 8)
        await rig.nothing_is_held()


@pytest.mark.fault("clients-send-requests-fetches")
@pytest.mark.parametrize("is_fetch", [False, True])
async def test_what_requests_that_wait_hold_is_bounded_for_the_whole_node(tmp_path: Path, is_fetch: bool) -> None:
    """Behind fetches that may wait for weeks each client had megabytes of them."""
    limit_bytes, count = 256 << 10, 60
    async with _rig_without_a_timer(tmp_path, queued_max_request_bytes=limit_bytes) as rig:
        shard = await rig.shard_of()
        budget = rig.server.budget
        clients = [rig.connect(is_tcp=True) for _ in range(10)]
        for client in clients:
            waiting = client.fetch_frame("flights", 0, max_wait_ms=60_000)
            more = client.fetch_frame("flights", 0, partitions=tuple(range(600))) if is_fetch else _small(client)
            client.socket.setblocking(False)
            await client.write(waiting * 8 + more * count)
        await eventually(lambda: all(client.connection._pause_reasons for client in clients))
        assert limit_bytes < budget.kept_bytes <= limit_bytes + len(clients) * ((64 << 10) + len(more))
        other = rig.connect()
        await other.write(other.frame(18, 0))
        await other.read_frame()
        rig.append(shard, b"it comes")
        for client in clients:
            for _ in range(8):
                assert (await client.fetched())[0].records
            for _ in range(count):
                assert await client.read_frame()
        assert budget.kept_bytes == 0
        await rig.nothing_is_held()


@pytest.mark.fault("clients-ask-large-answers", "clients-ask-large-answers-2")
async def test_answers_and_closed_connections_are_freed_at_once(tmp_path: Path) -> None:
    """The collector looks seldom: thousands of large answers would wait for it."""

    def left() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, Answer | Connection)]

    async with _rig_without_a_timer(tmp_path) as rig:
        shard = await rig.shard_of()
        client, leaver = rig.connect(), rig.connect()
        gc.collect()
        gc.disable()
        try:
            before = len(left())
            for _ in range(3):
                await _ask(client)
                await client.read_frame()
            await eventually(lambda: rig.server._control.unsent_answers.size_bytes == 0)
            assert len(left()) == before
            await leaver.write(leaver.frame(18, 0) + leaver.fetch_frame("flights", 0, max_wait_ms=60_000))
            await leaver.read_frame()
            await eventually(lambda: shard.waiters)
            leaver.close()
            rig._clients.remove(leaver)
            del leaver
            await eventually(lambda: len(left()) == before - 1)
        finally:
            gc.enable()
