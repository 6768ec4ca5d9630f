"""Fetch over a connection: waiting and waking, the limits of KIP-74, and reads that are slow, cancelled or refused."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import CreateTopic, DeleteTopic, RollSegment
from stratalog.model.errors import OutOfReach, Unavailable
from stratalog_node.serve.connections import connection as connection_module
from stratalog_node.serve.fetching import fetch as fetch_module
from stratalog_node.shards.copies.local_copy import LocalCopy, NotCached
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import Read, ShardReader
from support.raw_client import batch_of
from support.serve_rig import ServeRig, WireClient
from support.shard_rig import ShardRig
from support.waiting import eventually

BATCH = len(batch_of(b"%03d" % 0))


def fill(rig: ShardRig, shard: ShardLog, count: int, size: int = 3) -> None:
    for number in range(count):
        assert rig.append(shard, b"%03d" % number * (size // 3)).is_acknowledged


class ColdDisk:
    """Nothing is in the page cache; disk reads wait until they are let go."""

    def __init__(self, patch: pytest.MonkeyPatch, *names: str) -> None:
        self.names = names
        self.gate = asyncio.Event()
        self.reads = 0
        real_hot, real = ShardReader.read_hot, ShardReader.read

        def hot(reader: ShardReader, shard: ShardLog, *args: Any, **options: Any) -> Read:
            if shard.topic.name in names:
                raise NotCached
            return real_hot(reader, shard, *args, **options)

        async def read(reader: ShardReader, shard: ShardLog, *args: Any) -> Read:
            if shard.topic.name in names:
                self.reads += 1
                await self.gate.wait()
            return await real(reader, shard, *args)

        patch.setattr(ShardReader, "read_hot", hot)
        patch.setattr(ShardReader, "read", read)


# Waiting --------------------------------------------------------------------------------------------------------------
async def test_a_fetch_waits_for_min_bytes_over_several_partitions(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        client = rig.connect()
        await client.write(
            client.fetch_frame("flights", 0, partitions=(0, 1, 2), max_wait_ms=60_000, min_bytes=2 * BATCH + 1)
        )
        waiting = asyncio.create_task(client.fetched())
        fill(rig, rig.shard(topic, 2), 1)
        fill(rig, rig.shard(topic, 0), 1)
        await asyncio.sleep(0.02)
        assert not waiting.done()
        fill(rig, rig.shard(topic, 2), 1)
        assert [len(found.batches()) for found in await waiting] == [1, 0, 2]
        await rig.nothing_is_held()


async def test_a_fetch_that_waited_in_vain_is_answered_empty_with_what_came(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        fill(rig, shard, 1)
        client = rig.connect()
        await client.write(client.fetch_frame("flights", 1, max_wait_ms=30))
        (found,) = await client.fetched()
        assert (found.error_code, found.records, found.high_watermark) == (0, b"", 1)
        await client.write(client.fetch_frame("flights", 0, max_wait_ms=30, min_bytes=10_000))
        (found,) = await client.fetched()
        assert len(found.batches()) == 1
        await rig.nothing_is_held()


@pytest.mark.parametrize("again", [False, True])
async def test_a_fetch_that_waits_for_a_deleted_topic_learns_it(tmp_path: Path, again: bool) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        other = await rig.shard_of("other")
        client, second = rig.connect(), rig.connect()
        await client.write(client.fetch_frame("flights", 0, max_wait_ms=60_000))
        await second.write(second.fetch_frame("other", 0, max_wait_ms=60_000))
        await eventually(lambda: shard.waiters and other.waiters)
        await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
        if again:
            await rig.meta.service.perform(CreateTopic("flights", shard_count=1, replication_factor=1, settings={}))
        (found,) = await client.fetched() if not again else await _woken(rig, client)
        expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found.error_code in ((expected,) if not again else (expected, 0))
        fill(rig, other, 1)
        (found,) = await second.fetched()
        assert len(found.batches()) == 1


async def _woken(rig: ServeRig, client: WireClient) -> Any:
    """The topic was created again under its name: the fetch may get an error, or wait for the new one."""
    await eventually(lambda: rig.shards.by_name("flights", 0) is not None)
    new = rig.shards.by_name("flights", 0)
    assert new is not None
    fill(rig, new, 1)
    return await client.fetched()


async def test_nothing_above_the_high_watermark_is_read(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        fill(rig, shard, 1)
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        rig.append(shard, b"not committed")
        client = rig.connect()
        await client.write(client.fetch_frame("flights", 0, max_wait_ms=10))
        (found,) = await client.fetched()
        assert len(found.batches()) == 1 and found.high_watermark == 1
        await client.write(client.fetch_frame("flights", 2, max_wait_ms=10))
        (found,) = await client.fetched()
        assert (found.error_code, found.records) == (0, b"")
        await client.write(client.fetch_frame("flights", 1, max_wait_ms=60_000))
        rig.meta.release(RollSegment)
        (found,) = await client.fetched()
        assert [b.base_offset for b in found.batches()] == [1]


# Offsets --------------------------------------------------------------------------------------------------------------
async def test_offsets_at_the_borders_of_segments(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        fill(rig, shard, 3)
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"3")
        await rig.all_sealed()
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"4")
        client = rig.connect()
        for offset, expected in ((0, [0, 1, 2]), (2, [2]), (3, [3]), (4, [4]), (5, [])):
            await client.write(client.fetch_frame("flights", offset, max_wait_ms=10))
            (found,) = await client.fetched()
            assert (found.error_code, [b.base_offset for b in found.batches()]) == (0, expected)
        await shard.delete_records_before(2)
        for offset in (0, 1, 6):
            await client.write(client.fetch_frame("flights", offset))
            (found,) = await client.fetched()
            assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert found.log_start_offset == 2
        await client.write(client.fetch_frame("flights", 2))
        (found,) = await client.fetched()
        assert [b.base_offset for b in found.batches()] == [2]


async def test_an_offset_inside_a_batch_gets_the_whole_batch(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"a", b"b", b"c")
        rig.append(shard, b"d")
        client = rig.connect()
        await client.write(client.fetch_frame("flights", 2, partition_max_bytes=1))
        (found,) = await client.fetched()
        assert [b.base_offset for b in found.batches()] == [0]


# KIP-74 ---------------------------------------------------------------------------------------------------------------
async def test_the_first_partition_with_data_gets_a_batch_however_small_the_limits(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        fill(rig, rig.shard(topic, 1), 2, size=300)
        fill(rig, rig.shard(topic, 2), 2)
        client = rig.connect()
        await client.write(client.fetch_frame("flights", 0, partitions=(0, 1, 2), max_bytes=1, partition_max_bytes=1))
        assert [len(found.batches()) for found in await client.fetched()] == [0, 1, 0]


@pytest.mark.parametrize("max_bytes", [1, BATCH, 3 * BATCH - 1, 3 * BATCH, 7 * BATCH + 5, 1 << 20])
async def test_both_limits_hold(tmp_path: Path, max_bytes: int) -> None:
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        for index in range(3):
            fill(rig, rig.shard(topic, index), 4)
        client = rig.connect()
        for partition_max in (1, BATCH, 2 * BATCH + 1, 1 << 20):
            await client.write(
                client.fetch_frame(
                    "flights", 0, partitions=(0, 1, 2), max_bytes=max_bytes, partition_max_bytes=partition_max
                )
            )
            found = await client.fetched()
            sizes = [len(one.records) for one in found]
            assert all(size <= max(partition_max, BATCH) for size in sizes)
            assert sum(sizes) <= max(max_bytes, BATCH)
            assert sizes[0] > 0


# Slow reads -----------------------------------------------------------------------------------------------------------
async def test_a_read_from_a_cold_disk_does_not_hold_up_other_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 2)
        fill(rig, hot, 2)
        disk = ColdDisk(monkeypatch, "cold")
        first, second = rig.connect(), rig.connect()
        await first.write(first.fetch_frame("cold", 0))
        await eventually(lambda: disk.reads == 1)
        await second.write(second.fetch_frame("hot", 0))
        assert len((await second.fetched())[0].batches()) == 2
        disk.gate.set()
        assert len((await first.fetched())[0].batches()) == 2
        await rig.nothing_is_held()


async def test_a_slow_partition_asked_first_is_not_starved_by_hot_ones_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 2, size=300)
        fill(rig, hot, 2, size=300)
        ColdDisk(monkeypatch, "cold").gate.set()
        client = rig.connect()
        await client.write(fetch_of(client, "cold", "hot", max_bytes=400))
        cold_found, hot_found = await client.fetched()
        assert len(cold_found.batches()) == 1
        assert len(hot_found.batches()) <= 1


@pytest.mark.fault("later-partition-fetch-limits")
async def test_a_slow_partition_asked_first_takes_its_room_and_a_hot_one_behind_it_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 3, size=300)
        fill(rig, hot, 8, size=300)
        ColdDisk(monkeypatch, "cold").gate.set()
        client = rig.connect()
        await client.write(fetch_of(client, "cold", "hot", max_bytes=1_900))
        found = await client.fetched()
        assert [len(one.batches()) for one in found] == [3, 2]
        assert [shard.work.fetched_bytes for shard in (cold, hot)] == [len(one.records) for one in found]
        await rig.nothing_is_held()


@pytest.mark.fault("first-partition-fetch-read")
@pytest.mark.parametrize("max_bytes", [1, 350, 700, 1_200, 1 << 20])
@pytest.mark.parametrize("cold", list(itertools.product([False, True], repeat=3)))
async def test_only_the_first_batch_of_an_answer_exceeds_the_limit_wherever_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: tuple[bool, bool, bool], max_bytes: int
) -> None:
    """As in Kafka, whose `ReplicaManager.readFromLog` ignores the limit until the first partition that is not empty: a
    client that allows for no more could not read the answer, and would ask again for ever.

    Kafka 4.3.1 (`peers/kafka.sh start 1 --tiered`), batches of 900,072 bytes, the front of one topic only in the remote
    tier: with 100,000 and 1,000,000 the answer has one batch, of whichever topic is asked first, and nothing of the
    other one; with 2,000,000 both have theirs."""
    names = ("one", "two", "three")
    async with ServeRig(tmp_path) as rig:
        shards = [await rig.shard_of(name) for name in names]
        for shard in shards:
            fill(rig, shard, 2, size=300)
        ColdDisk(monkeypatch, *itertools.compress(names, cold)).gate.set()
        client = rig.connect()
        await client.write(fetch_of(client, *names, max_bytes=max_bytes))
        found = await client.fetched()
        sizes = [len(one.records) for one in found]
        assert found[0].batches(), "the first one always gets a batch"
        assert sum(sizes) <= max(max_bytes, found[0].batches()[0].size_bytes)
        if max_bytes == 1 << 20 and sum(cold) <= 1:  # what is not waited for is not read from the disk
            assert [len(one.batches()) for one in found] == [2, 2, 2]
        assert [shard.work.fetched_bytes for shard in shards] == sizes
        await rig.nothing_is_held()


@pytest.mark.fault("first-partition-fetch-read")
async def test_what_was_found_in_memory_is_answered_where_the_first_partition_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        for shard in (cold, hot):
            fill(rig, shard, 2, size=300)
        ColdDisk(monkeypatch, "cold")
        monkeypatch.setattr(fetch_module, "_SLOW_READ_S", 0.01)
        client = rig.connect()
        frame = fetch_of(client, "cold", "hot", max_bytes=1)
        await client.write(frame)
        cold_found, hot_found = await client.fetched()
        assert (len(cold_found.batches()), len(hot_found.batches())) == (0, 1)
        await rig.nothing_is_held()


def fetch_of(client: WireClient, *names: str, max_bytes: int) -> bytes:
    from support import kafka_oracle
    from support.raw_client import FETCH_VERSION

    request = kafka_oracle.request_class(1)

    def topic(name: str) -> Any:
        partition = request.FetchTopic.FetchPartition(
            version=FETCH_VERSION,
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=0,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        return request.FetchTopic(version=FETCH_VERSION, topic=name, partitions=[partition])

    return client.frame(
        1,
        FETCH_VERSION,
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic(name) for name in names],
        forgotten_topics_data=[],
        rack_id="",
    )


async def test_a_connection_lost_under_a_slow_read_gives_back_what_the_fetch_had_read_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 2)
        fill(rig, hot, 2)
        for number in range(3):
            rig.append(hot, b"%d" % number * 60_000)
        disk = ColdDisk(monkeypatch, "cold")
        for _ in range(3):
            client = rig.connect()
            reads = disk.reads
            await client.write(fetch_of(client, "hot", "cold", max_bytes=1 << 20))
            await eventually(lambda: disk.reads == reads + 1)  # noqa: B023
            client.close()
            await eventually(lambda: client.connection.is_closed)  # noqa: B023
        await rig.nothing_is_held()
        disk.gate.set()
        await rig.nothing_is_held()


async def test_a_connection_lost_before_its_slow_read_begins_gives_back_what_the_fetch_had_read_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows the fetch, in the same read, is not a frame."""
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 2)
        rig.append(hot, b"x" * 600_000)
        disk = ColdDisk(monkeypatch, "cold")
        for _ in range(3):
            client = rig.connect()
            await client.write(fetch_of(client, "hot", "cold", max_bytes=1 << 20) + bytes(4))
            assert await client.is_closed()
        await rig.nothing_is_held()
        disk.gate.set()
        await rig.nothing_is_held()


