"""Frames from a socket: cut anywhere, larger than buffers, more than the line of answers takes; memory comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from stratalog.model.commands.table_commands import RollSegment
from stratalog_node.serve.connections import connection as connection_module
from support.raw_client import batch_of
from support.serve_rig import ServeRig, WireClient
from support.waiting import eventually

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


async def within(seconds: float, work: Awaitable[None]) -> None:
    async with asyncio.timeout(seconds):
        await work


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Any:
    """Run the test on the loop of the product and on the standard one: their turns differ."""

    @pytest.mark.parametrize("loop", LOOPS)
    def run(tmp_path: Path, loop: str) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(within(20, test(tmp_path)))

    run.__name__ = test.__name__
    return run


@on_both_loops
async def test_a_frame_may_come_byte_by_byte(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        frame = client.produce_frame("flights", batch_of(b"value"))
        for at in range(len(frame)):
            await client.write(frame[at : at + 1])
            await asyncio.sleep(0)
        assert (await client.produced()).base_offset == 0
        assert await rig.read_values(shard) == [b"value"]
        client.close()
        await rig.nothing_is_held()


@on_both_loops
async def test_frames_of_any_size_cut_anywhere_arrive_whole_and_in_order(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with ServeRig(tmp_path, socket_request_max_bytes=16 << 20) as rig:
        shard = await rig.shard_of(max_message_bytes=8 << 20)
        client = rig.connect()
        sizes = [rng.choice([1, 100, 5000, 70_000, 262_000, 262_144, 600_000, 2_500_000]) for _ in range(40)]
        values = [bytes([number]) * size for number, size in enumerate(sizes)]
        stream = b"".join(client.produce_frame("flights", batch_of(value)) for value in values)

        async def send() -> None:
            at = 0
            while at < len(stream):
                step = rng.choice([1, 3, 4, 5, 1000, 65_536, 1 << 20])
                await client.write(stream[at : at + step])
                at += step

        sending = asyncio.create_task(send())
        for number in range(len(values)):
            answer = await client.produced()
            assert (answer.error_code, answer.base_offset) == (0, number)
        await sending
        assert await rig.read_values(shard, max_bytes=1 << 24) == values
        client.close()
        await rig.nothing_is_held()


@on_both_loops
async def test_more_requests_than_the_line_of_answers_takes_are_read_later_and_not_mixed_up(tmp_path: Path) -> None:
    """What is left in the buffer when reading stops is taken up without a new read going over it."""
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        count = 5 * connection_module._MAX_WAITING_ANSWERS
        values = [b"%06d" % number for number in range(count)]
        stream = b"".join(client.produce_frame("flights", batch_of(value)) for value in values)
        sending = asyncio.create_task(client.write(stream))
        for number in range(count):
            answer = await client.produced()
            assert (answer.error_code, answer.base_offset) == (0, number)
        await sending
        assert await rig.read_values(shard) == values


@on_both_loops
async def test_a_read_after_a_pause_does_not_go_over_frames_that_wait_for_their_turn(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "_MAX_WAITING_ANSWERS", 10)
        async with ServeRig(tmp_path) as rig:
            shard = await rig.shard_of()
            client = rig.connect()
            values = [b"%06d" % number for number in range(400)]
            frames = [client.produce_frame("flights", batch_of(value)) for value in values]
            for start in range(0, len(frames), 17):
                # Each write ends with a frame, so that the buffer is empty once all of it was taken.
                await client.write(b"".join(frames[start : start + 17]))
            for number in range(len(values)):
                answer = await client.produced()
                assert (answer.error_code, answer.base_offset) == (0, number)
            assert await rig.read_values(shard) == values


@on_both_loops
async def test_a_client_that_reads_late_gets_every_answer(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        value = bytes(100_000)
        for _ in range(10):
            rig.append(shard, value)
        client = rig.connect(send_buffer=4096, receive_buffer=4096)
        produced = [b"%06d" % number for number in range(2000)]
        stream = b"".join(
            client.fetch_frame("flights", 0) if number % 100 == 0 else client.produce_frame("flights", batch_of(value))
            for number, value in enumerate(produced)
        )
        sending = asyncio.create_task(client.write(stream))
        await asyncio.sleep(0.1)
        offset = 10
        for number in range(len(produced)):
            if number % 100 == 0:
                (fetched,) = await client.fetched()
                assert fetched.error_code == 0 and len(fetched.records) > 100_000
            else:
                answer = await client.produced()
                assert (answer.error_code, answer.base_offset) == (0, offset)
                offset += 1
        await sending
        values = await rig.read_values(shard, 10)
        assert values == [value for number, value in enumerate(produced) if number % 100]
        client.close()
        await rig.nothing_is_held()


@on_both_loops
async def test_many_connections_with_large_frames_share_a_small_budget_and_all_get_through(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, queued_max_request_bytes=3 << 20, socket_request_max_bytes=16 << 20) as rig:
        shard = await rig.shard_of(max_message_bytes=8 << 20)
        clients = [rig.connect() for _ in range(12)]

        async def produce(number: int, client: WireClient) -> None:
            for round_number in range(3):
                size = (300_000, 1_500_000, 5_000_000)[(number + round_number) % 3]
                await client.write(client.produce_frame("flights", batch_of(bytes([number]) * size)))
                assert (await client.produced()).error_code == 0

        await asyncio.gather(*(produce(number, client) for number, client in enumerate(clients)))
        assert shard.high_watermark == 36
        for client in clients:
            client.close()
        await rig.nothing_is_held()


@on_both_loops
async def test_half_received_frames_that_hold_the_whole_budget_do_not_block_each_other_for_ever(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, queued_max_request_bytes=4 << 20, socket_request_max_bytes=64 << 20) as rig:
        await rig.shard_of(max_message_bytes=32 << 20)
        clients = [rig.connect() for _ in range(8)]
        frames = [c.produce_frame("flights", batch_of(bytes(20_000_000))) for c in clients]

        async def finish(client: WireClient, frame: bytes) -> None:
            for at in range(0, len(frame), 300_000):
                await client.write(frame[at : at + 300_000])
                await asyncio.sleep(0)
            assert (await client.produced()).error_code == 0

        await asyncio.gather(*(finish(c, f) for c, f in zip(clients, frames, strict=True)))
        for client in clients:
            client.close()
        await rig.nothing_is_held()


async def test_closing_while_waiting_for_the_budget_gives_back_exactly_what_was_taken(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, queued_max_request_bytes=4 << 20, socket_request_max_bytes=64 << 20) as rig:
        await rig.shard_of(max_message_bytes=32 << 20)
        for closing_order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
            clients = [rig.connect() for _ in range(4)]
            for client in clients:
                sending = asyncio.create_task(
                    client.write(client.produce_frame("flights", batch_of(bytes(20_000_000)))[:6_000_000])
                )
                await asyncio.wait([sending], timeout=0.1)
                sending.cancel()
            assert rig.server.budget.waiting_count > 0
            for index in closing_order:
                clients[index].connection.close("test")
                assert rig.server.budget.used_bytes >= 0
            await rig.nothing_is_held()


async def reaped(rig: ServeRig, after_ms: int) -> None:
    rig.steady.now_ms += after_ms
    rig.server._reaper.cancel()  # type: ignore[union-attr]
    rig.server._reap()
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.fault("client-continues-slowly-large")
async def test_a_client_that_continues_slowly_does_not_hold_the_memory_of_its_last_large_frame(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, connection_read_timeout_ms=30_000) as rig:
        shard = await rig.shard_of(max_message_bytes=8 << 20)
        slow = rig.connect()
        small = slow.produce_frame("flights", batch_of(b"small"))
        await slow.write(slow.produce_frame("flights", batch_of(bytes(5_000_000))) + small[:30])
        assert (await slow.produced()).error_code == 0
        await eventually(lambda: slow.connection._deadline_ms)
        for _ in range(3):
            await reaped(rig, 20_000)
            assert (rig.server.budget.used_bytes, rig.pool.lent_bytes) == (0, connection_module._SMALL_BUFFER)
            await slow.write(small[30:] + small[:30])
            assert (await slow.produced()).error_code == 0
        assert shard.high_watermark == 4


@pytest.mark.fault("client-continues-slowly-large")
async def test_unread_requests_behind_answers_that_never_come_do_not_keep_others_from_being_read(
    tmp_path: Path,
) -> None:
    async with ServeRig(tmp_path, queued_max_request_bytes=256 << 10, connection_read_timeout_ms=1000) as rig:
        await rig.shard_of()
        await rig.shard_of("quiet")
        budget = rig.server.budget

        async def takes_much_and_waits_for_ever(greedy: WireClient) -> None:
            large = greedy.produce_frame("flights", batch_of(bytes(100_000)))
            await greedy.write(large[:-10])
            await eventually(lambda: greedy.connection._end == len(large) - 10)
            waiting = greedy.fetch_frame("quiet", 0, max_wait_ms=2**31 - 1)
            waiting *= connection_module._MAX_WAITING_ANSWERS + 1
            greedy.socket.send(large[-10:] + waiting + large[:90_000])
            await eventually(lambda: greedy.connection._pause_reasons)

        # The first one takes all there is, the second one more than that, as one may at a time.
        await takes_much_and_waits_for_ever(rig.connect(is_tcp=True))
        await takes_much_and_waits_for_ever(rig.connect(is_tcp=True))
        assert budget.used_bytes == 512 << 10
        victim = rig.connect()
        sending = asyncio.create_task(victim.write(victim.produce_frame("flights", batch_of(bytes(100_000)))))
        await eventually(lambda: budget.waiting_count)
        await reaped(rig, 500)
        assert budget.waiting_count, "in a moment they may go on"
        await reaped(rig, 1_000)
        assert (await victim.produced()).error_code == 0
        await sending


@pytest.mark.fault("client-sends-requests-wait")
async def test_a_client_that_leaves_while_its_answers_keep_it_from_being_read_is_noticed(tmp_path: Path) -> None:
    """Its own patience would keep its connection for weeks. One that stays may wait for as long as it says."""
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        leaver, stayer = rig.connect(), rig.connect()
        for client in (leaver, stayer):
            await client.write(client.fetch_frame("flights", 0, max_wait_ms=(1 << 31) - 1) * 600)
        await eventually(lambda: leaver.connection._paused_ms and stayer.connection._paused_ms)
        leaver.close()
        await reaped(rig, rig.settings.connection_read_timeout_ms)
        assert not leaver.connection.is_closed, "it may only have ended its own side"
        await reaped(rig, 1)
        assert leaver.connection.is_closed and not stayer.connection.is_closed
        stayer.close()
        await reaped(rig, 1)
        await rig.nothing_is_held()


async def test_a_connection_that_begins_a_frame_and_stalls_holds_little(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        clients = [rig.connect() for _ in range(50)]
        for client in clients:
            await client.write(client.produce_frame("flights", batch_of(b"x"))[:20])
        await eventually(lambda: all(c.connection._end for c in clients))
        assert rig.pool.lent_bytes <= 50 * (16 << 10)


async def test_the_reaper_takes_no_buffer_that_this_turn_still_needs(tmp_path: Path) -> None:
    """It runs between a read and the turn's flush when the clock has stood still for a second."""
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(b"the value that was sent")))
        client.connection._on_readable()
        assert shard._pending
        rig.steady.now_ms += 2000
        rig.server._reaper.cancel()  # type: ignore[union-attr]
        rig.server._reap()
        for capacity in (16 << 10, 256 << 10):
            taken = rig.pool.lend(capacity)
            taken.view[:] = bytes([0xEE]) * capacity
        assert (await client.produced()).error_code == 0
        assert await rig.read_values(shard) == [b"the value that was sent"]


