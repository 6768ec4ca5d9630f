"""Very many clients take large answers at once: the event loop stays free, whatever all their sockets would hold."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from stratalog_node.serve.connections import send_share
from support.raw_client import batch_of
from support.serve_rig import ServeRig
from support.waiting import eventually

MIB = 1 << 20


@pytest.fixture
def turn_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(send_share, "_TURN_BYTES", MIB)
    return MIB


@pytest.mark.fault("thousands-clients-take-large")
async def test_all_connections_together_send_so_much_in_a_turn_and_all_is_sent(tmp_path: Path, turn_bytes: int) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        first = rig.connect()
        for _ in range(2):
            await first.write(first.produce_frame("flights", batch_of(bytes(900_000))))
            assert (await first.produced()).error_code == 0
        stats, sent = rig.server.stats, [0]
        rig.turn.after_shards.append(lambda: sent.append(stats.sent_bytes))
        clients = [rig.connect(is_tcp=True) for _ in range(40)]
        for client in clients:
            client.socket.sendall(client.fetch_frame("flights", 0, partition_max_bytes=2 * MIB))
        found = await asyncio.gather(*(client.fetched() for client in clients))
        assert all(len(one[0].batches()) == 2 for one in found)
        steps = [after - before for before, after in pairwise(sent)]
        assert sum(steps) > 40 * 900_000 and max(steps) <= 2 * turn_bytes


@pytest.mark.fault("thousands-clients-take-large")
async def test_a_little_answer_does_not_wait_for_large_ones(tmp_path: Path, turn_bytes: int) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        first = rig.connect()
        await first.write(first.produce_frame("flights", batch_of(bytes(900_000))))
        assert (await first.produced()).error_code == 0
        clients = [rig.connect(is_tcp=True) for _ in range(40)]
        for client in clients:
            client.socket.sendall(client.fetch_frame("flights", 0))
        first.socket.sendall(first.produce_frame("flights", batch_of(b"little")))
        seen: list[int] = []
        rig.turn.after_shards.append(lambda: seen.append(rig.server.stats.sent_bytes))
        assert (await first.produced()).base_offset == 1
        assert rig.server.stats.sent_bytes < 40 * 900_000, "most of the large ones are still on their way"
        assert all(one[0].records for one in await asyncio.gather(*(client.fetched() for client in clients)))


async def test_a_client_that_waits_its_turn_to_be_sent_to_is_not_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(bytes(900_000))))
        assert (await client.produced()).error_code == 0
        monkeypatch.setattr(send_share.SendShare, "is_used_up", True)
        client.socket.sendall(client.fetch_frame("flights", 0))
        connection = client.connection
        await eventually(lambda: bool(connection._out))
        rig.steady.now_ms += 60_000
        await eventually(lambda: connection.last_active_ms == rig.steady.now_ms)
        monkeypatch.setattr(send_share.SendShare, "is_used_up", False)
        assert (await client.fetched())[0].records
