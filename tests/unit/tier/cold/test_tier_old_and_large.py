"""A shard that has lived long: offsets beyond 32 bits, everything expired once, and still it uploads and is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.model.commands.table_commands import RollSegment
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader
from support.tier_rig import RIG_LIMITS, TierRig
from support.waiting import eventually

FAR = (1 << 33) + 5
DELAY_MS = 60_000


@pytest.mark.fault("merge-races-upload-answers")
async def test_f34_offsets_beyond_32_bits_go_up_merge_and_come_back() -> None:
    """F34: 64 bits everywhere, in parts, index, manifest, names and reads."""
    async with TierRig(replace(RIG_LIMITS, interval_ms=50)) as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.meta.perform(RollSegment(shard.segments[0].key, FAR))
        await eventually(lambda: shard.segments[-1].base_offset == FAR)
        await rig.start_uploader()
        for _ in range(40):
            rig.append(shard, 1_000, records=3)
            await rig.until(lambda: shard.segments[-1].remote.commit_offset == shard.high_watermark)
        segment = await rig.seal(shard)
        await rig.until(lambda: rig.is_complete(segment))
        await rig.check()
        remote = rig.remote(segment)
        assert remote.end_offset == FAR + 120

        async def reload(key: object) -> None:
            return None

        limits = ColdReadLimits(window_min_bytes=4096, window_max_bytes=65536, cache_bytes=1 << 20, bytes_per_s=None)
        reader = ColdReader(rig.store, rig.names, limits, reload)
        offset, found = FAR + 1, []
        while offset < FAR + 120:
            data = b"".join(bytes(piece) for piece in await reader.read([remote], offset, 10_000))
            headers = [header for _, header in walk(data, source="cold")]
            found += [header.base_offset for header in headers]
            offset = headers[-1].end_offset
        assert found == list(range(FAR, FAR + 120, 3)), "from the batch that holds the offset, each once"
        await reader.close()


@pytest.mark.fault("bulk-deletion-stops-halfway")
async def test_f32_uploads_continue_after_everything_has_expired() -> None:
    """F32: nothing is left of what was uploaded, not even a manifest; the next record goes up like the first."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(retention_ms="1000"))
        await rig.start_uploader()
        rig.append(shard)
        sealed = await rig.seal(shard)
        await rig.until(lambda: rig.is_complete(sealed))
        rig.advance(10_000)
        await rig.retention().run_once()
        await eventually(lambda: shard.log_start_offset == 1)
        rig.advance(DELAY_MS)
        assert await rig.janitor().delete_once() == 1
        rig.advance(3_600_000)
        await rig.janitor().sweep_now()
        rig.advance(DELAY_MS)
        await rig.janitor().sweep_now()
        assert await rig.store.keys() == []
        rig.append(shard)
        await rig.settle()
        assert rig.is_committed(shard)
        again = await rig.seal(shard)
        await rig.until(lambda: rig.is_complete(again))
        await rig.check()
