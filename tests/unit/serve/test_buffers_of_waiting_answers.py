"""Answers wait for flushes and for replicas; the receive buffers their requests came in do not wait with them."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import RollSegment
from support.raw_client import batch_of
from support.serve_rig import ServeRig, WireClient
from support.shard_rig import START_MS, ShardRig
from support.waiting import eventually

LARGE_BYTES = 9 << 20
LIMITS = {"socket_request_max_bytes": 32 << 20, "queued_max_request_bytes": 64 << 20}


async def unconfirmed(rig: ShardRig) -> None:
    """From now on nothing is acknowledged: a roll waits for the meta service."""
    shard = await rig.shard_of(max_message_bytes=16 << 20)
    await rig.acknowledged(shard, b"first")
    rig.meta.hold(RollSegment)
    assert shard.ask_roll(rig.clock())


async def send_all(clients: list[WireClient], frame: bytes) -> None:
    for client in clients:
        await client.write(frame)


@pytest.mark.fault("large-requests-answers-wait")
async def test_large_requests_that_wait_for_their_answers_hold_neither_buffers_nor_budget(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, **LIMITS) as rig:
        await unconfirmed(rig)
        (shard,) = rig.shards.all()
        clients = [rig.connect() for _ in range(6)]
        frame = clients[0].produce_frame("flights", batch_of(bytes(LARGE_BYTES)))
        tracemalloc.start()
        try:
            await send_all(clients, frame)
            await eventually(lambda: shard.end_offset == 1 + len(clients))
            await eventually(lambda: rig.pool.lent_bytes == 0)
            assert rig.server.budget.used_bytes == 0
            held_bytes, _ = tracemalloc.get_traced_memory()
            # Buffers that are not lent stay in the pool, up to its own limit; the rest was freed.
            assert held_bytes < rig.pool._kept_limit + (8 << 20), f"{held_bytes >> 20} MiB are held"
        finally:
            tracemalloc.stop()
        assert shard.high_watermark == 1
        rig.meta.release(RollSegment)
        for client in clients:
            assert (await client.produced()).error_code == 0
        await rig.nothing_is_held()


@pytest.mark.fault("large-requests-answers-wait")
async def test_a_repeated_batch_that_waits_for_its_first_copy_holds_no_buffer(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, **LIMITS) as rig:
        await unconfirmed(rig)
        (shard,) = rig.shards.all()
        batch = batch_of(bytes(LARGE_BYTES), producer_id=7, producer_epoch=0, base_sequence=0)
        clients = [rig.connect() for _ in range(3)]
        await send_all(clients, clients[0].produce_frame("flights", batch))
        await eventually(lambda: shard.chain.waiting_count == len(clients))
        await eventually(lambda: rig.pool.lent_bytes == 0)
        assert shard.chain._waiting is not None
        assert [batch.payload for batch in shard.chain._waiting._for_all] == [None] * len(clients)
        rig.meta.release(RollSegment)
        for client in clients:
            assert (await client.produced()).base_offset == 1


async def test_flushed_topics_hold_no_buffer_while_the_disk_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path, **LIMITS) as rig:
        shard = await rig.shard_of(flush_policy="fsync", max_message_bytes=16 << 20)
        gate = asyncio.Event()
        flush = rig.threads.flush

        async def slow(work: object) -> object:
            await gate.wait()
            return await flush(work)  # type: ignore[arg-type]

        monkeypatch.setattr(rig.threads, "flush", slow)
        client = rig.connect()
        try:
            await client.write(client.produce_frame("flights", batch_of(bytes(LARGE_BYTES))))
            await eventually(lambda: shard.end_offset == 1)
            await eventually(lambda: rig.pool.lent_bytes == 0)
            assert shard.high_watermark == 0 and rig.server.budget.used_bytes == 0
        finally:
            gate.set()
        assert (await client.produced()).error_code == 0


async def test_a_large_buffer_stays_while_requests_are_answered_within_their_turn(tmp_path: Path) -> None:
    """Growing it again for each request costs copies."""
    async with ServeRig(tmp_path, **LIMITS) as rig:
        await rig.shard_of(max_message_bytes=16 << 20)
        client = rig.connect()
        frame = client.produce_frame("flights", batch_of(bytes(LARGE_BYTES), max_timestamp_ms=START_MS))
        await client.write(frame)
        assert (await client.produced()).error_code == 0
        kept = client.connection._buffer
        assert kept is not None and kept.capacity > LARGE_BYTES
        await client.write(frame)
        assert (await client.produced()).error_code == 0
        assert client.connection._buffer is kept
