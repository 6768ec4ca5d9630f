"""What goes wrong with one shard on its way to the store stops no other shard, and is not blamed on the store."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from stratalog.model.errors import Unavailable
from stratalog.model.segment import RemoteState, Segment
from support.tier_rig import RigShard, TierRig, no_table


async def _shards(rig: TierRig, count: int) -> list[RigShard]:
    return [rig.shard(await rig.create_topic(f"topic-{number}")) for number in range(count)]


@pytest.mark.fault("fault-program-ends-upload")
async def test_a_fault_of_the_program_is_not_reported_as_a_store_that_is_away() -> None:
    """Each assertion in a table of producers stopped the uploads of the whole node, with the words "object store does
    not answer"."""
    async with TierRig() as rig:
        broken, *others = await _shards(rig, 3)

        async def asserting(segment: Segment) -> bytes:
            assert segment.key.shard_key != broken.key, "a bug"
            return await no_table(segment)

        with capture_logs() as lines:
            await rig.start_uploader(table_of=asserting)
            for shard in (broken, *others):
                rig.append(shard)
                await rig.seal(shard)
            await rig.until(lambda: rig.uploader.status().uploader.held)
            ended = [shard.segments[0].key for shard in others]
            await rig.until(lambda: all(rig.remote(key).remote.state is RemoteState.COMPLETE for key in ended))
        assert not [line for line in lines if "does not answer" in line["event"]]
        assert rig.uploader.status().uploader.store_away_ms == 0
        ((key, reason),) = rig.uploader.status().uploader.held
        assert key.shard_key == broken.key and "AssertionError" in reason


@pytest.mark.fault("fault-program-ends-upload")
async def test_a_disk_that_does_not_give_one_shards_data_is_not_reported_as_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with TierRig() as rig:
        broken, whole = await _shards(rig, 2)
        read = RigShard.read_committed_range

        async def failing(self: RigShard, *args: Any, **options: Any) -> Any:
            if self is broken:
                raise Unavailable("this disk gives nothing now")
            return await read(self, *args, **options)

        monkeypatch.setattr(RigShard, "read_committed_range", failing)
        with capture_logs() as lines:
            await rig.start_uploader()
            for shard in (broken, whole):
                rig.append(shard)
            await rig.until(lambda: rig.is_committed(whole) and rig.uploader.status().uploader.held)
        assert not [line for line in lines if "does not answer" in line["event"]]
        assert [key.shard_key for key, _ in rig.uploader.status().uploader.held] == [broken.key]
