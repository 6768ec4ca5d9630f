"""Thousands of connections that are ready at once: libuv polls again, up to 48 times, before anything else runs as long
as one poll fills its 1,024 events. What was read in a turn is used as it was sent, whatever is called in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
import uvloop

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import decode_records
from stratalog_node.serve.connections import connection as connection_module
from stratalog_node.serve.connections.connection import Connection
from support.raw_client import batch_of
from support.serve_rig import ServeRig, WireClient

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
FIRST_READ = connection_module._SMALL_BUFFER


def on(loop: str, work: Awaitable[None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(100):
            await work

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(within())


def frames_that_fill_the_first_read(client: WireClient, name: bytes) -> list[tuple[bytes, bytes]]:
    """(value, frame) of two requests that end where the first read ends, and of two more behind them. A second read in
    the same turn would go over the first two from the buffer's beginning."""
    small = [
        (name + suffix, client.produce_frame("flights", batch_of(name + suffix))) for suffix in (b"-a", b"-c", b"-d")
    ]
    value = name + b"-b" + bytes(FIRST_READ - 2 * len(small[0][1]))
    too_many = len(small[0][1]) + len(client.produce_frame("flights", batch_of(value))) - FIRST_READ
    value = value[:-too_many]
    frame = client.produce_frame("flights", batch_of(value))
    assert len(frame) + len(small[0][1]) == FIRST_READ
    return [small[0], (value, frame), *small[1:]]


def frames_with_one_cut_by_the_first_read(client: WireClient, name: bytes) -> list[tuple[bytes, bytes]]:
    """The second request ends behind the first read: room for it is made where the first one lies."""
    values = [name + b"-a", name + b"-b" + bytes(FIRST_READ), name + b"-c"]
    return [(value, client.produce_frame("flights", batch_of(value))) for value in values]


async def records_of(rig: ServeRig, name: str = "flights") -> list[bytes]:
    shard = rig.shards.by_name(name, 0)
    assert shard is not None
    values: list[bytes] = []
    while len(values) < shard.high_watermark:
        data = b"".join(await shard.read(len(values), 8 << 20))
        for at, header in walk(data, source="the log"):
            values += [record.value or b"" for record in decode_records(data[at : at + header.size_bytes])]
    return values


async def everything_acknowledged_is_there(tmp_path: Path, count: int, make: object) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        clients = [rig.connect() for _ in range(count)]
        sent = []
        for number, client in enumerate(clients):
            frames = make(client, b"%05d" % number)  # type: ignore[operator]
            sent.append([value for value, _ in frames])
            client.socket.sendall(b"".join(frame for _, frame in frames))
        acknowledged: dict[int, bytes] = {}
        for client, values in zip(clients, sent, strict=True):
            for value in values:
                answer = await client.produced()
                assert answer.error_code == 0, answer
                acknowledged[answer.base_offset] = value
        await rig.restart("crash")
        found = await records_of(rig)
        assert len(found) == sum(map(len, sent)), "the log after the crash is not as long as what was acknowledged"
        assert {offset: found[offset] for offset in acknowledged} == acknowledged


@pytest.mark.fault("thousands-connections-ready-once")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("make", [frames_that_fill_the_first_read, frames_with_one_cut_by_the_first_read])
@pytest.mark.parametrize("count", [1_500, 5_000])
def test_every_record_acknowledged_to_thousands_of_ready_connections_survives_a_crash(
    tmp_path: Path, count: int, make: object, loop: str
) -> None:
    on(loop, everything_acknowledged_is_there(tmp_path, count, make))


@pytest.mark.fault("thousands-connections-ready-once")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_is_read_once_in_a_turn_and_again_in_the_next(
    tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever calls its reader, and however often: the turn's number decides, not the order of callbacks."""

    async def work() -> None:
        async with ServeRig(tmp_path) as rig:
            shard = await rig.shard_of()
            client = rig.connect()
            frames = frames_that_fill_the_first_read(client, b"once")
            client.socket.sendall(b"".join(frame for _, frame in frames))
            for _ in range(48):
                client.connection._on_readable()
            assert len(shard._pending) == 2, "only what the first read brought"
            for number in range(len(frames)):
                assert (await client.produced()).base_offset == number
            assert await records_of(rig) == [value for value, _ in frames]

    on(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
def test_polling_again_within_a_turn_costs_each_connection_one_check(
    tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was read is not asked for again before the turn has ended, so 48 polls end early."""
    looks = 0
    read = Connection._on_readable

    def counted(connection: Connection) -> None:
        nonlocal looks
        looks += 1
        read(connection)

    monkeypatch.setattr(Connection, "_on_readable", counted)

    async def work() -> None:
        nonlocal looks
        async with ServeRig(tmp_path) as rig:
            await rig.shard_of()
            clients = [rig.connect() for _ in range(1_500)]
            for client in clients:
                frames = frames_that_fill_the_first_read(client, b"look")
                client.socket.sendall(b"".join(frame for _, frame in frames))
            turns = rig.turn.number
            looks = 0
            for client in clients:
                for _ in range(4):
                    assert (await client.produced()).error_code == 0
            # A turn reads each connection once and looks once more; two or three turns read all there is.
            assert looks <= 2 * len(clients) * (rig.turn.number - turns)
            assert looks <= 6 * len(clients)

    on(loop, work())
