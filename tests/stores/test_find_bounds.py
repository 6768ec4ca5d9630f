"""Where a search ends: at the end of its range; past an object that does not answer, which it tells; at a store that is
away, for which it does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.event_loop.fair_turns import FairTurns
from stratalog.model.errors import Unavailable
from stratalog.objects import ObjectStore, open_store
from stratalog_node.admin import find as find_module
from stratalog_node.admin.find import Finder, SearchRequest
from support.cold_data import batches_from
from support.compacting import CompactWorld, compact_world

SEGMENTS = 4


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[CompactWorld]:
    bucket = str(tmp_path / "bucket")
    store = open_store(bucket)
    async with compact_world(store, bucket, tmp_path, has_key_index=True) as made:
        for number in range(SEGMENTS):
            await made.add([batches_from(15 * number, 5, epoch=number)])
        yield made
    await store.close()


class Hanging:
    """A store that never answers to a read of some objects."""

    def __init__(self, store: ObjectStore, keys: set[str]) -> None:
        self._store = store
        self._keys = keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> bytes:
        if key in self._keys:
            await asyncio.Event().wait()
        return await self._store.get(key)


async def finder_over(place: CompactWorld, hanging: set[int], end: int = 15 * SEGMENTS) -> Finder:
    segments = await place.segments()
    keys = {segments[number].remote.manifest_key or "" for number in hanging}
    (shard,) = (await place.world.client.snapshot()).shards
    view = SimpleNamespace(key=shard.key, log_start_offset=0, high_watermark=end, segments=segments)
    services: Any = SimpleNamespace(
        node_id=1,
        cluster_id=await place.world.client.read_cluster_id(),
        topic=lambda name: SimpleNamespace(name=name, topic_id=shard.key.topic_id, shard_count=1),
        readable=lambda _: [view],
        catalog=SimpleNamespace(leader_of=lambda _: (1, 0)),
        store=Hanging(place.store, keys),
    )
    return Finder(services, FairTurns())


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_module, "_SEGMENT_HANGS_S", 3.0)


@pytest.mark.fault("store-answer-object-search")
async def test_an_object_that_hangs_is_reported_and_the_others_are_searched(place: CompactWorld) -> None:
    finder = await finder_over(place, {1})
    told = await asyncio.gather(*(finder.find(SearchRequest("cold", key)) for key in (b"3", b"44")))
    assert [[one.offset for one in answer.records] for answer in told] == [[3], [44]]
    for answer in told:
        (left_out,) = answer.not_searched
        assert (left_out.from_offset, left_out.to_offset, answer.cursor) == (15, 30, None)
        assert "did not answer" in left_out.why


@pytest.mark.fault("client-searches-key-topic")
async def test_what_is_behind_the_end_of_a_range_inside_a_segment_is_not_found(place: CompactWorld) -> None:
    """As a mount of a snapshot ends."""
    finder = await finder_over(place, set(), end=20)
    for offset, found in ((3, [3]), (19, [19]), (20, []), (29, []), (31, [])):
        answer = await finder.find(SearchRequest("cold", b"%d" % offset))
        assert ([one.offset for one in answer.records], answer.cursor) == (found, None)


@pytest.mark.fault("store-answer-object-search")
async def test_a_store_that_hangs_is_an_error_and_no_answer(place: CompactWorld) -> None:
    with pytest.raises(Unavailable, match="no progress"):
        await (await finder_over(place, set(range(SEGMENTS)))).find(SearchRequest("cold", b"3"))
