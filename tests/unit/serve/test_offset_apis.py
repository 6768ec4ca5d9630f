"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords, as kafka-python reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.errors import Corrupt, Unavailable
from stratalog.model.ids import ShardKey
from support.control_bench import ControlBench, control_bench


async def listed(bench: ControlBench, version: int, timestamp: int, **more: Any) -> Any:
    isolation = more.pop("isolation_level", 0)
    told = await bench.ask(
        2,
        version,
        replica_id=-1,
        isolation_level=isolation,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": timestamp, **more}]}],
    )
    return told.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 10))
async def test_the_ends_and_a_moment_of_a_shard(version: int) -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        bench.shard(topic).times = [100, 300, 200, 400, 500]
        await bench.roll(topic, 3)
        for timestamp, offset, found_at, epoch in (
            (-1, 5, -1, 1),
            (-2, 0, -1, 0),
            (0, 0, 100, 0),
            (150, 1, 300, 0),
            (301, 3, 400, 1),
            (501, -1, -1, -1),
        ):
            one = await listed(bench, version, timestamp)
            assert (one.error_code, one.offset, one.timestamp) == (0, offset, found_at)
            if version >= 4:
                assert one.leader_epoch == epoch


async def test_the_special_places_of_later_versions() -> None:
    async with control_bench() as bench:
        shard = bench.shard(await bench.topic("orders"))
        shard.times = [100, 500, 500, 400]
        shard.freed_upto = 2
        assert (await listed(bench, 7, -3)).offset == 1
        assert (await listed(bench, 7, -3)).timestamp == 500
        assert (await listed(bench, 8, -4)).offset == 2
        assert (await listed(bench, 9, -5)).offset == -1
        shard.tiered_upto = 3
        assert (await listed(bench, 9, -5)).offset == 2


@pytest.mark.parametrize(("version", "timestamp"), [(6, -3), (7, -4), (8, -5), (9, -6), (9, -100)])
async def test_places_that_a_version_does_not_know_are_refused(version: int, timestamp: int) -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        assert (await listed(bench, version, timestamp)).error_code == 35


async def test_read_committed_ends_at_the_last_stable_offset() -> None:
    async with control_bench() as bench:
        shard = bench.shard(await bench.topic("orders"))
        shard.times = [100, 200, 300]
        shard.open_transaction_at = 1
        assert (await listed(bench, 6, -1, isolation_level=1)).offset == 1
        assert (await listed(bench, 6, -1)).offset == 3
        assert (await listed(bench, 6, 200, isolation_level=1)).offset == -1
        assert (await listed(bench, 6, 100, isolation_level=1)).offset == 0


async def test_what_is_not_acknowledged_is_not_listed() -> None:
    async with control_bench() as bench:
        shard = bench.shard(await bench.topic("orders"))
        shard.times = [100, 200]
        shard.unacknowledged = 1
        assert (await listed(bench, 6, -1)).offset == 1
        assert (await listed(bench, 6, 150)).offset == -1


async def test_an_empty_shard_has_no_greatest_timestamp() -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        one = await listed(bench, 7, -3)
        assert (one.error_code, one.offset, one.timestamp) == (0, -1, -1)


async def test_a_shard_elsewhere_unknown_or_not_open_is_a_retriable_error() -> None:
    async with control_bench() as bench:
        assert (await listed(bench, 6, -1)).error_code == 3
        topic = await bench.topic("orders")
        bench.shards.missing.add(ShardKey(topic.topic_id, 0))
        assert (await listed(bench, 6, -1)).error_code == 5
        bench.services = replace(bench.services, node_id=2)
        assert (await listed(bench, 6, -1)).error_code == 6


@pytest.mark.fault("metadata-loaded-shard-file")
async def test_not_knowing_yet_is_never_out_of_range() -> None:
    async with control_bench() as bench:
        shard = bench.shard(await bench.topic("orders"))
        shard.error = Unavailable("HW not known yet")
        # 56, which every client asks again for; 78 is unknown to aiokafka, and ends its consumer.
        assert (await listed(bench, 6, -1)).error_code == 56
        assert (await listed(bench, 6, 5)).error_code == 56
        shard.error = Corrupt("bad CRC", source="x.seg", position=0)
        assert (await listed(bench, 6, 5)).error_code == 56


async def ended(bench: ControlBench, current_leader_epoch: int) -> Any:
    partition = {"partition": 0, "current_leader_epoch": current_leader_epoch, "leader_epoch": 0}
    told = await bench.ask(23, 4, replica_id=-1, topics=[{"topic": "orders", "partitions": [partition]}])
    return told.topics[0].partitions[0]


@pytest.mark.fault("clients-epoch-behind-roll")
async def test_a_clients_leader_epoch_is_checked() -> None:
    """Kafka 4.3.1 answers 74 to an epoch before the leader's, 0 to its own and to -1, 75 to a later one."""
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        for _ in range(4):
            await bench.roll(topic, 0)
        bench.shard(topic).led_since_epoch = 2
        for epoch, code in ((0, 74), (1, 74), (2, 0), (3, 0), (4, 0), (5, 75), (-1, 0)):
            assert (await listed(bench, 6, -1, current_leader_epoch=epoch)).error_code == code
            assert (await listed(bench, 6, 0, current_leader_epoch=epoch)).error_code == code
            assert (await ended(bench, epoch)).error_code == code


@pytest.mark.parametrize("version", range(2, 5))
async def test_an_epoch_continues_unbroken_over_rolls(version: int) -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        bench.shard(topic).times = [1] * 30
        await bench.roll(topic, 10)
        await bench.roll(topic, 25)
        ends = []
        for epoch in range(-1, 5):
            told = await bench.ask(
                23,
                version,
                replica_id=-1,
                topics=[
                    {
                        "topic": "orders",
                        "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}],
                    }
                ],
            )
            (one,) = told.topics[0].partitions
            assert (one.error_code, one.partition) == (0, 0)
            ends.append((one.leader_epoch, one.end_offset))
        assert ends == [(-1, -1), (0, 30), (1, 30), (2, 30), (-1, -1), (-1, -1)]


async def trimmed(bench: ControlBench, version: int, offset: int, partition: int = 0) -> Any:
    told = await bench.ask(
        21,
        version,
        topics=[{"name": "orders", "partitions": [{"partition_index": partition, "offset": offset}]}],
        timeout_ms=1000,
    )
    return told.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(version: int) -> None:
    async with control_bench() as bench:
        shard = bench.shard(await bench.topic("orders"))
        shard.times = [1] * 10
        shard.unacknowledged = 2
        one = await trimmed(bench, version, 3)
        assert (one.error_code, one.low_watermark) == (0, 3)
        assert (await trimmed(bench, version, 1)).low_watermark == 3
        assert (await trimmed(bench, version, 9)).error_code == 1
        assert (await trimmed(bench, version, -2)).error_code == 1
        assert (await trimmed(bench, version, -1)).low_watermark == 8
        assert (await trimmed(bench, version, 0, partition=1)).error_code == 3
        shard.error = Unavailable("away")
        assert (await trimmed(bench, version, 9)).error_code == 5
