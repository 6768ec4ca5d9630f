"""Whatever happens in whatever order (appends, rolls, seals, failing puts, crashes, sweeps), the end is the same.

The parts cover exactly what is committed, contiguous, with the right digests; all that is referenced exists; nothing
else does.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.segment import RemoteState, Segment
from support.faulty_store import Fault
from support.tier_rig import RIG_LIMITS, TierRig

LIMITS = replace(
    RIG_LIMITS,
    chunk_bytes=4_000,
    bundle_bytes=20_000,
    in_flight_bytes=60_000,
    put_timeout_ms=15,
    backoff_ms=1,
    backoff_cap_ms=50,
    merge_parts=3,
    hold_ms=200,
)
FAULTS = st.sampled_from([Fault.NONE, Fault.NONE, Fault.NONE, *Fault])

steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.sampled_from([90, 300, 1_500, 9_000])),
    st.tuples(st.just("append"), st.integers(0, 2), st.just(100)),
    st.tuples(st.just("roll"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("time"), st.integers(1, 3_000), st.just(0)),
    st.tuples(st.just("turn"), st.integers(1, 30), st.just(0)),
    st.tuples(st.just("crash"), st.booleans(), st.just(0)),
    st.tuples(st.just("away"), st.booleans(), st.just(0)),
    st.tuples(st.just("retain"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("sweep"), st.just(0), st.just(0)),
)


class Story:
    """Performs steps on a rig; knows which segments are rolled and not sealed."""

    def __init__(self, rig: TierRig) -> None:
        self.rig = rig
        self.ended: list[tuple[int, Segment]] = []

    async def perform(self, step: tuple[str, int, int]) -> None:
        kind, number, detail = step
        rig = self.rig
        shards = list(rig.shards.all())
        match kind:
            case "append":
                rig.append(shards[number], detail)
            case "roll":
                segment = await rig.roll(shards[number])
                self.ended.append((number, segment))
                if detail:
                    await self.seal_all()
            case "time":
                rig.advance(number)
            case "turn":
                for _ in range(number):
                    await asyncio.sleep(0)
                rig.uploader.poke()
            case "crash":
                await rig.crash_uploader()
                if number:
                    rig.clock.now_ms += 1_000
                await rig.start_uploader()
                await self.until_begun()
            case "away":
                rig.store.is_away = bool(number)
            case "retain":
                heads = [segment for segment in shards[number].segments if segment.seal is not None]
                if heads:
                    await rig.meta.perform(AdvanceLogStart(shards[number].key, heads[0].seal.end_offset))
            case "sweep":
                rig.clock.now_ms += 700_000
                if not rig.store.is_away:
                    await rig.janitor().sweep_now()
                    await rig.janitor().delete_once()

    async def until_begun(self) -> None:
        """Let a life get as far as its lock, so that plots are about uploads; a store that is away does not."""
        for _ in range(200):
            if self.rig.uploader.lock.current is not None or self.rig.store.is_away:
                return
            self.rig.clock.now_ms += 5
            await asyncio.sleep(0.0005)

    async def seal_all(self) -> None:
        for number, segment in self.ended:
            shard = list(self.rig.shards.all())[number]
            if segment.key in shard.copies and self.rig.catalog.segment(segment.key) is not None:
                await self.rig.seal(shard, segment)
        self.ended.clear()


async def play(plot: list[tuple[str, int, int]], faults: list[Fault]) -> None:
    async with TierRig(LIMITS) as rig:
        await rig.create_topic(shards=3)
        rig.store.script.extend(faults)
        await rig.start_uploader()
        story = Story(rig)
        await story.until_begun()
        for step in plot:
            await story.perform(step)
            await rig.check() if rig.rng.random() < 0.1 else None
        rig.store.is_away = False
        rig.store.script.clear()
        await story.seal_all()
        await rig.settle()
        shards = list(rig.shards.all())
        for shard in shards:
            assert rig.is_committed(shard)
            assert all(
                segment.remote.state is RemoteState.COMPLETE for segment in shard.segments if segment.seal is not None
            )
        janitor = rig.janitor()
        for _ in range(4):
            rig.advance(700_000)
            await janitor.delete_once()
            await janitor.sweep_now()
            await rig.settle()
        assert set(await rig.store.keys()) == await rig.check(), "orphans are all swept"
        assert not rig.uploader.status().uploader.held


@pytest.mark.fault("merge-races-upload-answers")
@given(plot=st.lists(steps, min_size=1, max_size=40), faults=st.lists(FAULTS, max_size=30))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving_ends_with_every_committed_byte_in_the_store_once(
    plot: list[tuple[str, int, int]], faults: list[Fault]
) -> None:
    """F6, F27, F31, F42, F46, F49, F84 together."""
    asyncio.run(play(plot, faults))
