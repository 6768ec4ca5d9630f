"""What clients ask for and do not take is bounded for the whole node, not for each connection alone."""

from __future__ import annotations

from pathlib import Path

from support import kafka_oracle
from support.serve_rig import ServeRig, WireClient
from support.waiting import eventually

_KEYS = [f"group-{number:06d}" for number in range(20_000)]
"""The answer names each of them: about a megabyte."""
_LIMIT_BYTES = 4 << 20


async def _ask(client: WireClient) -> None:
    await client.write(client.frame(10, 4, key_type=0, coordinator_keys=_KEYS))


async def test_answers_that_nobody_takes_are_bounded_for_the_whole_node(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, queued_max_request_bytes=_LIMIT_BYTES) as rig:
        untaken = rig.server._control.untaken
        idle = [rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(12)]
        for client in idle:
            await _ask(client)
            await eventually(lambda client=client: client.connection._out)
        assert untaken.size_bytes > _LIMIT_BYTES
        untaken.shed(rig.server.steady_ms)
        assert not any(client.connection.is_closed for client in idle), "they may be about to read"
        rig.steady.now_ms += 2_000
        rig.server._reap()
        closed = [client.connection.is_closed for client in idle]
        assert 0 < untaken.size_bytes <= _LIMIT_BYTES
        assert closed == sorted(closed, reverse=True) and any(closed) and not closed[-1], "the oldest go, and no more"
        last = kafka_oracle.decode_response(10, 4, await idle[-1].read_frame())
        assert len(last.coordinators) == len(_KEYS)
        for client in idle:
            client.close()
        await eventually(lambda: untaken.size_bytes == 0)


async def test_who_takes_a_little_now_and_then_is_closed_for_an_answer_of_long_ago(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        slow, new = (rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(2))
        await _ask(slow)
        await eventually(lambda: slow.connection._out)
        rig.steady.now_ms += 11_000
        rig.server._reap()
        slow.connection.last_active_ms = rig.steady.now_ms
        assert not slow.connection.is_closed, "alone it may take its time"
        await _ask(new)
        await eventually(lambda: new.connection._out)
        rig.server._reap()
        assert slow.connection.is_closed and not new.connection.is_closed


async def test_an_answer_larger_than_the_limit_goes_alone_and_what_was_taken_counts_no_more(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, queued_max_request_bytes=64 << 10) as rig:
        client = rig.connect()
        for _ in range(3):
            await _ask(client)
            answer = kafka_oracle.decode_response(10, 4, await client.read_frame())
            assert len(answer.coordinators) == len(_KEYS)
            await eventually(lambda: rig.server._control.untaken.size_bytes == 0)