async def test_an_idle_connection_holds_no_buffer_and_no_grant(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, socket_request_max_bytes=16 << 20) as rig:
        await rig.shard_of(max_message_bytes=8 << 20)
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(bytes(4_000_000))))
        assert (await client.produced()).error_code == 0
        rig.steady.now_ms += 2000
        rig.server._reaper.cancel()  # type: ignore[union-attr]
        rig.server._reap()
        await rig.nothing_is_held()
        assert not client.connection.is_closed


async def test_a_malformed_frame_closes_its_connection_and_no_other(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        good = rig.connect()
        for bad in (b"\xff\xff\xff\xff", b"\0\0\0\1x", b"\x7f\xff\xff\xff", b"\0\0\0\x20" + b"\xee" * 32):
            client = rig.connect()
            await client.write(bad)
            assert await client.is_closed()
        good_frame = good.produce_frame("flights", batch_of(b"x"))
        await good.write(good_frame)
        assert (await good.produced()).error_code == 0
        assert rig.server.stats.closed_for_fault == 4


@pytest.mark.fault("refused-clients-fill-log")
@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0\0\0\x0a\0\x63\0\0\0\0\0\1\xff\xff"]
)
async def test_clients_of_another_protocol_or_version_are_counted_and_cost_few_lines(
    tmp_path: Path, sent: bytes
) -> None:
    with capture_logs() as logged:
        async with ServeRig(tmp_path) as rig:
            for _ in range(30):
                client = rig.connect()
                await client.write(sent)
                assert await client.is_closed()
            assert rig.server.stats.turned_away["other_protocol"] == 30
    assert sum(one["event"] == "connection closed" and one["log_level"] == "warning" for one in logged) == 20