async def test_a_read_that_outlasts_every_patience_is_left_for_the_next_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_SLOW_READ_S", 0.05)
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 2)
        fill(rig, hot, 2)
        disk = ColdDisk(monkeypatch, "cold")
        client = rig.connect()
        frame = fetch_of(client, "hot", "cold", max_bytes=1 << 20)
        await client.write(frame)
        hot_found, cold_found = await client.fetched()
        assert len(hot_found.batches()) == 2
        assert (cold_found.error_code, cold_found.records, cold_found.high_watermark) == (0, b"", 2)
        disk.gate.set()
        await client.write(client.fetch_frame("cold", 0))
        assert len((await client.fetched())[0].batches()) == 2
        await rig.nothing_is_held()


@pytest.mark.fault("cold-reads-partitions-large")
async def test_a_fetch_begins_no_more_slow_reads_than_it_may_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a block of the object store: 100 partitions in one request, and room for three."""
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic("cold", shards=100)
        for number in range(100):
            fill(rig, rig.shard(topic, number), 1)
        disk = ColdDisk(monkeypatch, "cold")
        disk.gate.set()
        client = rig.connect()
        everything = tuple(range(100))
        frame = client.fetch_frame("cold", 0, partitions=everything, max_bytes=3 << 20, partition_max_bytes=1 << 20)
        await client.write(frame)
        found = await client.fetched()
        assert disk.reads == 3
        assert [len(partition.batches()) for partition in found] == [1] * 3 + [0] * 97
        assert {partition.error_code for partition in found} == {0}
        await rig.nothing_is_held()


async def test_what_slow_reads_leave_of_their_room_begins_the_next_while_the_client_waits_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        topic = await rig.create_topic("cold", shards=20)
        for number in range(20):
            fill(rig, rig.shard(topic, number), 1)
        disk = ColdDisk(monkeypatch, "cold")
        disk.gate.set()
        client = rig.connect()
        await client.write(
            client.fetch_frame(
                "cold",
                0,
                partitions=tuple(range(20)),
                max_bytes=1 << 20,
                partition_max_bytes=1 << 20,
                min_bytes=5 * BATCH,
            )
        )
        found = await client.fetched()
        assert [len(partition.batches()) for partition in found] == [1] * 5 + [0] * 15
        assert disk.reads == 5
        await rig.nothing_is_held()


@pytest.mark.fault("consumer-reads-bucket-remote-read-policy")
@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (Unavailable("the store is away"), ErrorCode.KAFKA_STORAGE_ERROR),
        (OutOfReach("the policy keeps readers out"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_cannot_be_read_is_an_error_of_its_partition_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Unavailable, code: ErrorCode
) -> None:
    """A store that is away is retried in silence; what a person must change, clients report: Kafka answers the same
    code where its remote storage fails (`ReplicaManager`: RemoteStorageException to UNKNOWN_SERVER_ERROR)."""
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 1)
        fill(rig, hot, 1)
        ColdDisk(monkeypatch, "cold")

        async def refuse(*_: object) -> Read:
            raise problem

        monkeypatch.setattr(ShardReader, "read", refuse)
        client = rig.connect()
        await client.write(fetch_of(client, "cold", "hot", max_bytes=1 << 20))
        cold_found, hot_found = await client.fetched()
        assert cold_found.error_code == code
        assert len(hot_found.batches()) == 1


async def test_an_unforeseen_fault_of_a_read_is_an_error_of_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 1)
        fill(rig, hot, 1)
        ColdDisk(monkeypatch, "cold")

        async def fault(*_: object) -> Read:
            raise ValueError("a bug")

        monkeypatch.setattr(ShardReader, "read", fault)
        client = rig.connect()
        await client.write(fetch_of(client, "hot", "cold", max_bytes=1 << 20))
        hot_found, cold_found = await client.fetched()
        assert len(hot_found.batches()) == 1
        assert cold_found.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        await rig.nothing_is_held()


async def test_an_unexpected_fault_in_the_middle_of_a_check_releases_earlier_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        for name, size in (("copied", 1_000), ("sliced", 200_000), ("bad", 10)):
            rig.append(await rig.shard_of(name), b"x" * size)
        real = ShardReader.read_hot

        def faulty(reader: ShardReader, shard: ShardLog, *args: Any, **options: Any) -> Read:
            if shard.topic.name == "bad":
                raise ValueError("a bug")
            return real(reader, shard, *args, **options)

        monkeypatch.setattr(ShardReader, "read_hot", faulty)
        client = rig.connect()
        await client.write(fetch_of(client, "copied", "sliced", "bad", max_bytes=1 << 20))
        assert await client.is_closed()
        await rig.nothing_is_held()


async def test_an_unforeseen_fault_of_an_answer_gives_back_what_was_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 1)
        rig.append(hot, b"x" * 200_000)
        ColdDisk(monkeypatch, "cold").gate.set()

        def faulty(*_: object) -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(fetch_module, "encode_fetch_response", faulty)
        for names in (("hot",), ("hot", "cold")):
            client = rig.connect()
            await client.write(fetch_of(client, *names, max_bytes=1 << 20))
            assert await client.is_closed()
            await rig.nothing_is_held()


async def test_an_unforeseen_fault_of_a_waiting_fetch_costs_its_connection_and_not_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        bad, good = rig.connect(), rig.connect()
        for client in (bad, good):
            await client.write(client.fetch_frame("flights", 0, max_wait_ms=60_000))
        await eventually(lambda: len(shard.waiters) == 2)
        real = fetch_module.PendingFetch.attempt

        def faulty(fetch: Any, *args: Any, **options: Any) -> None:
            if fetch._connection is bad.connection:
                raise ValueError("a bug")
            real(fetch, *args, **options)

        monkeypatch.setattr(fetch_module.PendingFetch, "attempt", faulty)
        fill(rig, shard, 1)
        assert len((await good.fetched())[0].batches()) == 1
        assert await bad.is_closed()
        await rig.nothing_is_held()


@pytest.mark.parametrize("error", ["unsupported", "partial"])
async def test_a_page_cache_of_unknown_or_partial_content_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import os

    real = os.preadv

    def preadv(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if not flags:
            return real(fd, buffers, position)
        if error == "unsupported":
            raise OSError(95, "Operation not supported")
        if len(buffers[0]) > 100:
            return real(fd, [memoryview(buffers[0])[:100]], position)
        return real(fd, buffers, position)

    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for number in range(5):
            rig.append(shard, b"%d" % number * 200)
        monkeypatch.setattr(os, "preadv", preadv)
        client = rig.connect()
        await client.write(client.fetch_frame("flights", 0))
        assert len((await client.fetched())[0].batches()) == 5
        await rig.nothing_is_held()


# Damage -----------------------------------------------------------------------------------------------------------
async def test_damage_found_on_a_cold_disk_is_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        fill(rig, shard, 3)
        path = rig.file_of(shard)
        data = bytearray(path.read_bytes())
        data[-2] ^= 1
        with path.open("r+b") as file:
            file.write(data)
        monkeypatch.setattr(LocalCopy, "read_header_cached", _not_cached)
        client = rig.connect()
        shard.active._hints.clear()  # type: ignore[union-attr]
        await client.write(client.fetch_frame("flights", 1, partition_max_bytes=1))
        (found,) = await client.fetched()
        assert found.error_code == 0 and len(found.batches()) == 1
        await client.write(client.fetch_frame("flights", 1))
        (found,) = await client.fetched()
        assert found.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE) and not found.records


def _not_cached(*_: object) -> bytes:
    raise NotCached


async def test_a_fetch_session_is_refused_so_that_clients_send_full_lists(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        frame = bytearray(client.fetch_frame("flights", 0))
        # session id: after size(4), header(2+2+4+2+3), replica, wait, min, max (4 each), isolation(1)
        at = 4 + 13 + 17
        frame[at : at + 4] = (77).to_bytes(4, "big")
        await client.write(bytes(frame))
        data = await client.read_frame()
        assert int.from_bytes(data[12:14], "big") == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_large_answer_leaves_in_pieces_between_which_others_are_served(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        fill(rig, shard, 30, size=100_000)
        client = rig.connect(is_tcp=True)
        sent = [0]

        def look_each_turn() -> None:
            sent.append(rig.server.stats.sent_bytes)
            if not rig.server.stats.sent_bytes > 2_900_000:
                asyncio.get_running_loop().call_soon(look_each_turn)

        look_each_turn()
        await client.write(client.fetch_frame("flights", 0, partition_max_bytes=8 << 20))
        (answer,) = await client.fetched()
        assert len(answer.records) > 2_900_000
        steps = [after - before for before, after in itertools.pairwise(sent)]
        assert max(steps) <= 2 * connection_module._TURN_BYTES, "one by the tick and one by the writable socket"
