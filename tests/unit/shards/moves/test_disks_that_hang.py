"""A further disk that hangs keeps its own threads, and holds up nothing of the first one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.ids import SegmentKey
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import segment_path
from stratalog_node.shards.copies.missing_files import look_for
from stratalog_node.shards.moves.copy_mover import MovePolicy
from support.sealed_shards import sealed_shard
from support.shard_rig import ShardRig
from support.waiting import eventually

_AT_ONCE = MovePolicy(after_ms=lambda topic_id: 0, least_free_bytes=0, bytes_per_s=1 << 30)


class Hanging:
    """From `begin` on each call for a file below the root waits for `end`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.waiting = 0
        self._gate = threading.Event()

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("stat", "unlink", "iterdir"):
            monkeypatch.setattr(Path, name, self._held(getattr(Path, name)))

    def _held(self, real: Any) -> Any:
        def call(path: Path, *args: Any, **options: Any) -> Any:
            if path.is_relative_to(self.root):
                self.waiting += 1
                self._gate.wait()
            return real(path, *args, **options)

        return call

    def end(self) -> None:
        self._gate.set()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ShardRig]:
    (tmp_path / "hdd").mkdir()
    async with ShardRig(tmp_path, further=[tmp_path / "hdd"], moves=_AT_ONCE) as made:
        yield made


@pytest.fixture
def hanging(rig: ShardRig) -> Any:
    made = Hanging(rig.further[0])
    yield made
    made.end()


@pytest.mark.fault("data-directory-hangs")
async def test_deletions_on_a_disk_that_hangs_leave_the_background_threads_free(
    rig: ShardRig, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, context = await sealed_shard(rig), rig.context
    hanging.begin(monkeypatch)
    keys = [SegmentKey(shard.key.topic_id, 7, epoch, epoch) for epoch in range(8)]
    for key in keys:
        context.removal.begin(key, SegmentFile(segment_path(rig.layout.root, key), context.descriptors, 0))
    await eventually(lambda: hanging.waiting >= 4)
    async with asyncio.timeout(30):  # for ever, if it fails
        assert await context.threads.background(lambda: "free") == "free"
    rig.layout.further[0].trouble = "its disk is gone"
    for key in keys:
        await context.removal.settle(key)  # who makes such a copy again waits for this


@pytest.mark.fault("data-directory-hangs")
async def test_readers_that_look_for_missing_files_leave_the_read_threads_free(
    rig: ShardRig, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, context = await sealed_shard(rig), rig.context
    copy = shard.copies[0]
    copy.file.path.unlink()
    shard.take_out(copy.key)
    shard.missing.add(copy.key)
    hanging.begin(monkeypatch)
    readers = [asyncio.create_task(look_for(shard, copy.key)) for _ in range(8)]
    await eventually(lambda: hanging.waiting >= 4)
    async with asyncio.timeout(30):  # for ever, if it fails
        assert await context.threads.read(lambda: "free") == "free"
    rig.layout.further[0].trouble = "its disk is gone"
    assert await asyncio.gather(*readers) == [False] * 8
