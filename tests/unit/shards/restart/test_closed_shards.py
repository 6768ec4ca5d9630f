"""Shards that a full disk kept closed at the start, or that wait for a seal: each is opened as soon as it can be."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import structlog
from structlog.testing import capture_logs

from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.commands.table_commands import DeleteTopic
from stratalog.model.errors import DiskFull
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.telemetry.bounded_lines import BoundedLines
from stratalog_node.backoff import Backoff
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.restart import healing, opening
from support.shard_rig import ShardRig
from support.tiered_shards import TieredShardRig
from support.waiting import eventually


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "Backoff", partial(Backoff, 0.001))


@pytest.mark.fault("start-full-disk-shard")
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_shard_that_a_full_disk_kept_closed_opens_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    """The power went before its file had a header, so that a new one must be made."""
    recreate, tries = opening.recreate_file, []

    def full(*_: object) -> None:
        tries.append(1)
        raise DiskFull("no space left")

    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a")
        path = rig.file_of(shard)
        await rig.power_cut()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        monkeypatch.setattr(opening, "recreate_file", full)
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is not None and shard.stop.cause is StopCause.HEALING
        assert "needs room on the disk" in shard.stop.reason
        await eventually(lambda: len(tries) > 2)
        if is_deleted:
            await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
            await eventually(lambda: not rig.healing._opening)
            return
        monkeypatch.setattr(opening, "recreate_file", recreate)
        await eventually(lambda: shard.stop is None)
        await rig.acknowledged(shard, b"b")
        assert (await rig.read_values(shard))[-1] == b"b"


@pytest.mark.fault("start-full-disk-shard")
async def test_while_the_disk_is_full_one_shard_tries_for_all_that_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 that each try keep disk, event loop and log busy."""
    recreate, tries, pauses, may_go_on = opening.recreate_file, 0, 0, asyncio.Event()

    def full(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise DiskFull("no space left")

    class Paused(Backoff):
        async def pause(self) -> None:
            nonlocal pauses
            pauses += 1
            await may_go_on.wait()

    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=5)
        shards = [rig.shard(topic, index) for index in range(5)]
        for shard in shards:
            await rig.acknowledged(shard, b"a")
        paths = [rig.file_of(shard) for shard in shards]
        await rig.power_cut()
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        monkeypatch.setattr(opening, "recreate_file", full)
        monkeypatch.setattr(healing, "Backoff", Paused)
        await rig.start()
        assert tries == 5
        await eventually(lambda: pauses > 0)
        for _ in range(100):  # the others could have tried
            await asyncio.sleep(0)
        assert (tries, pauses) == (5, 1)
        monkeypatch.setattr(opening, "recreate_file", recreate)
        may_go_on.set()
        await eventually(lambda: all(rig.shard(topic, index).stop is None for index in range(5)))


@pytest.mark.fault("start-full-disk-shard")
async def test_a_start_on_a_full_disk_survives_checkpoints_that_must_be_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only their shards wait for room."""
    real, tries, is_full = Checkpoints.revoke, 0, True

    def revoke(store: Checkpoints, keys: Iterable[SegmentKey]) -> None:
        nonlocal tries
        tries += 1
        if is_full:
            raise DiskFull("no space left")
        real(store, keys)

    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        for index in range(3):
            await rig.acknowledged(rig.shard(topic, index), b"a")
        stale = [active_of(rig.shard(topic, index))._replace(epoch=9) for index in range(2)]
        of_no_shard = SegmentKey(uuid4(), 0, 0, 0)
        rig.checkpoints.put([Checkpoint(key, 0, 0, 0, 0, IndexPoints(), ()) for key in (*stale, of_no_shard)])
        monkeypatch.setattr(Checkpoints, "revoke", revoke)
        await rig.restart()
        shards = [rig.shard(topic, index) for index in range(3)]
        reasons = [shard.stop.reason if shard.stop is not None else "" for shard in shards]
        assert ["needs room on the disk" in reason for reason in reasons] == [True, True, False]
        await rig.acknowledged(shards[2], b"b")
        await eventually(lambda: tries > 3)
        assert set(stale) <= rig.checkpoints.load_all().keys()
        is_full = False
        await eventually(lambda: all(shard.stop is None for shard in shards))
        assert not rig.checkpoints.load_all().keys() & set(stale)
        for shard in shards:
            await rig.acknowledged(shard, b"c")
        assert [await rig.read_values(shard) for shard in shards] == [[b"a", b"c"], [b"a", b"c"], [b"a", b"b", b"c"]]
        await rig.restart()
        assert of_no_shard not in rig.checkpoints.load_all(), "the next start has revoked it"


def active_of(shard: ShardLog) -> SegmentKey:
    assert shard.active is not None
    return shard.active.key


@pytest.mark.fault("start-full-disk-shard")
async def test_while_the_disk_is_full_one_shard_tries_to_heal_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tails are in the bucket, and nothing can be written to their files."""
    real, tries, is_full, may_go_on = SegmentFile.put_back, 0, True, asyncio.Event()
    waiting = 0

    def put_back(file: SegmentFile, position: int, data: bytes) -> None:
        nonlocal tries
        tries += 1
        if is_full:
            raise OSError(errno.ENOSPC, "no space left")
        real(file, position, data)

    class Paused(Backoff):
        async def pause(self) -> None:
            nonlocal waiting
            waiting += 1
            await may_go_on.wait()

    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=8)
        for index in range(8):
            await rig.acknowledged(rig.shard(topic, index), b"a", b"b")
        await rig.uploaded()
        monkeypatch.setattr(SegmentFile, "put_back", put_back)
        monkeypatch.setattr(healing, "Backoff", Paused)
        await rig.restart("power_cut")
        await eventually(lambda: waiting > 0)
        await eventually(lambda: rig.healing._room.waiting == 7)
        assert (tries, waiting) == (4, 1), "as many as heal at once have met the full disk"
        is_full = False
        may_go_on.set()
        await eventually(lambda: all(rig.shard(topic, index).stop is None for index in range(8)))
        assert [await rig.read_values(rig.shard(topic, index)) for index in range(8)] == [[b"a", b"b"]] * 8


def test_ten_thousand_shards_that_stay_closed_cost_a_few_lines() -> None:
    now_ms = 5_000
    lines = BoundedLines(structlog.get_logger(), lambda: now_ms, "`stratalog status` names each shard")
    with capture_logs() as logged:
        for number in range(10_000):
            lines.warning("shard not opened yet", shard=number)
        assert len(logged) == 21 and "further lines" in logged[-1]["event"]
        now_ms += 10_000
        lines.warning("shard not opened yet", shard=0)
        assert len(logged) == 22 and logged[-1]["left_out"] == 9_980


async def test_a_shard_that_waits_for_a_seal_later_than_the_start_is_opened_by_that_seal(tmp_path: Path) -> None:
    """Others may have led it by the time that there is room."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a")
        assert shard.active is not None
        opened: list[ShardKey] = []
        rig.healing._begin_opening = opened.append  # type: ignore[method-assign]
        rig.healing._recovery.waiting[shard.key] = shard.active.key
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"b")
        await eventually(lambda: opened == [shard.key])
