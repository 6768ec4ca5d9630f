"""Shards that a full disk kept closed at the start, or that wait for a seal: each is opened as soon as it can be."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.commands.table_commands import DeleteTopic
from stratalog.model.errors import DiskFull
from stratalog.model.ids import ShardKey
from stratalog_node.backoff import Backoff
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
        assert tries == 6
        monkeypatch.setattr(opening, "recreate_file", recreate)
        may_go_on.set()
        await eventually(lambda: all(rig.shard(topic, index).stop is None for index in range(5)))


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
