"""All fetches together check a bounded number of partitions in a turn of the loop; an ordinary fetch is checked at
once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stratalog_node.serve.fetching import fetch_scheduler
from stratalog_node.serve.fetching.fetch import PendingFetch
from support.serve_rig import ServeRig, WireClient
from support.waiting import eventually

_LOOKS = 60
_WEIGHT = 6
"""A fetch of one partition: four for itself, and its frame of 72 bytes."""
_MOST = _LOOKS // _WEIGHT
_CLIENTS = 100
_WIDE = 2_000


class Looks:
    """In which turns fetches looked, and when large requests were decoded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.by_turn: Counter[int] = Counter()
        self.decoded: Counter[int] = Counter()
        self.deferred = 0
        patch.setattr(fetch_scheduler, "_PARTITIONS_PER_TURN", _LOOKS)
        real_attempt, real_decode, real_soon = PendingFetch.attempt, PendingFetch._decode, PendingFetch._retry_soon

        def attempt(fetch: PendingFetch, *frame: memoryview) -> None:
            self.by_turn[fetch._scheduler.turn.number] += 1
            real_attempt(fetch, *frame)

        def decode(fetch: PendingFetch, frame: memoryview) -> Any:
            self.decoded[fetch._scheduler.turn.number] += 1
            return real_decode(fetch, frame)

        def look_soon(fetch: PendingFetch) -> None:
            self.deferred += 1
            real_soon(fetch)

        patch.setattr(PendingFetch, "attempt", attempt)
        patch.setattr(PendingFetch, "_decode", decode)
        patch.setattr(PendingFetch, "_retry_soon", look_soon)

    @property
    def most(self) -> int:
        return max(self.by_turn.values())

    def forget(self) -> None:
        self.by_turn.clear()
        self.decoded.clear()
        self.deferred = 0


async def _all_ask(rig: ServeRig) -> list[WireClient]:
    clients = [rig.connect() for _ in range(_CLIENTS)]
    for client in clients:
        client.socket.send(client.fetch_frame("flights", 0, max_wait_ms=60_000))
    return clients


@pytest.mark.fault("thousands-fetches-arrive-once", "thousands-fetches-arrive-once-woken")
async def test_an_ordinary_fetch_looks_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        looks = Looks(monkeypatch)
        client = rig.connect()
        for _ in range(10):
            await client.write(client.fetch_frame("flights", 0))
            (found,) = await client.fetched()
            assert len(found.batches()) == 1
        assert sum(looks.by_turn.values()) == 10 and looks.deferred == 0


@pytest.mark.fault("thousands-fetches-arrive-once", "thousands-fetches-arrive-once-woken")
async def test_fetches_that_are_woken_at_once_look_over_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        clients = await _all_ask(rig)
        await eventually(lambda: len(shard.waiters) == _CLIENTS)
        looks = Looks(monkeypatch)
        rig.append(shard, b"x")
        for client in clients:
            (found,) = await client.fetched()
            assert len(found.batches()) == 1
        assert sum(looks.by_turn.values()) == _CLIENTS and looks.most <= _MOST
        await rig.nothing_is_held()


@pytest.mark.fault("thousands-fetches-arrive-once", "thousands-fetches-arrive-once-woken")
async def test_fetches_that_come_at_once_look_over_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        rig.append(await rig.shard_of(), b"x")
        looks = Looks(monkeypatch)
        clients = await _all_ask(rig)
        for client in clients:
            (found,) = await client.fetched()
            assert len(found.batches()) == 1
        assert sum(looks.by_turn.values()) == _CLIENTS and looks.most <= _MOST
        assert looks.decoded == looks.by_turn, "a request was decoded before its look"


@pytest.mark.fault("thousands-fetches-arrive-once", "thousands-fetches-arrive-once-woken")
async def test_fetches_whose_patience_ends_at_once_look_over_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        clients = await _all_ask(rig)
        await eventually(lambda: len(shard.waiters) == _CLIENTS)
        looks = Looks(monkeypatch)
        rig.tick()
        for fetch in list(shard.waiters):
            fetch._expire()
        for client in clients:
            (found,) = await client.fetched()
            assert (found.error_code, found.records) == (0, b"")
        assert sum(looks.by_turn.values()) == _CLIENTS and looks.most <= _MOST
        await rig.nothing_is_held()


