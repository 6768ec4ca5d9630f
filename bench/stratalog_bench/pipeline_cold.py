"""Cells of `make bench-pipeline` on the cold tier as it was uploaded, compacted, and compacted and packed: how much
there is, what a key costs, and what a read of everything costs.

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

from flights import Flights

from stratalog.formats.records import Record, encode_batch
from stratalog.objects import open_store
from stratalog.stored.key_lookup import LookupCost, records_of
from stratalog_pipeline.cold.catalog import Catalog, each
from stratalog_pipeline.cold.committed import CommittedSegment
from support.compacting import CompactWorld, compact_world

SEGMENTS: Final = 20
PARTS: Final = 40
RECORDS_PER_BATCH: Final = 50
LOOKUPS: Final = 200
OBJECT_BYTES: Final = 64 << 20
FORMS: Final = ("as uploaded", "compacted", "compacted, packed")
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
        asyncio.run(self._all(runs))

    async def _all(self, runs: int) -> None:
        async with self._world() as place:
            await self._fill(place)
            await self._measure(FORMS[0], place, runs)
            for form, is_packing in ((FORMS[1], False), (FORMS[2], True)):
                wall, cpu = time.monotonic(), self._cpu()
                told = await place.compact(target_bytes=OBJECT_BYTES, is_packing=is_packing)
                assert not told.not_merged and told.merged == SEGMENTS, told
                self._note(form, "compaction, one thread", "s", time.monotonic() - wall)
                self._note(form, "compaction, CPU", "s", self._cpu() - cpu)
                await place.delete_what_metadata_do_not_name()
                await self._measure(form, place, runs)

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[CompactWorld]:
        bucket = str(self._folder / "bucket")
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

    async def _look_up(self, form: str, place: CompactWorld) -> None:
        """As `stratalog find --bucket` does, all segments at once, once it knows of them."""
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
        self._note(form, f"a key in {SEGMENTS} segments, p50", "ms", statistics.median(times))
        self._note(form, f"a key in {SEGMENTS} segments, p99", "ms", sorted(times)[len(times) * 99 // 100])
        self._note(form, "a key", "requests", (place.store.stats.requests - before) / LOOKUPS)
        self._note(form, "a key", "KiB", cost.bytes / 1024 / LOOKUPS)

    def _note(self, form: str, name: str, unit: str, value: float) -> None:
        self._rows.setdefault(f"{name}, {unit}", ColdRow(name, unit)).values[form] = value


async def _records(catalog: Catalog, key: bytes, cost: LookupCost, segment: CommittedSegment) -> list[Record]:
    manifest = await catalog.manifest_of(segment)
    return [record async for record in records_of(catalog.store, manifest, key, cost)]


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
