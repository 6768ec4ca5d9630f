"""Fetches that wait for much: what comes is counted, not read; one client's waiting costs others next to nothing."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.fetch import PartitionFetch, distinct
from stratalog.model.commands.table_commands import DeleteTopic
from stratalog_node.serve.connections import connection as connection_module
from stratalog_node.serve.fetching import fetch as fetch_module
from stratalog_node.serve.fetching.fetch import PendingFetch
from stratalog_node.shards.read.reading import ShardReader
from support.raw_client import batch_of
from support.serve_rig import ServeRig
from support.shard_rig import make_batch
from support.waiting import eventually


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often fetches looked at their partitions, and how many reads that took."""
    counts = {"looks": 0, "reads": 0}
    attempt, read_hot = PendingFetch.attempt, ShardReader.read_hot

    def counted_attempt(fetch: PendingFetch, *frame: memoryview) -> None:
        counts["looks"] += 1
        attempt(fetch, *frame)

    def counted_read(reader: ShardReader, *args: Any, **more: Any) -> Any:
        counts["reads"] += 1
        return read_hot(reader, *args, **more)

    monkeypatch.setattr(PendingFetch, "attempt", counted_attempt)
    monkeypatch.setattr(ShardReader, "read_hot", counted_read)
    return counts


def frame_naming_one_partition(times: int, *, min_bytes: int, max_wait_ms: int) -> bytes:
    body = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, 50 << 20, 0, 0, -1)
    body += struct.pack(">ih", 1, 7) + b"flights" + struct.pack(">i", times)
    body += struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 20) * times
    body += struct.pack(">ih", 0, 0)
    frame = struct.pack(">hhih", 1, 11, 5, 3) + b"raw" + body
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.fault("client-waits-too-things")
async def test_a_partition_named_100_000_times_is_read_and_answered_once(tmp_path: Path, looks: dict[str, int]) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, bytes(100_000))
        client = rig.connect()
        await client.write(frame_naming_one_partition(100_000, min_bytes=40 << 20, max_wait_ms=60_000))
        await eventually(lambda: shard.waiters)
        assert looks == {"looks": 1, "reads": 1}
        for _ in range(50):
            rig.append(shard, b"small")
        assert looks == {"looks": 1, "reads": 1}, "a small append is counted, nothing is read for it"
        (fetch,) = shard.waiters
        fetch._expire()  # type: ignore[attr-defined]
        (answer,) = await client.fetched()
        assert len(answer.batches()) == 51
        await rig.nothing_is_held()


