"""Commits an archive's files to Iceberg tables: `<topic>`, partitioned by the day of a record, and `<topic>/dead`.

One commit is one new metadata file, and holds all of it: the files of some segments, columns that are new, and a
property of the table for each segment. Properties are kept by each later commit, whoever makes it, and stay when
snapshots expire; the summary of a snapshot does not. A commit is of the version that was read, so two that archive the
same segment cannot both succeed (decision 0026).
By `pyiceberg`, without Spark and without a service. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from stratalog.model.errors import AlreadyExists, Conflict, OutcomeUnknown, Unavailable
from stratalog_pipeline.jobs.columns.record_kinds import DEAD, evolve
from stratalog_pipeline.jobs.columns.table_layout import Kind, TimePartition
from stratalog_pipeline.jobs.columns.topic_folder import topic_folder
from stratalog_pipeline.jobs.runners import OpenStore
from stratalog_pipeline.jobs.tables.table_log import MARK, FieldIds, FileMade, SegmentFiles, commit_in_turn
from stratalog_pipeline.jobs.tables.table_places import TablePlace

_RETRIES: Final = "commit.retry.num-retries"
"""A setting of pyiceberg, whose own retries would add the same files after another job's commit without checking the
properties."""


class IcebergLog:
    """Requires: `pyiceberg` is installed, the place has been checked to refuse overwriting."""

    def __init__(self, place: TablePlace, open_target: OpenStore, topic: str, by: TimePartition, kind: Kind) -> None:
        self._place = place
        self._open_target = open_target
        self._folder = topic_folder(topic)
        self._by = by
        self._time_column = "timestamp" if kind is Kind.RAW else "_timestamp"

    def prepare(self, fields: Any) -> FieldIds:
        """Ids are the table's: they stay, whatever is added later. What one job has added another one finds."""
        return FieldIds(
            self._grow(self._folder, fields, self._time_column), self._grow(f"{self._folder}/dead", DEAD, None)
        )

    def _grow(self, root: str, fields: Any, time_column: str | None) -> bytes:
        from stratalog_pipeline.jobs.tables.iceberg_fields import with_ids

        found: list[bytes] = []

        def grow(table: Any) -> bool:
            with table.transaction() as change, change.update_schema() as columns:
                columns.union_by_name(fields)
            schema = table.schema()
            found.append(bytes(with_ids(fields, schema).serialize().to_pybytes()))
            return True

        self._attempt(root, fields, time_column, grow)
        return found[-1]

    def commit(self, segments: Sequence[SegmentFiles]) -> None:
        import pyarrow as pa

        fields = pa.schema([])
        for one in segments:
            fields = evolve(fields, one.fields)
        # Dead letters first: whoever sees the rows of a segment finds what is missing among them.
        with_dead = [(one.seal, one.dead) for one in segments if one.dead]
        if with_dead:
            self._commit(f"{self._folder}/dead", DEAD, None, with_dead)
        self._commit(self._folder, fields, self._time_column, [(one.seal, one.data) for one in segments])

    def _commit(
        self, root: str, fields: Any, time_column: str | None, segments: Sequence[tuple[str, tuple[FileMade, ...]]]
    ) -> None:
        def append(table: Any) -> bool:
            rest = [one for one in segments if MARK + one[0] not in table.metadata.properties]
            if rest:
                self._append(table, fields, rest)
            return not rest  # it counts once the newest version has it

        self._attempt(root, fields, time_column, append)

    def _attempt(self, root: str, fields: Any, time_column: str | None, change: Callable[[Any], bool]) -> None:
        """Of a table, which is made where there is none: `change` is done in turn with other jobs."""
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError

        from stratalog_pipeline.jobs.tables.iceberg_store import FolderCatalog, StoreIO

        base = self._place.iceberg_base
        catalog = FolderCatalog(StoreIO(self._open_target, base), base, root)

        def attempt() -> bool:
            try:
                try:
                    table = catalog.load_table()
                except NoSuchTableError:
                    table = catalog.make_table(fields, time_column, self._by, {_RETRIES: "0"})
                return change(table)
            except (ValidationError, ValueError) as error:
                raise Conflict(f"{self._place.shown}/{root}: the table cannot be continued: {error}"[:600]) from error

        commit_in_turn(
            f"{self._place.shown}/{root}", attempt, (CommitFailedException, OutcomeUnknown, Unavailable, AlreadyExists)
        )

    def _append(self, table: Any, fields: Any, segments: Sequence[tuple[str, tuple[FileMade, ...]]]) -> None:
        if table.metadata.properties.get(_RETRIES) != "0":
            with table.transaction() as change:
                change.set_properties({_RETRIES: "0"})
        names = [f"{self._place.iceberg_base}/{file.key}" for _, files in segments for file in files]
        with table.transaction() as change:
            with change.update_schema() as columns:
                columns.union_by_name(fields)
            change.set_properties({MARK + seal: str(sum(one.rows for one in files)) for seal, files in segments})
            if names:
                change.add_files(names, check_duplicate_files=False)
