"""A bucket that grows and expires under a reader, and runs of a Spark stream over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from stratalog.formats.bucket.object_names import SegmentObject, SegmentObjectName
from stratalog.objects import ObjectStore, open_store
from support.cold_data import ColdShard, batches_from
from support.cold_reading import put_shard

_NO_PYTHON = "Python worker failed to connect back"


def in_bucket(url: str, work: Callable[[ObjectStore], Awaitable[Any]]) -> Any:
    """What `work` returns, done on a store of its own."""

    async def run() -> Any:
        store = open_store(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def damage(url: str, key: str, position: int) -> None:
    """Flips a bit of an object, in whatever store it is."""

    async def flip(store: ObjectStore) -> None:
        body = bytearray(await store.get(key))
        body[position] ^= 1
        await store.delete([key])
        await store.put(key, [bytes(body)])

    in_bucket(url, flip)


class GrowingBucket:
    """A shard that grows by a segment of 30 offsets, in two parts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shard = ColdShard(open_store("memory:"))
        self.expired = 0
        """Segments, the oldest ones."""

    def grow(self, segments: int = 1) -> None:
        async def add(store: ObjectStore) -> None:
            self.shard.store = store
            for _ in range(segments):
                epoch, base = len(self.shard.segments), self.shard.end_offset
                await self.shard.add([batches_from(base + 15 * n, 5, epoch=epoch) for n in range(2)])

        in_bucket(self.url, add)

    def expire(self, segments: int) -> None:
        """The oldest ones, as nodes do it: metadata say so, then manifests go, then what they named."""

        async def delete(store: ObjectStore) -> None:
            self.shard.store = store
            everything = self.shard.segments
            gone = everything[self.expired : self.expired + segments]
            self.expired += segments
            self.shard.segments = everything[self.expired :]
            await put_shard(self.shard, log_start_offset=gone[-1].end_offset or 0)
            self.shard.segments = everything
            await store.delete([one.remote.manifest_key or "" for one in gone])
            for one in gone:
                prefix = self.shard.names.segment_prefix(one.key)
                await store.delete([info.key async for info in store.list(prefix)])

        in_bucket(self.url, delete)

    def part_sizes(self) -> dict[tuple[int, int], int]:
        """Bytes of each chunk that is there, by its offsets."""

        async def chunk_sizes(store: ObjectStore) -> dict[tuple[int, int], int]:
            found = {}
            async for info in store.list(self.shard.names.data_prefix):
                name = self.shard.names.parse(info.key)
                if isinstance(name, SegmentObjectName) and name.kind is SegmentObject.CHUNK:
                    found[name.from_offset, name.to_offset] = info.size_bytes
            return found

        found: dict[tuple[int, int], int] = in_bucket(self.url, chunk_sizes)
        return found


class Stream:
    """Runs of one query: each continues from the checkpoint until it has read all committed records."""

    def __init__(self, spark: Any, bucket: GrowingBucket, folder: Path, **options: str) -> None:
        self.spark, self.bucket, self.folder, self.options = spark, bucket, folder, options
        self.batches: list[list[int]] = []
        self.before_reading: Callable[[], None] = lambda: None
        """Called for each batch once it is planned, and before its tasks begin."""

    def run(self, fail_at: int | None = None) -> None:
        """A machine that is too busy to start a Python within ten seconds, which Spark has fixed, is asked again."""
        for is_last in (False, False, True):
            query = self.start({"availableNow": True}, fail_at)
            try:
                assert query.awaitTermination(240), "the query went on forever"
                return
            except Exception as error:
                if is_last or _NO_PYTHON not in str(error):
                    raise

    def start(self, trigger: dict[str, Any], fail_at: int | None = None) -> Any:
        def check_batch(frame: Any, _: int) -> None:
            self.before_reading()
            found = sorted(row.offset for row in frame.select("offset").collect())
            if fail_at is not None and fail_at in found:
                raise RuntimeError("the sink is away")
            self.batches.append(found)

        frame = self.spark.readStream.format("stratalog").options(**self.options).load(self.bucket.url)
        writer = frame.writeStream.foreachBatch(check_batch).trigger(**trigger)
        return writer.option("checkpointLocation", str(self.folder)).start()

    @property
    def filled(self) -> list[list[int]]:
        """Batches that had something: the first one only writes down where the stream begins."""
        return [batch for batch in self.batches if batch]

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch]
