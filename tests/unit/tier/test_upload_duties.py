"""A sealed segment is uploaded by a living holder: the duty goes with the lease, and comes back with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.commands.table_commands import NoteLives
from stratalog.model.metadata import Life
from stratalog.model.segment import RemoteCopy, RemoteState
from stratalog_node.slices import UNITS_PER_SLICE
from support.tier_rig import NODE_ID, TierRig

LIFE = Life(NODE_ID, 1)


async def test_a_node_whose_lease_is_over_uploads_no_sealed_segment_until_it_is_heard_again() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.append(shard, 1_000)
        ended = await rig.roll(shard)
        await rig.meta.perform(NoteLives(lost=(LIFE,)))
        sealed = await rig.seal(shard, ended)
        await rig.until(lambda: not rig.catalog.is_alive(NODE_ID))
        await rig.until(lambda: rig.uploader.status().uploader.segments == 1, "the active one alone is its own")
        assert not rig.is_complete(sealed)
        await rig.meta.perform(NoteLives(heard=(LIFE,)))
        await rig.until(lambda: rig.is_complete(ended))
        await rig.check()


async def test_a_new_check_of_every_segment_lets_others_run_however_many_a_shard_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each mount that changes asks for such a check: it counts segments, not shards."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        uploader = await rig.start_uploader()
        rig.append(shard, 10)
        whole = replace(shard.segments[-1], remote=RemoteCopy(RemoteState.COMPLETE))
        seen = longest = 0

        class Many:
            """A shard of as many segments as a slice has units."""

            key = shard.key
            missing = ()

            @property
            def segments(self) -> list[Any]:
                nonlocal seen
                seen += UNITS_PER_SLICE
                return [whole] * UNITS_PER_SLICE

        def every() -> Iterator[Many]:
            return iter([Many() for _ in range(50)])

        async def neighbour() -> None:
            nonlocal longest
            before = seen
            while True:
                await asyncio.sleep(0)
                longest, before = max(longest, seen - before), seen

        with monkeypatch.context() as patched:
            patched.setattr(rig.shards, "all", every)
            beside = asyncio.create_task(neighbour())
            await uploader._report_all()
            beside.cancel()
            with suppress(asyncio.CancelledError):
                await beside
        assert seen == 50 * UNITS_PER_SLICE and longest == UNITS_PER_SLICE
