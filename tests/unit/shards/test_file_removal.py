"""Who opens a file waits until what this node had under its name is gone, and nothing goes that a person may want."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.ids import SegmentKey
from stratalog_node.disk.files import SegmentFile
from support.shard_rig import ShardRig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ShardRig]:
    async with ShardRig(tmp_path) as rig:
        yield rig


async def a_file(rig: ShardRig) -> tuple[SegmentKey, SegmentFile]:
    """Of a shard of a living topic, alone in its directory."""
    shard = await rig.shard_of()
    key = SegmentKey(shard.key.topic_id, 7, 3, 100)
    file = SegmentFile(rig.context.layout.segment(key), rig.context.descriptors, 0)
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"batches")
    return key, file


async def test_what_was_set_aside_stays_while_its_topic_lives(rig: ShardRig) -> None:
    key, file = await a_file(rig)
    aside = file.path.with_suffix(".given-up")
    aside.write_bytes(b"for a person")
    await rig.context.removal.remove(key, file)
    assert not file.path.exists()
    assert aside.read_bytes() == b"for a person"


async def test_settling_in_the_step_of_the_removal_waits(rig: ShardRig) -> None:
    key, file = await a_file(rig)
    file.pin()
    rig.context.removal.begin(key, file)
    settled = asyncio.create_task(rig.context.removal.settle(key))
    await asyncio.sleep(0.03)
    assert file.path.exists() and not settled.done()
    file.unpin()
    await settled
    assert not file.path.exists()


async def test_a_second_removal_waits_for_the_first_and_settling_waits_for_both(rig: ShardRig) -> None:
    key, file = await a_file(rig)
    file.pin()
    removal = rig.context.removal
    removal.begin(key, file)
    removal.begin(key, SegmentFile(file.path, rig.context.descriptors, 0))
    settled = asyncio.create_task(removal.settle(key))
    await asyncio.sleep(0.03)
    assert file.path.exists(), "somebody reads it: the second one does not know"
    file.unpin()
    await settled
    await removal.settle(key)
    assert not file.path.exists()


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_cancelled_wait_ends_no_removal(rig: ShardRig, monkeypatch: pytest.MonkeyPatch, is_read: bool) -> None:
    """A thread cannot be called back: who opened the file then lost it a moment later."""
    key, file = await a_file(rig)
    may_go, unlink = threading.Event(), SegmentFile.remove

    def held(removed: SegmentFile, **how: bool) -> None:
        may_go.wait(20)
        unlink(removed, **how)

    monkeypatch.setattr(SegmentFile, "remove", held)
    if is_read:
        file.pin()
    waiting = asyncio.create_task(rig.context.removal.remove(key, file))
    await asyncio.sleep(0.03)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    settled = asyncio.create_task(rig.context.removal.settle(key))
    await asyncio.sleep(0.03)
    assert rig.context.removal.is_under_way(key) and not settled.done()
    if is_read:
        file.unpin()
    may_go.set()
    await settled
    assert not file.path.exists()


async def test_what_cannot_be_removed_stays_and_is_logged(rig: ShardRig, caplog: pytest.LogCaptureFixture) -> None:
    key, file = await a_file(rig)
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(OSError, match="directory"):
        await rig.context.removal.remove(key, file)
    rig.context.removal.begin(key, file)
    await rig.context.removal.settle(key)
    assert file.path.is_dir()
