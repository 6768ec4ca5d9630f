"""Where a read that is given a time begins, if a batch before that time holds no records."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.formats.batches.compression import Codec
from stratalog.objects import open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.source.planning import first_offset_at
from support.cold_data import FIRST_TIME_MS, ColdShard, batch_at
from support.hostile_batches import GARBAGE, claiming


@pytest.mark.fault("stream-batch-holds-records")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_garbage_holds_up_no_look_up_by_time(tmp_path: Path, codec: Codec) -> None:
    """A stream could not begin at a time whose record has such a batch before it in its part."""
    store = open_store(str(tmp_path))
    try:
        cold = ColdShard(store)
        garbage = claiming(GARBAGE, 10, FIRST_TIME_MS + 10**9, codec, base_offset=10)
        await cold.add([[batch_at(0, 10), garbage, batch_at(20, 10)]])
        catalog = await Catalog.open(store, cluster_id=None)
        (shard,) = await catalog.shards(None)
        for at_ms, expected in ((0, 0), (9, 9), (10, 20), (25, 25), (30, None)):
            assert await first_offset_at(catalog, shard, FIRST_TIME_MS + at_ms) == expected
    finally:
        await store.close()
