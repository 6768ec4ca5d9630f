"""A wall clock that is set while a node runs: uploads continue, and history does not end at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import CreateTopic
from stratalog.objects.opening import open_store
from stratalog.settings.process import ProcessSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.age_clock import NodeAgeClock
from stratalog_node.node import Listen, StorageNode, wall_ms
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import make_batch
from support.waiting import eventually

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
SETTINGS = ProcessSettings(
    offsets_topic_num_partitions=1,
    remote_upload_interval_ms=50,
    log_retention_check_interval_ms=20,
    flush_interval_ms=10,
)


class SetClock:
    """The wall clock, and by how much a test set it ahead or back."""

    def __init__(self) -> None:
        self.set_by_ms = 0

    def __call__(self) -> int:
        return wall_ms() + self.set_by_ms


class Bench:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = SetClock()
        self.meta = MetaService(MemoryStore(), self.clock)
        self.store = open_store(str(root / "bucket"))
        self.node: StorageNode

    async def start(self) -> StorageNode:
        self.node = StorageNode(
            SETTINGS, self.root / "node", Listen("127.0.0.1", 0), self.meta, self.store, clock_ms=self.clock
        )
        await self.node.start()
        return self.node

    async def topic(self, **settings: str) -> ShardLog:
        overrides = {key.replace("_", "."): value for key, value in settings.items()}
        await self.meta.perform(CreateTopic("flights", shard_count=1, replication_factor=1, settings=overrides))
        await eventually(lambda: self.node.shards.by_name("flights", 0) is not None)
        return self.shard()

    def shard(self) -> ShardLog:
        shard = self.node.shards.by_name("flights", 0)
        assert shard is not None
        return shard

    def commit_offset(self) -> int:
        return self.shard().segments[-1].remote.commit_offset


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.meta.start()
    await bench.start()
    yield bench
    await bench.node.close()
    await bench.meta.close()
    await bench.store.close()


@pytest.mark.fault("wall-clock-set-forward")
@pytest.mark.parametrize("step_ms", [-HOUR, HOUR])
async def test_uploads_continue_when_the_wall_clock_is_set(bench: Bench, step_ms: int) -> None:
    shard = await bench.topic()
    await shard.append([make_batch([b"before"], at_ms=wall_ms())])
    await eventually(lambda: bench.commit_offset() == 1)
    bench.clock.set_by_ms = step_ms
    await shard.append([make_batch([b"after"], at_ms=wall_ms())])
    await eventually(lambda: bench.commit_offset() == 2)


async def _sealed(bench: Bench, shard: ShardLog) -> None:
    await shard.append([make_batch([b"history"], at_ms=bench.clock())])
    before = shard.segments[-1].key
    assert bench.node.ask_roll(shard.key)
    await eventually(lambda: any(s.key == before and s.seal is not None for s in shard.segments))


@pytest.mark.fault("wall-clock-set-forward")
async def test_a_clock_set_ahead_deletes_nothing_at_once_nor_after_a_restart(bench: Bench) -> None:
    shard = await bench.topic(retention_ms=str(24 * HOUR))
    await _sealed(bench, shard)
    bench.clock.set_by_ms = YEAR
    rounds = bench.node.tier.retention
    await rounds.run_once()
    assert bench.shard().log_start_offset == 0
    await bench.node.close()
    await bench.start()
    await bench.node.tier.retention.run_once()
    assert bench.shard().log_start_offset == 0
    await bench.node.metrics.page()
    assert bench.node.tier.stats.age_behind_ms > YEAR - 2 * HOUR


async def test_a_clock_set_ahead_by_less_than_an_hour_is_believed(bench: Bench) -> None:
    shard = await bench.topic(retention_ms=str(HOUR // 2))
    await _sealed(bench, shard)
    bench.clock.set_by_ms = HOUR - 60_000
    await bench.node.tier.retention.run_once()
    await eventually(lambda: bench.shard().log_start_offset == 1)


async def test_an_empty_clock_file_does_not_stop_the_node(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    path.write_text('{"now_ms": "soon"}')
    clock = NodeAgeClock(path, wall_ms, lambda: 0)
    assert clock() <= wall_ms() + 1
    await clock.close()
    assert NodeAgeClock(path, wall_ms, lambda: 0).behind_ms == 0
