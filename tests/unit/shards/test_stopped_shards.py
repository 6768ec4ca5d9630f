"""A shard that stopped is counted by its cause and listed with what to do, until a restart has opened it again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.commands.table_commands import DeleteTopic, RollSegment, SealSegment
from stratalog.model.errors import Fenced
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.shards.copies.stopped import add_stopped_metric
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig
from support.waiting import eventually


def counted(rig: ShardRig) -> dict[str, float]:
    """Cause -> stopped_shards, as the metrics page shows them; only those above zero."""
    registry = MetricRegistry()
    add_stopped_metric(registry, rig.shards)
    rows = registry.values()["stratalog_log_stopped_shards"]
    causes = {cause.value for cause in StopCause if cause is not StopCause.DELETED}
    assert {cause for (cause,) in rows} == causes, "a cause that is not there reads 0"
    return {cause: value for (cause,), value in rows.items() if value}


async def test_shards_that_work_are_not_counted(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        await rig.acknowledged(await rig.shard_of(), b"x")
        assert counted(rig) == {} and list(rig.shards.stopped()) == []


@pytest.mark.fault("shard-stops", "shard-stops-2")
async def test_a_failed_flush_shows_until_a_restart_has_read_the_disk(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        bad = rig.shard(topic, 1)
        rig.append(bad, b"x")
        rig.power.fail_next = lambda path: OSError(errno.EIO, "error") if path.suffix == ".seg" else None
        await rig.flusher._flush_dirty(checkpoint_all=False)

        assert counted(rig) == {"flush_failed": 1}
        ((shard, stop),) = rig.shards.stopped()
        assert shard is bad and str(rig.file_of(bad)) in stop.reason and "restart" in stop.next_step

        rig.power.fail_next = lambda _: None
        await rig.restart("crash")
        assert counted(rig) == {}


async def test_a_file_that_cannot_be_opened_shows(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        path = rig.file_of(shard)
        await rig.crash()
        path.write_bytes(b"\xff" * 5000)
        await rig.start()

        assert counted(rig) == {"unreadable": 1}
        ((_, stop),) = rig.shards.stopped()
        assert str(path) in stop.reason


async def test_a_file_that_is_gone_shows(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await eventually(lambda: shard.segments[0].end_offset == 1)
        path = rig.file_of(shard, 0)
        await rig.crash()
        rig.meta.release(SealSegment)
        path.unlink()
        await rig.start()

        await eventually(lambda: counted(rig) == {"data_lost": 1})
        ((_, stop),) = rig.shards.stopped()
        assert str(path) in stop.reason


async def test_a_fault_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()

        def faulty(_: ShardLog, now_ms: int) -> None:
            raise ValueError(f"a bug at {now_ms}")

        with monkeypatch.context() as patched:
            patched.setattr(ShardLog, "flush_pending", faulty)
            rig.append(shard, b"x")

        assert counted(rig) == {"fault": 1}


@pytest.mark.fault("shard-stops", "shard-stops-2")
async def test_a_refused_roll_shows_and_a_deleted_topic_does_not(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        deposed = await rig.shard_of("deposed")
        gone = await rig.shard_of("gone")
        rig.append(deposed, b"x")
        rig.meta.fail(RollSegment, Fenced("another leads"))
        deposed.ask_roll(rig.clock())
        await eventually(lambda: deposed.stop is not None)
        await rig.meta.service.perform(DeleteTopic(gone.key.topic_id))
        await eventually(lambda: gone.stop is not None)

        assert counted(rig) == {"deposed": 1}
