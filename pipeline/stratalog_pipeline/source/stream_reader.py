"""Reads what is committed from batch to batch, exactly once together with Spark's checkpoint.

A batch is what lies between two positions, and is the same however often it is read. Retention that was faster than the
stream is an error, or, with `onGap=report`, a warning in the log that names the offsets.
Spark's checkpoint keeps where a batch ends, and not where the first one began: it asks for that again. So the first
batch of a query is empty, from `BEGINNING` to where the query begins, which is looked up only then.
Planning lives in one process of Spark's for as long as the query runs; reading, in tasks that know their part only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from stratalog.telemetry.logs import logger
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedShard
from stratalog_pipeline.cold.cutting import Asked, GapInLog, PartRange, cut
from stratalog_pipeline.cold.progress import (
    FORMAT,
    Position,
    TriggerDelay,
    advance,
    advance_by_offsets,
    beginning,
    between,
    end_of,
    from_json,
    gaps,
    to_json,
)
from stratalog_pipeline.source.batch_reader import ChunkPartition
from stratalog_pipeline.source.options import ReadOptions
from stratalog_pipeline.source.planning import chosen_shards, offsets_of, open_catalog, tables

_MOST_MANIFESTS = 10_000
"""Remembered from one batch to the next."""

BEGINNING: dict[str, Any] = {"format": FORMAT, "topics": {}, "is_beginning": True}
"""Before the first batch of a query."""

_log = logger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self._runner: asyncio.Runner | None = None
        self._catalog: Catalog | None = None
        self._target: Position | None = None
        least = options.min_offsets_per_trigger
        self._delay = None if least is None else TriggerDelay(least, options.max_trigger_delay_ms)

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get no loop and no connection."""
        return {**self.__dict__, "_runner": None, "_catalog": None}

    # Positions ------------------------------------------------------------------------------------------------------
    def initialOffset(self) -> dict[str, Any]:
        """Spark asks for it whenever the query starts, even if a checkpoint says where to continue."""
        return BEGINNING

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if start == BEGINNING:
            return to_json(self._run(self._begin()))
        return to_json(self._run(self._latest(from_json(start), limit)))

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(end_of(self._run(self._shards())))

    def prepareForTriggerAvailableNow(self) -> None:
        """What is committed now is the end of the query."""
        self._target = end_of(self._run(self._shards()))

    # Work -----------------------------------------------------------------------------------------------------------
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == BEGINNING:
            return []
        found: list[InputPartition] = self._run(self._partitions(from_json(start), from_json(end)))
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, ChunkPartition):
            yield from tables(self.options, partition.cluster_id, partition.ranges, self.columns, Asked())

    def stop(self) -> None:
        if self._runner is not None:
            if self._catalog is not None:
                self._runner.run(self._catalog.store.close())
            self._runner.close()
        self._runner, self._catalog = None, None

    # On the loop ----------------------------------------------------------------------------------------------------
    def _run(self, work: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    async def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = await open_catalog(self.options)
        if len(self._catalog.manifests) > _MOST_MANIFESTS:
            self._catalog.manifests.clear()
        return self._catalog

    async def _shards(self) -> list[CommittedShard]:
        return await chosen_shards(await self._open(), self.options, is_beginning=False)

    async def _begin(self) -> Position:
        shards = await chosen_shards(await self._open(), self.options)
        offsets = await offsets_of(await self._open(), shards, self.options.start)
        return beginning(shards, offsets)

    async def _latest(self, start: Position, limit: ReadLimit) -> Position:
        shards = await self._shards()
        if self._target is not None:
            shards = [one.limited(self._target.at(one.key)) for one in shards]
        self._report_gaps(start, shards)
        # With availableNow all that is committed at the start is read, however little it is.
        delay = None if self._target is not None else self._delay
        if delay is not None and not delay.is_due(start, shards, time.monotonic_ns() // 1_000_000):
            return start
        if isinstance(limit, ReadMaxRows):
            return advance_by_offsets(start, shards, limit.max_rows)
        if not isinstance(limit, ReadMaxBytes):
            return advance(start, shards, (), None)
        ranges = await self._ranges(start, end_of(shards), shards)
        return advance(start, shards, ranges, limit.max_bytes)

    async def _partitions(self, start: Position, end: Position) -> list[InputPartition]:
        shards = await self._shards()
        self._report_gaps(start, shards)
        catalog = await self._open()
        ranges = await self._ranges(start, end, shards)
        works = cut(ranges, self.options.partition_bytes)
        return [ChunkPartition(catalog.names.cluster_id, work.ranges) for work in works]

    async def _ranges(self, start: Position, end: Position, shards: Sequence[CommittedShard]) -> list[PartRange]:
        wanted = {one: found for one in shards if (found := between(start, end, one)) is not None}
        starts = {(one.topic, one.key.shard): found.from_offset for one, found in wanted.items()}
        ends = {(one.topic, one.key.shard): found.to_offset for one, found in wanted.items()}
        return await (await self._open()).ranges(wanted, Asked(starts=starts, ends=ends))

    def _report_gaps(self, start: Position, shards: Sequence[CommittedShard]) -> None:
        """Raises: GapInLog."""
        for gap in gaps(start, shards):
            if not self.options.asked.is_gap_allowed:
                raise GapInLog(str(gap))
            _log.warning(
                "records expired before they were read",
                topic=gap.topic,
                shard=gap.shard,
                from_offset=gap.from_offset,
                to_offset=gap.to_offset,
            )
