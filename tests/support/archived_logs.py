"""A topic in a bucket, its archive as Delta or Iceberg table, and logs that die, catch what they are given, or fail."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stratalog.objects import open_store
from stratalog_pipeline.jobs.archive.archive import Archive, Archived, ArchiveOptions
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat
from stratalog_pipeline.jobs.runners import one_by_one
from stratalog_pipeline.jobs.tables.table_log import SegmentFiles, TableLog
from stratalog_pipeline.jobs.tables.table_places import TablePlace, table_place
from support.archived_tables import add_segment, json_value
from support.cold_data import ColdShard


def flights(start: int, count: int) -> list[bytes | None]:
    return [json_value(number) for number in range(start, start + count)]


TWO_SEGMENTS = ([flights(0, 10), flights(10, 10)], [flights(20, 10)])


def log_of(options: ArchiveOptions, open_target: Any = None) -> TableLog:
    place = table_place(options.target)
    if options.table is TableFormat.DELTA:
        from stratalog_pipeline.jobs.tables.delta_log import DeltaLog

        return DeltaLog(place, options.topic, options.by)
    from stratalog_pipeline.jobs.tables.iceberg_log import IcebergLog

    opens = open_target or partial(open_store, options.target)
    return IcebergLog(place, opens, options.topic, options.by, options.kind)


def read_table(form: TableFormat, where: TablePlace, topic: str, *, is_dead: bool = False) -> list[dict[str, Any]]:
    """As a reader of the format sees it; in a directory, or in S3 for tables that have a log."""
    match form:
        case TableFormat.PARQUET:
            import pyarrow as pa
            import pyarrow.parquet as pq

            files = Path(where.base, topic, "dead" if is_dead else "data").rglob("*.parquet")
            tables = [pq.ParquetFile(file).read() for file in files]
            # No promotion of types: a table whose files disagree is none that Spark would read.
            found = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        case TableFormat.DELTA:
            import deltalake

            uri = where.uri(f"{topic}/{'dead' if is_dead else 'data'}")
            found = deltalake.DeltaTable(uri, storage_options=dict(where.delta_options)).to_pyarrow_table()
        case TableFormat.ICEBERG:
            from pyiceberg.table import StaticTable

            root = Path(where.base, topic, "dead") if is_dead else Path(where.base, topic)
            versions = (root / "metadata").glob("v*.metadata.json")
            newest = max(versions, key=lambda file: int(file.name[1:].partition(".")[0]))
            found = StaticTable.from_metadata(f"file://{newest}").scan().to_arrow()
    rows: list[dict[str, Any]] = found.to_pylist()
    return sorted(rows, key=lambda row: int(row.get("_offset", row.get("offset"))))


class LogPlace:
    """A bucket in a folder with a topic, and a folder for its table."""

    def __init__(self, folder: Path, table: TableFormat) -> None:
        self.bucket, self.target = str(folder / "bucket"), str(folder / "table")
        self.format = table

    async def fill(self, *segments: Sequence[Sequence[bytes | None]], into: ColdShard | None = None) -> ColdShard:
        store = open_store(self.bucket)
        cold = into or ColdShard(store)
        cold.store = store
        for parts in segments:
            await add_segment(cold, parts)
        await store.close()
        return cold

    async def expire(self, cold: ColdShard, how_many: int) -> None:
        cold.store = open_store(self.bucket)
        await cold.expire(how_many)
        await cold.store.close()

    def read(self, *, is_dead: bool = False) -> list[dict[str, Any]]:
        """Rows, or dead letters, by offset, as a reader of the format sees them."""
        return read_table(self.format, table_place(self.target), "cold", is_dead=is_dead)

    def options(self, **options: Any) -> ArchiveOptions:
        return ArchiveOptions(self.bucket, self.target, "cold", table=self.format, **options)

    def log(self, open_target: Any = None, kind: Kind = Kind.JSON) -> TableLog:
        return log_of(self.options(kind=kind), open_target)

    async def archive(self, log: TableLog | None = None, open_target: Any = None, **options: Any) -> Archived:
        job = Archive(self.options(**options), one_by_one, log=log, open_target=open_target)
        return await asyncio.to_thread(job.archive)

    async def archive_and_die(self, dies_at: int, *, is_before: bool) -> None:
        """In a process of its own, which ends by SIGKILL before or behind the commit of that number."""
        worker = multiprocessing.get_context("spawn").Process(
            target=_archive_and_die, args=(self.options(commit_segments=1), dies_at, is_before)
        )
        worker.start()
        await asyncio.to_thread(worker.join, 120)
        assert worker.exitcode == -signal.SIGKILL


class _DyingLog:
    def __init__(self, log: TableLog, dies_at: int, *, is_before: bool) -> None:
        self._log, self._left, self._is_before = log, dies_at, is_before
        self.prepare = log.prepare

    def commit(self, segments: Sequence[SegmentFiles]) -> None:
        self._left -= 1
        if self._left == 0 and self._is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        self._log.commit(segments)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _archive_and_die(options: ArchiveOptions, dies_at: int, is_before: bool) -> None:
    Archive(options, one_by_one, log=_DyingLog(log_of(options), dies_at, is_before=is_before)).archive()


class CatchingLog:
    """Commits nothing, and keeps what was to be committed."""

    def __init__(self) -> None:
        self.caught: list[Sequence[SegmentFiles]] = []

    def prepare(self, fields: Any) -> None:
        return None

    def commit(self, segments: Sequence[SegmentFiles]) -> None:
        self.caught.append(segments)