async def test_an_unforeseen_fault_in_a_request_closes_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        bad, good = rig.connect(), rig.connect()
        handle = rig.server._produce.handle

        def faulty(connection: Any, header: Any, frame: Any) -> None:
            if connection is bad.connection:
                raise ValueError("a bug")
            handle(connection, header, frame)

        monkeypatch.setattr(rig.server._produce, "handle", faulty)
        await bad.write(bad.produce_frame("flights", batch_of(b"x")))
        await good.write(good.produce_frame("flights", batch_of(b"x")))
        assert (await good.produced()).error_code == 0
        assert await bad.is_closed()


async def test_a_frame_that_is_never_completed_is_closed_but_not_while_the_server_itself_pauses(
    tmp_path: Path,
) -> None:
    async with ServeRig(tmp_path, connection_read_timeout_ms=1000) as rig:
        shard = await rig.shard_of()
        slow, paused = rig.connect(), rig.connect()
        await slow.write(slow.produce_frame("flights", batch_of(b"x"))[:30])
        rig.meta.hold(RollSegment)
        rig.append(shard, b"old")
        shard.ask_roll(rig.clock())
        count = connection_module._MAX_WAITING_ANSWERS + 20
        stream = b"".join(paused.produce_frame("flights", batch_of(b"%d" % n)) for n in range(count))
        await paused.write(stream[:-10])
        await eventually(lambda: paused.connection._pause_reasons)
        rig.steady.now_ms += 5000
        rig.server._reaper.cancel()  # type: ignore[union-attr]
        rig.server._reap()
        assert slow.connection.is_closed
        assert not paused.connection.is_closed
        rig.meta.release(RollSegment)
        await paused.write(stream[-10:])
        for _ in range(count):
            assert (await paused.produced()).error_code == 0


