"""What fetches hold for clients that do not read is bounded for the whole node, and all of it comes once they read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.raw_client import batch_of
from support.serve_rig import ServeRig, WireClient
from support.waiting import eventually

_CLIENTS = 30
_PIPELINED = 20
_RECORD_BYTES = 20_000


async def _clients_that_take_nothing(rig: ServeRig) -> list[WireClient]:
    """Each has sent fetches that it does not wait for, of batches that go by no slice of a file."""
    await rig.shard_of()
    first = rig.connect()
    await first.write(first.produce_frame("flights", batch_of(bytes(_RECORD_BYTES))))
    assert (await first.produced()).error_code == 0
    clients = [rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(_CLIENTS)]
    for client in clients:
        await client.write(b"".join(client.fetch_frame("flights", 0) for _ in range(_PIPELINED)))
    await eventually(lambda: all(client.connection._out for client in clients))
    await eventually(lambda: all(len(client.connection._parked) for client in clients))
    return clients


@pytest.mark.fault("thousands-clients-ask-data")
async def test_beyond_what_all_may_hold_each_client_holds_one_answer(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        rig.reader._limit_bytes = 256 << 10
        clients = await _clients_that_take_nothing(rig)
        largest = rig.pool.capacity_for(_RECORD_BYTES + 200)
        assert rig.reader.outstanding_bytes <= rig.reader._limit_bytes + _CLIENTS * largest
        for client in clients:
            for _ in range(_PIPELINED):
                (answer,) = await asyncio.wait_for(client.fetched(), 20)
                assert answer.error_code == 0 and len(answer.records) > _RECORD_BYTES
        await rig.nothing_is_held()


@pytest.mark.fault("thousands-clients-ask-data")
async def test_many_answers_of_one_file_keep_one_file_open_and_no_memory(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, descriptor_limit=8) as rig:
        await rig.shard_of()
        first = rig.connect()
        await first.write(first.produce_frame("flights", batch_of(bytes(200_000))))
        assert (await first.produced()).error_code == 0
        clients = [rig.connect(send_buffer=4096, receive_buffer=4096) for _ in range(50)]
        for client in clients:
            await client.write(client.fetch_frame("flights", 0))
        await eventually(lambda: all(client.connection._out for client in clients))
        assert (rig.reader.outstanding_bytes, rig.reader.outstanding_slices) == (0, 50)
        for client in clients:
            (answer,) = await client.fetched()
            assert len(answer.records) > 200_000
        await rig.nothing_is_held()
