"""The metadata that an uploader reads for a new lock may be older than changes that arrive while it waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratalog.model.metadata import Snapshot
from stratalog_meta import MetaService
from support.tier_rig import TierRig

pytestmark = pytest.mark.fault("lock-gained-beside-roll")


class LateSnapshots:
    """A meta service whose snapshots are on the way until they are let go."""

    def __init__(self, service: MetaService) -> None:
        self._service = service
        self.asked = 0
        self.arrived = asyncio.Event()

    async def snapshot(self) -> Snapshot:
        snapshot = await self._service.snapshot()
        self.asked += 1
        await self.arrived.wait()
        return snapshot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


async def test_a_segment_that_opens_while_the_snapshot_is_on_its_way_is_uploaded() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        rig.append(shard)
        meta = LateSnapshots(rig.meta)
        await rig.start_uploader(meta=meta)
        await rig.until(lambda: meta.asked)
        await rig.roll(shard)
        rig.append(shard)
        meta.arrived.set()
        await rig.until(lambda: shard.segments[-1].remote.commit_offset == shard.high_watermark)
        await rig.check()


async def test_a_segment_that_is_complete_before_the_snapshot_arrives_is_not_taken_up_again() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        uploader = await rig.start_uploader()
        rig.append(shard)
        meta = LateSnapshots(rig.meta)
        await rig.until(lambda: uploader.lock.current is not None)
        lock = uploader.lock.current
        assert lock is not None
        uploader._meta = meta
        gaining = asyncio.create_task(uploader._lock_gained(lock))
        await rig.until(lambda: meta.asked)
        sealed = await rig.seal(shard)
        await rig.until(lambda: rig.is_complete(sealed))
        await rig.until(lambda: sealed.key not in uploader._known)
        meta.arrived.set()
        await gaining
        assert sealed.key not in uploader._known
        await rig.check()
