"""Reads a bucket once: plans on the driver, reads chunks in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from stratalog_pipeline.cold.cutting import PartRange
from stratalog_pipeline.source.filters import narrow
from stratalog_pipeline.source.options import ReadOptions
from stratalog_pipeline.source.planning import plan, tables


class ChunkPartition(InputPartition):
    """What one task reads."""

    def __init__(self, cluster_id: str, ranges: Sequence[PartRange]) -> None:
        self.cluster_id = cluster_id
        self.ranges = tuple(ranges)


class PlainReader(DataSourceReader):
    """Without pushdown. Spark refuses a reader that offers it while `spark.sql.python.filterPushdown.enabled` is
    off."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self.asked = options.asked

    def partitions(self) -> Sequence[InputPartition]:
        cluster_id, works = plan(self.options, self.asked)
        return [ChunkPartition(cluster_id, ranges) for ranges in works]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, ChunkPartition):  # where there is nothing to read Spark asks with one of its own
            yield from tables(self.options, partition.cluster_id, partition.ranges, self.columns, self.asked)


class PushdownReader(PlainReader):
    def pushFilters(self, filters: Iterable[Any]) -> Iterable[Any]:
        self.asked, left = narrow(self.asked, filters)
        return left
