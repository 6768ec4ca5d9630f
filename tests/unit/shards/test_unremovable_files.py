"""Files that should go and cannot be removed do not keep the node from serving."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.sealed_shards import sealed_shard
from support.shard_rig import ShardRig


@pytest.mark.fault("file-start-remove-segment")
async def test_a_start_succeeds_beside_an_unremovable_file_of_a_deleted_segment(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=2, size=100)
        key = shard.segments[0].key
        await rig.acknowledged(shard, b"kept")
        await shard.delete_records_before(2)
        await rig.until(lambda: shard.segments[0].key != key)
        path = rig.layout.segment(key)
        await rig.stop()
        path.unlink()
        path.mkdir()  # stands for whatever refuses it: another owner, a disk that fails
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is None
        assert await rig.read_values(shard, 2) == [b"kept"]
        assert path.is_dir()