@pytest.mark.fault("thousands-fetches-arrive-once", "thousands-fetches-arrive-once-woken")
async def test_large_requests_are_decoded_one_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that name one partition again and again: what they ask for is little, and decoding them is not."""
    async with ServeRig(tmp_path) as rig:
        rig.append(await rig.shard_of(), b"x")
        looks = Looks(monkeypatch)
        clients = [rig.connect(is_tcp=True) for _ in range(5)]
        for client in clients:
            await client.write(client.fetch_frame("flights", 0, partitions=(0,) * _WIDE))
        for client in clients:
            (found,) = await client.fetched()
            assert len(found.batches()) == 1
        assert sum(looks.decoded.values()) == len(clients) and max(looks.decoded.values()) == 1
        await rig.nothing_is_held()


@pytest.mark.fault("thousands-fetches-arrive-once", "thousands-fetches-arrive-once-woken")
async def test_a_fetch_that_waits_for_room_waits_in_the_bytes_it_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded, hundreds of requests that wait behind those of their connection would take gigabytes."""
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect(is_tcp=True)
        waiting = [client.fetch_frame("flights", 0, max_wait_ms=60_000) for _ in range(8)]
        await client.write(b"".join(waiting))
        connection = client.connection
        await eventually(lambda: connection.waiting_fetches == len(waiting))
        looks = Looks(monkeypatch)
        wide = client.fetch_frame("flights", 0, partitions=tuple(range(_WIDE)), max_wait_ms=0)
        small = client.fetch_frame("flights", 0, max_wait_ms=0)
        await client.write(wide + small)
        await eventually(lambda: len(connection._parked) == 2)
        assert not looks.decoded
        assert connection._held_bytes == len(wide) + len(small) - 2 * 4
        rig.append(shard, b"x")
        for _ in waiting:
            await client.fetched()
        assert len(await client.fetched()) == _WIDE
        (found,) = await client.fetched()
        assert len(found.batches()) == 1 and connection._held_bytes == 0
        await rig.nothing_is_held()


async def test_a_wide_fetch_that_waits_counts_against_its_connection(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=600)
        client = rig.connect(is_tcp=True)
        wide = client.fetch_frame("flights", 0, partitions=tuple(range(600)), max_wait_ms=60_000)
        await client.write(wide)
        shard = rig.shard(topic, 0)
        await eventually(lambda: shard.waiters)
        assert client.connection._held_bytes > 100 * 600
        rig.append(shard, b"x")
        assert len(await client.fetched()) == 600
        assert client.connection._held_bytes == 0


@pytest.mark.fault("thousands-fetches-arrive-once", "thousands-fetches-arrive-once-woken")
async def test_no_fetch_overtakes_those_that_wait_for_their_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        clients = await _all_ask(rig)
        await eventually(lambda: len(shard.waiters) == _CLIENTS)
        looks = Looks(monkeypatch)
        rig.append(shard, b"x")
        rig.tick()
        assert sum(looks.by_turn.values()) < _CLIENTS
        assert not rig.server._fetches.may_check(1), "the turn's looks are used up, and others wait"
        rig.server._fetches._partitions_left = _LOOKS
        assert not rig.server._fetches.may_check(1), "others wait"
        for client in clients:
            await client.fetched()
        rig.tick()
        assert rig.server._fetches.may_check(1)


async def test_a_large_request_that_is_malformed_closes_its_connection(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect(is_tcp=True)
        frame = bytearray(client.fetch_frame("flights", 0, partitions=tuple(range(_WIDE))))
        half = len(frame) // 2
        frame[half:] = b"\xff" * (len(frame) - half)
        await client.write(bytes(frame))
        assert await client.is_closed()
        assert rig.server.stats.closed_for_fault == 1
        await rig.nothing_is_held()
