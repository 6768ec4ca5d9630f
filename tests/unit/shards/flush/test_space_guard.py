"""Disk nearly full: writes are refused with the reason, reads continue, and writes resume without flapping."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.tiering.retention import DiskPressure, disk_pressure
from stratalog.model.errors import DiskFull
from stratalog_node.shards.flush.shard_lookup import DiskUsage
from stratalog_node.shards.flush.space import SpaceGuard
from support.shard_rig import ShardRig

RESERVE = 1000


class Disk:
    def __init__(self, rig: ShardRig) -> None:
        self.free_bytes = 10_000
        self.guard = SpaceGuard(rig.context.gate, self, reserve_bytes=RESERVE)
        rig.context.gate.on_write_failure(self.guard.write_failed)

    root = Path("disk")

    def usage(self) -> DiskUsage:
        return DiskUsage(str(self.root), 100_000, self.free_bytes)

    added_up = 0

    async def local_bytes(self) -> int:
        self.added_up += 1
        return 123

    def poll(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.guard.poll()


async def test_writes_stop_below_the_reserve_and_resume_well_above_it(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, disk = await rig.shard_of(), Disk(rig)
        disk.poll(RESERVE)
        assert rig.append(shard, b"x").is_acknowledged
        disk.poll(RESERVE - 1)
        asked = rig.append(shard, b"y")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "disk.reserve.bytes" in (asked.answers[0].message or "")
        assert await rig.read_values(shard) == [b"x"]
        for free in (RESERVE, RESERVE + 50, RESERVE - 10, RESERVE + 99):
            disk.poll(free)
            assert rig.context.gate.no_room is not None, f"resumed at {free}"
        assert disk.guard.stats.refusals == 1 == disk.guard.stats.is_refusing_writes
        disk.poll(RESERVE + 101)
        assert rig.append(shard, b"z").is_acknowledged
        assert disk.guard.stats.is_refusing_writes == 0


async def test_the_nearer_the_reserve_the_sooner_the_next_check(tmp_path: Path) -> None:
    """With not a byte left above it, too: writes are still taken then."""
    async with ShardRig(tmp_path) as rig:
        disk = Disk(rig)
        pauses = []
        for free in (RESERVE + (4 << 30), RESERVE + (256 << 20), RESERVE + 1, RESERVE):
            disk.poll(free)
            assert rig.context.gate.no_room is None
            pauses.append(disk.guard.pause_s)
        assert pauses[0] == 1.0 > pauses[1] > pauses[2] == pauses[3]
        disk.poll(RESERVE - 1)
        assert disk.guard.pause_s == 1.0, "nothing is written now"


async def test_a_write_that_found_the_disk_full_stops_the_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        disk = Disk(rig)
        shards = [rig.shard(topic, index) for index in range(2)]
        for shard in shards:
            rig.append(shard, b"x")
        file = shards[0].active.file  # type: ignore[union-attr]
        monkeypatch.setattr(type(file), "append", _full)
        asked = [rig.offer(shard, b"y") for shard in shards]
        rig.tick()
        monkeypatch.undo()
        assert [a.error for a in asked] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert rig.stats.write_failures == 1, "the second one was not even tried"
        disk.poll(50_000)
        assert all(rig.append(shard, b"z").is_acknowledged for shard in shards)
        assert [await rig.read_values(shard) for shard in shards] == [[b"x", b"z"]] * 2


def _full(*_: object) -> None:
    raise DiskFull("no space left")


async def test_a_failed_write_takes_back_what_the_producer_table_had_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        producer = {"producer_id": 9, "producer_epoch": 0}
        rig.append(shard, b"a", base_sequence=0, **producer)
        file = shard.active.file  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            patch.setattr(type(file), "append", _full)
            first, again = (rig.offer(shard, b"b", base_sequence=1, **producer) for _ in range(2))
            rig.tick()
            assert not first.is_acknowledged and not again.is_acknowledged
        retried = rig.append(shard, b"b", base_sequence=1, **producer)
        assert retried.is_acknowledged and retried.offset == 1
        assert await rig.read_values(shard) == [b"a", b"b"]


async def test_local_data_that_waits_for_its_upload_refuses_writes_until_it_is_sent(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, disk = await rig.shard_of(), Disk(rig)
        pressure = disk_pressure(5000, 4000, 3000, None)
        assert isinstance(pressure, DiskPressure)
        disk.guard.set_pressure(pressure)
        asked = rig.append(shard, b"x")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR and asked.answers[0].message == pressure.message
        disk.guard.set_pressure(None)
        assert rig.append(shard, b"x").is_acknowledged


@pytest.mark.fault("node-thousands-idle-shards")
async def test_the_size_of_segments_is_added_up_on_request(tmp_path: Path) -> None:
    """With thousands of shards that costs a percent of a core if it is done each second."""
    async with ShardRig(tmp_path) as rig:
        disk = Disk(rig)
        disk.guard.start()
        for _ in range(5):
            disk.poll(500)
            disk.poll(50_000)
            await asyncio.sleep(0)
        assert disk.added_up == 0
        await disk.guard.count()
        assert (disk.added_up, disk.guard.stats.local_bytes) == (1, 123)
        await disk.guard.close()