@pytest.mark.fault("client-continues-slowly-large")
async def test_a_client_whose_every_read_ends_within_a_frame_is_not_slow(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, connection_read_timeout_ms=1000) as rig:
        await rig.shard_of()
        busy = rig.connect()
        frame = busy.produce_frame("flights", batch_of(b"x"))
        await busy.write(frame[:30])
        for _ in range(5):
            await eventually(lambda: busy.connection._deadline_ms)
            rig.steady.now_ms += 400
            await busy.write(frame[30:] + frame[:30])
            assert (await busy.produced()).error_code == 0
            rig.server._reaper.cancel()  # type: ignore[union-attr]
            rig.server._reap()
            assert not busy.connection.is_closed
        rig.steady.now_ms += 1500
        rig.server._reaper.cancel()  # type: ignore[union-attr]
        rig.server._reap()
        assert busy.connection.is_closed


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_a_connection_whose_request_lies_unread_is_not_idle(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        late, idle = rig.connect(), rig.connect()
        late.socket.send(late.produce_frame("flights", batch_of(b"x")))
        rig.steady.now_ms += rig.settings.connections_max_idle_ms + 1
        rig.server._reaper.cancel()  # type: ignore[union-attr]
        rig.server._reap()
        assert idle.connection.is_closed
        assert (await late.produced()).error_code == 0


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_a_check_after_a_stall_closes_no_connection_and_the_next_one_does(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, connection_read_timeout_ms=1_000) as rig:
        await rig.shard_of()
        slow = rig.connect()
        await slow.write(slow.produce_frame("flights", batch_of(b"x"))[:30])
        await eventually(lambda: slow.connection._deadline_ms)
        rig.steady.now_ms += 5_000
        rig.server._checks._due_s -= 5
        for is_closed in (False, True):
            rig.server._reaper.cancel()  # type: ignore[union-attr]
            rig.server._reap()
            assert slow.connection.is_closed is is_closed


@pytest.mark.fault("wall-clock-set-forward")
@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
async def test_setting_the_wall_clock_neither_closes_nor_spares_a_connection(tmp_path: Path, step_ms: int) -> None:
    async with ServeRig(tmp_path, connection_read_timeout_ms=1000) as rig:
        await rig.shard_of()
        idle, slow = rig.connect(), rig.connect()
        frame = slow.produce_frame("flights", batch_of(b"x"))
        await slow.write(frame[:30])
        await eventually(lambda: slow.connection._deadline_ms)
        rig.clock.now_ms += step_ms
        rig.server._reaper.cancel()  # type: ignore[union-attr]
        rig.server._reap()
        assert not idle.connection.is_closed and not slow.connection.is_closed
        rig.steady.now_ms += 1500
        rig.server._reaper.cancel()  # type: ignore[union-attr]
        rig.server._reap()
        assert slow.connection.is_closed and not idle.connection.is_closed
