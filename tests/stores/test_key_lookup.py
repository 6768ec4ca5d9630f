"""A key is found in cold data with two range reads per segment that has it, in every store; in no other segment with
more than one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.key_index import key_hash
from stratalog.formats.bucket.manifest import Manifest
from stratalog.model.errors import Corrupt, NotFound
from stratalog.objects import ObjectStore
from stratalog.stored.key_lookup import LookupCost, neighbours, records_of
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedSegment
from stratalog_pipeline.cold.cutting import Asked
from support.cold_data import CLUSTER_ID, FIRST_TIME_MS, ColdShard, batches_from

_HEADER_BYTES = 512


async def manifests_of(store: ObjectStore) -> tuple[Catalog, list[tuple[CommittedSegment, Manifest]]]:
    catalog = await Catalog.open(store, cluster_id=CLUSTER_ID)
    (shard,) = await catalog.shards(["cold"])
    return catalog, [(segment, await catalog.manifest_of(segment)) for segment in shard.segments]


async def found(store: ObjectStore, manifest: Manifest, key: bytes, cost: LookupCost) -> list[Record]:
    return [record async for record in records_of(store, manifest, key, cost)]


async def test_a_key_costs_two_range_reads_in_its_segment_and_one_in_every_other(store: ObjectStore) -> None:
    cold = ColdShard(store, has_key_index=True)
    for number in range(3):
        base = 2_000 * number
        parts = [batches_from(base + 400 * part, 20, records=20, epoch=number, codec=part) for part in range(5)]
        await cold.add(parts)
    _, segments = await manifests_of(store)
    for offset in (0, 399, 2_777, 5_999):
        cost, before, got = LookupCost(), store.stats.requests, []
        for _, manifest in segments:
            got += await found(store, manifest, b"%d" % offset, cost)
        assert [(record.offset, record.timestamp_ms) for record in got] == [(offset, FIRST_TIME_MS + offset)]
        assert (cost.pages, cost.reads) == (3, 1)
        assert store.stats.requests - before == 2 + 1 + 1, "a page of each segment, and the one batch"
    assert cost.bytes < 4 * 4_096 + 20 * 200, "a scan reads all of it"


async def test_a_key_that_is_nowhere_costs_one_range_read_per_segment(store: ObjectStore) -> None:
    cold = ColdShard(store, has_key_index=True)
    await cold.add([batches_from(0, 5)])
    _, segments = await manifests_of(store)
    cost = LookupCost()
    assert await found(store, segments[0][1], b"nobody", cost) == []
    assert (cost.pages, cost.reads, cost.bytes) == (1, 0, 4_096)


async def test_batches_side_by_side_are_read_at_once(store: ObjectStore) -> None:
    cold = ColdShard(store, has_key_index=True)
    batches = [
        encode_batch([Record(n, 5, b"often" if n % 10 else b"seldom", b"v" * 50)], base_offset=n, epoch=0)
        for n in range(100)
    ]
    await cold.add([batches[:50], batches[50:]])
    _, segments = await manifests_of(store)
    cost = LookupCost()
    often = await found(store, segments[0][1], b"often", cost)
    assert [record.offset for record in often] == [n for n in range(100) if n % 10]
    assert (cost.pages, cost.reads) == (1, 10), "nine of ten lie side by side"


async def test_a_key_of_very_many_batches_costs_one_range_read_more(store: ObjectStore) -> None:
    cold = ColdShard(store, has_key_index=True)
    batches = [encode_batch([Record(n, 5, b"hot", b"v")], base_offset=n, epoch=0) for n in range(500)]
    await cold.add([batches[:250], batches[250:]])
    _, segments = await manifests_of(store)
    cost, before = LookupCost(), store.stats.requests
    assert [one.offset for one in await found(store, segments[0][1], b"hot", cost)] == list(range(500))
    assert (cost.pages, cost.reads) == (2, 2), "a page, what did not fit into it, and the batches of each part at once"
    assert store.stats.requests - before == 4


async def test_planning_reads_only_chunks_that_may_hold_a_key(store: ObjectStore) -> None:
    cold = ColdShard(store, has_key_index=True)
    await cold.add([batches_from(0, 5), batches_from(15, 5), batches_from(30, 5)])
    cold.has_key_index = False
    await cold.add([batches_from(45, 5, epoch=1)])
    catalog, _ = await manifests_of(store)
    shards = await catalog.shards(["cold"])

    async def planned(*keys: bytes) -> list[int]:
        ranges = await catalog.ranges(shards, Asked(keys=frozenset(keys)))
        return [one.from_offset for one in ranges]

    assert await planned(b"17") == [15, 45], "a segment without a key index is read whole"
    assert await planned(b"3", b"44") == [0, 30, 45]
    assert await planned(b"nobody") == [45]


@pytest.fixture
async def one_segment(store: ObjectStore) -> AsyncIterator[tuple[ObjectStore, Manifest]]:
    cold = ColdShard(store, has_key_index=True)
    await cold.add([batches_from(0, 5, codec=4)])
    _, segments = await manifests_of(store)
    yield store, segments[0][1]


async def rewrite(store: ObjectStore, key: str, change: Callable[[bytearray], None]) -> None:
    body = bytearray(await store.get(key))
    change(body)
    await store.delete([key])
    await store.put(key, [bytes(body)])


async def test_damage_is_an_error_that_names_object_and_byte(one_segment: tuple[ObjectStore, Manifest]) -> None:
    store, manifest = one_segment
    run, part = manifest.key_runs[0], manifest.parts[0]

    def flip(at: int) -> Callable[[bytearray], None]:
        def change(body: bytearray) -> None:
            body[at] ^= 1

        return change

    damages: list[tuple[str, int]] = [(run.object_key, 100), (part.object_key, _HEADER_BYTES + 80)]
    for object_key, at in damages:
        await rewrite(store, object_key, flip(at))
        with pytest.raises(Corrupt) as refused:
            await found(store, manifest, b"1", LookupCost())
        assert refused.value.source == object_key
        await rewrite(store, object_key, flip(at))
    assert len(await found(store, manifest, b"1", LookupCost())) == 1
    await store.delete([run.object_key])
    with pytest.raises(NotFound):
        await found(store, manifest, b"1", LookupCost())


async def test_a_key_of_the_same_hash_is_not_mistaken_for_it(one_segment: tuple[ObjectStore, Manifest]) -> None:
    """A hash is a hint: here both keys have the same one."""
    store, manifest = one_segment
    same = _same_hash(b"1")
    assert same != b"1"
    assert key_hash(same) == key_hash(b"1")
    cost = LookupCost()
    assert await found(store, manifest, same, cost) == []
    assert cost.reads == 1, "the batch was read, and its keys compared"


def _same_hash(key: bytes) -> bytes:
    """Of 16 bytes: whatever the first word makes of the state, the second one can make the wanted one of it. The last
    steps are the same for all keys, so they need not be undone."""
    from stratalog.formats.bucket.key_index import HASH_FACTOR

    mask = (1 << 64) - 1
    inverse = pow(HASH_FACTOR, -1, 1 << 64)

    def step(state: int, word: int) -> int:
        value = (state ^ word) * HASH_FACTOR & mask
        return value ^ value >> 32

    wanted = step(len(key) * HASH_FACTOR & mask, int.from_bytes(key, "little"))
    before = step(16 * HASH_FACTOR & mask, int.from_bytes(b"another ", "little"))
    undone = (wanted ^ wanted >> 32) * inverse & mask
    return b"another " + (undone ^ before).to_bytes(8, "little")


def test_neighbours_are_bounded() -> None:
    from stratalog.formats.bucket.key_index import KeyEntry

    entries = [KeyEntry(0, 512 + n * (1 << 20), 1 << 20) for n in range(6)] + [KeyEntry(1, 512, 9 << 20)]
    assert [len(some) for some in neighbours(entries)] == [4, 2, 1]
    assert list(neighbours([])) == []
