"""Cells of `make bench-pipeline` on the cold tier as it was uploaded, compacted, and compacted and packed: how much
there is, what a key costs by the index and by a scan, and what a read of everything costs. A key is looked up on an S3
server as well, where that is built.

The records are the flights of the demo as JSON, with keys that are all different: the worst case of a key index.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from flights import Flights

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.objects import open_store
from stratalog.stored.key_lookup import LookupCost, records_of
from stratalog_pipeline.cold.catalog import Catalog, each
from stratalog_pipeline.cold.committed import CommittedSegment, CommittedShard
from stratalog_pipeline.cold.cutting import OffsetRange, ranges_within
from stratalog_pipeline.cold.part_records import fetch_part, tables_of
from stratalog_pipeline.decode.columns import Wanted
from support.compacting import CompactWorld, compact_world
from support.s3_servers import versitygw_binary, versitygw_server

SEGMENTS: Final = 20
PARTS: Final = 40
RECORDS_PER_BATCH: Final = 50
LOOKUPS: Final = 200
SCANS: Final = 12
"""For a key without its index. Of so few the p99 is the longest."""
OBJECT_BYTES: Final = 64 << 20
FORMS: Final = ("as uploaded", "compacted", "compacted, packed")
PACKING: Final = ((FORMS[1], False), (FORMS[2], True))
ON_S3: Final = " on S3"
_FIRST_MS: Final = 1_700_000_000_000


@dataclass
class ColdRow:
    """`values`: by form."""

    name: str
    unit: str
    values: dict[str, float] = field(default_factory=dict)


class ColdCells:
    """`rows` after `run`."""

    def __init__(
        self, folder: Path, scan: Callable[[str], int], find: Callable[[str, bytes], int], cpu: Callable[[], float]
    ) -> None:
        """`scan`: reads everything of a bucket by Spark, and returns how many records there are; `find`: the records of
        a key, by Spark's pushdown. `cpu`: seconds that were used so far."""
        self._folder, self._scan, self._find, self._cpu = folder, scan, find, cpu
        flights = Flights()
        self._values = flights.values
        self._rows: dict[str, ColdRow] = {}

    @property
    def rows(self) -> list[ColdRow]:
        return list(self._rows.values())

    def run(self, runs: int) -> None:
        asyncio.run(self._on_directory(runs))
        if versitygw_binary() is not None:
            with versitygw_server(self._folder / "s3") as server:
                asyncio.run(self._on_s3(server.url()))

    async def _on_directory(self, runs: int) -> None:
        async with self._world(str(self._folder / "bucket")) as place:
            await self._fill(place)
            await self._measure(FORMS[0], place, runs)
            for form, is_packing in PACKING:
                wall, cpu = time.monotonic(), self._cpu()
                await _compact(place, is_packing=is_packing)
                self._note(form, "compaction, one thread", "s", time.monotonic() - wall)
                self._note(form, "compaction, CPU", "s", self._cpu() - cpu)
                await place.delete_what_metadata_do_not_name()
                await self._measure(form, place, runs)

    async def _on_s3(self, bucket: str) -> None:
        async with self._world(bucket) as place:
            await self._fill(place)
            await self._look_up(FORMS[0], place, ON_S3)
            for form, is_packing in PACKING:
                await _compact(place, is_packing=is_packing)
                await place.delete_what_metadata_do_not_name()
                await self._look_up(form, place, ON_S3)

    @asynccontextmanager
    async def _world(self, bucket: str) -> AsyncIterator[CompactWorld]:
        store = open_store(bucket)
        try:
            with tempfile.TemporaryDirectory(dir=self._folder) as meta:
                async with compact_world(store, bucket, Path(meta), has_key_index=True) as place:
                    yield place
        finally:
            await store.close()

    async def _fill(self, place: CompactWorld) -> None:
        per_part = len(self._values) // (SEGMENTS * PARTS)
        for segment in range(SEGMENTS):
            parts = [
                self._batches(segment, first, first + per_part)
                for first in range(segment * PARTS * per_part, (segment + 1) * PARTS * per_part, per_part)
            ]
            await place.add(parts)
        self._values = self._values[: SEGMENTS * PARTS * per_part]

    def _batches(self, epoch: int, start: int, end: int) -> list[bytes]:
        return [
            encode_batch(
                [
                    Record(at, _FIRST_MS + at, b"%012d" % at, self._values[at])
                    for at in range(first, min(first + RECORDS_PER_BATCH, end))
                ],
                base_offset=first,
                epoch=epoch,
            )
            for first in range(start, end, RECORDS_PER_BATCH)
        ]

    async def _measure(self, form: str, place: CompactWorld, runs: int) -> None:
        manifests = await place.manifests()
        sizes = {key: size for manifest in manifests for key, size in manifest.object_sizes.items()}
        chunks = {part.object_key for manifest in manifests for part in manifest.parts}
        self._note(form, "chunks", "objects", len(chunks))
        self._note(form, "chunks", "MiB", sum(sizes[key] for key in chunks) / (1 << 20))
        await self._look_up(form, place)
        for key in (b"%012d" % (len(self._values) // 2), b"%012d" % 7):
            assert await asyncio.to_thread(self._find, place.bucket, key) == 1
        found = [
            await asyncio.to_thread(self._timed, lambda: self._find(place.bucket, b"%012d" % 4_711))
            for _ in range(runs)
        ]
        self._note(form, "Spark, one key by the index", "s", statistics.median(wall for wall, _ in found))
        found = [await asyncio.to_thread(self._timed, lambda: self._scan(place.bucket)) for _ in range(runs)]
        mib = sum(map(len, self._values)) / (1 << 20)
        self._note(form, "Spark, everything", "s", statistics.median(wall for wall, _ in found))
        self._note(
            form, "Spark, everything", "MiB of values/s per core", mib / statistics.median(cpu for _, cpu in found)
        )

    def _timed(self, work: Callable[[], int]) -> tuple[float, float]:
        wall, cpu = time.monotonic(), self._cpu()
        work()
        return time.monotonic() - wall, self._cpu() - cpu

    async def _look_up(self, form: str, place: CompactWorld, where: str = "") -> None:
        """As `stratalog find --bucket` does, all segments at once, once it knows of them. Then without the index."""
        catalog = await Catalog.open(place.store, cluster_id=None, meta_url=place.meta_url)
        (shard,) = await catalog.shards(["cold"])
        cost, times = LookupCost(), []
        before = 0
        for number, at in enumerate(random.Random(1).sample(range(len(self._values)), LOOKUPS + 1)):
            if number == 1:  # the first one fetches the manifests
                cost, before = LookupCost(), place.store.stats.requests
                times.clear()
            started = time.monotonic()
            got = await each(shard.segments, partial(_records, catalog, b"%012d" % at, cost))
            times.append(1000 * (time.monotonic() - started))
            assert [record.offset for some in got for record in some] == [at]
        name = f"a key in {SEGMENTS} segments{where}"
        self._note_times(form, name, times)
        self._note(form, f"{name}, each", "requests", (place.store.stats.requests - before) / LOOKUPS)
        self._note(form, f"{name}, each", "KiB", cost.bytes / 1024 / LOOKUPS)
        await self._scan_for_keys(form, place, catalog, shard, f"{name} by a scan")

    async def _scan_for_keys(
        self, form: str, place: CompactWorld, catalog: Catalog, shard: CommittedShard, name: str
    ) -> None:
        """As a reader without the index would: every chunk, checked and decoded, and only the keys of it."""
        times, before, read_bytes = [], place.store.stats.requests, 0
        for at in random.Random(2).sample(range(len(self._values)), SCANS):
            started = time.monotonic()
            got = await each(shard.segments, partial(_scanned, catalog, shard, b"%012d" % at))
            times.append(1000 * (time.monotonic() - started))
            assert [offset for offsets, _ in got for offset in offsets] == [at]
            read_bytes += sum(size_bytes for _, size_bytes in got)
        self._note_times(form, name, times)
        self._note(form, f"{name}, each", "requests", (place.store.stats.requests - before) / SCANS)
        self._note(form, f"{name}, each", "KiB, unpacked", read_bytes / 1024 / SCANS)

    def _note_times(self, form: str, name: str, times_ms: list[float]) -> None:
        self._note(form, f"{name}, p50", "ms", statistics.median(times_ms))
        self._note(form, f"{name}, p99", "ms", sorted(times_ms)[len(times_ms) * 99 // 100])

    def _note(self, form: str, name: str, unit: str, value: float) -> None:
        self._rows.setdefault(f"{name}, {unit}", ColdRow(name, unit)).values[form] = value


async def _records(catalog: Catalog, key: bytes, cost: LookupCost, segment: CommittedSegment) -> list[Record]:
    manifest = await catalog.manifest_of(segment)
    return [record async for record in records_of(catalog.store, manifest, key, cost)]


async def _scanned(
    catalog: Catalog, shard: CommittedShard, key: bytes, segment: CommittedSegment
) -> tuple[list[int], int]:
    """Offsets of the records of a key, and how many bytes were read for them."""
    manifest = await catalog.manifest_of(segment)
    whole = OffsetRange(segment.base_offset, segment.end_offset)
    found: list[int] = []
    size_bytes = 0
    for planned in ranges_within(shard.topic, segment, manifest.parts, manifest.seal, whole):
        part = await fetch_part(catalog.store, catalog.names, planned)
        size_bytes += planned.part.size_bytes
        for table in tables_of(part, Wanted(("offset", "key"))):
            found += pc.filter(table["offset"], pc.equal(table["key"], pa.scalar(key, table["key"].type))).to_pylist()
    return found, size_bytes


async def _compact(place: CompactWorld, *, is_packing: bool) -> None:
    told = await place.compact(target_bytes=OBJECT_BYTES, is_packing=is_packing)
    assert not told.not_merged and told.merged == SEGMENTS, told


def report(rows: list[ColdRow]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "",
        f"The flights of the demo as JSON, {SEGMENTS} segments in a directory, {RECORDS_PER_BATCH} records a batch, "
        "keys that are all different:",
        "",
        f"| what | {' | '.join(FORMS)} |",
        "|---|--:|--:|--:|",
    ]
    for row in rows:
        cells = " | ".join(f"{row.values[form]:,.4g}" if form in row.values else "" for form in FORMS)
        lines.append(f"| {row.name}, {row.unit} | {cells} |")
    return lines