def frame_naming(partitions: range) -> bytes:
    body = struct.pack(">iiiibii", -1, 0, 1, 50 << 20, 0, 0, -1)
    body += struct.pack(">ih", 1, 7) + b"flights" + struct.pack(">i", len(partitions))
    body += b"".join(struct.pack(">iiqqi", partition, -1, 0, -1, 1 << 20) for partition in partitions)
    body += struct.pack(">ih", 0, 0)
    frame = struct.pack(">hhih", 1, 11, 5, 3) + b"raw" + body
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.fault("fetch-names-partitions-exist")
async def test_a_fetch_may_name_all_local_shards_and_a_limited_number_of_others(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.create_topic(shards=50)
        client, greedy = rig.connect(), rig.connect()
        most = 50 + fetch_module._NAMED_IN_VAIN - 1
        await client.write(frame_naming(range(most)))
        codes = [answer.error_code for answer in await client.fetched()]
        assert codes == [0] * 50 + [3] * (most - 50)
        await greedy.write(frame_naming(range(most + 1)))
        assert await greedy.is_closed()
        client.close()
        await rig.nothing_is_held()


def test_each_partition_counts_once_where_it_was_first_named_and_as_it_was_named_last() -> None:
    def entry(partition: int, offset: int) -> PartitionFetch:
        return PartitionFetch(partition, -1, offset, -1, -1, 100)

    once = [("a", [entry(0, 1)])]
    assert distinct(once) is once
    assert distinct([]) == []
    many = [("a", [entry(0, 1), entry(1, 2), entry(0, 3)]), ("b", [entry(0, 4)]), ("a", [entry(1, 5), entry(2, 6)])]
    assert distinct(many) == [("a", [entry(0, 3), entry(1, 5), entry(2, 6)]), ("b", [entry(0, 4)])]


@pytest.mark.fault("client-waits-too-things")
async def test_a_fetch_is_answered_by_the_append_that_makes_it_enough_and_not_before(
    tmp_path: Path, looks: dict[str, int]
) -> None:
    rng = random.Random(5)
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        shards = [rig.shard(topic, index) for index in range(3)]
        for shard in shards:
            rig.append(shard, b"first")
        client = rig.connect()
        for _ in range(40):
            offsets = [shard.high_watermark - rng.randrange(min(3, shard.high_watermark + 1)) for shard in shards]
            before = dict(looks)
            min_bytes = rng.randrange(1, 3000)
            sizes = [[len(piece) for piece in await s.read(o, 1 << 20)] for s, o in zip(shards, offsets, strict=True)]
            missing = min_bytes - sum(map(sum, sizes))
            request = client.fetch_frame("flights", 0, partitions=(0, 1, 2), min_bytes=min_bytes, max_wait_ms=60_000)
            for index, offset in enumerate(offsets):
                at = request.index(struct.pack(">iiq", index, -1, 0))
                request = request[: at + 8] + struct.pack(">q", offset) + request[at + 16 :]
            await client.write(request)
            if missing > 0:
                await eventually(lambda: all(shard.waiters for shard in shards))
            while missing > 0:
                assert looks["looks"] == before["looks"] + 1, "not enough yet"
                value = bytes(rng.randrange(50))
                rig.append(rng.choice(shards), value)
                missing -= len(make_batch([value]))
            answers = await client.fetched()
            assert sum(len(answer.records) for answer in answers) >= min_bytes
        await rig.nothing_is_held()


@pytest.mark.fault("client-waits-too-things")
async def test_a_partition_cut_at_its_own_limit_is_not_looked_at_again_and_again(
    tmp_path: Path, looks: dict[str, int]
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        await client.write(
            client.fetch_frame("flights", 0, partition_max_bytes=1000, min_bytes=900, max_wait_ms=60_000)
        )
        await eventually(lambda: shard.waiters)
        for _ in range(30):
            rig.append(shard, bytes(600))  # one is too little, two are too much
        assert looks["looks"] <= 3
        (fetch,) = shard.waiters
        fetch._expire()  # type: ignore[attr-defined]
        assert len((await client.fetched())[0].batches()) == 1


async def test_more_than_an_answer_may_hold_is_not_waited_for(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, fetch_max_bytes=2000) as rig:
        topic = await rig.create_topic(shards=2)
        client = rig.connect()
        for max_bytes in (1000, 50 << 20):
            for index in range(2):
                rig.append(rig.shard(topic, index), bytes(700))
            await client.write(
                client.fetch_frame(
                    "flights", 0, partitions=(0, 1), max_bytes=max_bytes, min_bytes=1 << 30, max_wait_ms=60_000
                )
            )
            for _ in range(3):
                rig.append(rig.shard(topic, 1), bytes(700))
            assert sum(len(answer.records) for answer in await client.fetched()) > 0


async def test_whatever_befalls_a_shard_makes_its_waiting_fetch_look(tmp_path: Path, looks: dict[str, int]) -> None:
    """A roll, a trim, its first segment, its end."""
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()

        async def wait(offset: int, min_bytes: int = 900_000) -> None:
            await client.write(client.fetch_frame("flights", offset, min_bytes=min_bytes, max_wait_ms=60_000))
            await eventually(lambda: shard.waiters)

        await wait(0, min_bytes=1)
        rig.append(shard, b"first")
        assert len((await client.fetched())[0].batches()) == 1

        await wait(1)
        shard.ask_roll(rig.clock())
        await eventually(lambda: len(shard.segments) == 2)
        rig.append(shard, bytes(900_000))
        assert len((await client.fetched())[0].batches()) == 1, "in a new segment"

        await wait(0)
        rig.append(shard, b"a sealed segment does not grow")
        before = looks["looks"]
        for _ in range(20):
            rig.append(shard, b"nor does it now")
        assert looks["looks"] == before
        await shard.delete_records_before(2)
        (answer,) = await client.fetched()
        assert (answer.error_code, answer.log_start_offset) == (1, 2)

        await wait(shard.high_watermark)
        await rig.meta.service.perform(DeleteTopic(shard.key.topic_id))
        (answer,) = await client.fetched()
        assert answer.error_code in (3, 5)
        await rig.nothing_is_held()


@pytest.mark.fault("client-waits-too-things")
async def test_400_fetches_that_wait_on_one_connection_cost_an_append_a_handful_of_looks(
    tmp_path: Path, looks: dict[str, int]
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, bytes(10_000))
        client, writer = rig.connect(), rig.connect()
        count = 400
        frame = client.fetch_frame("flights", 0, min_bytes=50_000, max_wait_ms=60_000)
        await client.write(frame * count)
        await eventually(lambda: len(client.connection._answers) == count)
        most = connection_module._MAX_WAITING_FETCHES
        assert len(shard.waiters) == most
        looks.update(looks=0, reads=0)
        for _ in range(20):
            rig.append(shard, b"small")
        assert looks == {"looks": 0, "reads": 0}
        await writer.write(writer.produce_frame("flights", batch_of(b"x")))
        assert (await writer.produced()).error_code == 0
        assert looks == {"looks": 0, "reads": 0}
        rig.append(shard, bytes(50_000))
        for _ in range(count):
            (answer,) = await client.fetched()
            assert len(answer.batches()) == 23
        assert looks["looks"] <= 3 * count
        await rig.nothing_is_held()


async def test_a_fetch_behind_those_that_wait_has_its_turn_when_it_is_first(tmp_path: Path) -> None:
    """Its own patience begins then, as in Kafka, which reads one request of a connection at a time."""
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=20)
        client = rig.connect()
        for index in range(20):
            await client.write(client.fetch_frame("flights", 0, partitions=(index,), max_wait_ms=20))
        for _ in range(20):
            assert (await client.fetched())[0].records == b""
        for index in range(20):
            await client.write(client.fetch_frame("flights", 0, partitions=(index,), max_wait_ms=60_000))
        for index in reversed(range(20)):
            rig.append(rig.shard(topic, index), b"%d" % index)
        for _ in range(20):
            assert len((await client.fetched())[0].batches()) == 1
        await rig.nothing_is_held()
