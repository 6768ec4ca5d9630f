"""Commits an archive's files to Delta tables: `<topic>/data`, partitioned by time, and `<topic>/dead`.

Each commit holds the files of some segments (`add`) and one transaction identifier (`txn`) for each segment. The
protocol keeps these identifiers in checkpoints, whatever is cleaned up of the log, and a commit that holds one of them
loses to another commit that holds it. So nothing is remembered beside the table.
By `deltalake`, which needs no Spark and no jar (decision 0026). Runs in the driver; a call takes no longer than
`table_places` allows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

from stratalog.model.errors import Conflict, InvalidRequest
from stratalog_pipeline.jobs.columns.record_kinds import DEAD, evolve
from stratalog_pipeline.jobs.columns.table_layout import TimePartition
from stratalog_pipeline.jobs.columns.table_types import contradictions
from stratalog_pipeline.jobs.columns.topic_folder import topic_folder
from stratalog_pipeline.jobs.tables.table_log import MARK, FieldIds, FileMade, SegmentFiles, commit_in_turn, one_line
from stratalog_pipeline.jobs.tables.table_places import TablePlace

_FORGETS: Final = "delta.setTransactionRetentionDuration"


class DeltaLog:
    """Requires: `deltalake` is installed, the place has been checked to refuse overwriting."""

    def __init__(self, place: TablePlace, topic: str, by: TimePartition) -> None:
        self._place = place
        self._folder = topic_folder(topic)
        self._by = by

    def prepare(self, fields: Any) -> FieldIds | None:
        """Columns are added by the commit that needs them, and found by their names."""
        return None

    def commit(self, segments: Sequence[SegmentFiles]) -> None:
        import pyarrow as pa

        fields = pa.schema([])
        for one in segments:
            fields = evolve(fields, one.fields)
        # Dead letters first: whoever sees the rows of a segment finds what is missing among them.
        with_dead = [(one.seal, one.dead) for one in segments if one.dead]
        if with_dead:
            self._commit(_Table(self._place, f"{self._folder}/dead", None), DEAD, with_dead)
        table = _Table(self._place, f"{self._folder}/data", f"by_{self._by}")
        self._commit(table, fields, [(one.seal, one.data) for one in segments])

    def _commit(self, table: _Table, fields: Any, segments: Sequence[tuple[str, tuple[FileMade, ...]]]) -> None:
        from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

        def attempt() -> bool:
            try:
                table.append(fields, segments)
            except (DeltaProtocolError, SchemaMismatchError) as error:
                raise Conflict(f"{table.place}: the table cannot be continued: {one_line(error)}") from error
            return True

        commit_in_turn(table.place, attempt, (DeltaError, OSError))


class _Table:
    def __init__(self, place: TablePlace, root: str, partition: str | None) -> None:
        self.place = f"{place.shown}/{root}"
        self._uri = place.uri(root)
        self._root = f"{root}/"
        self._options = dict(place.delta_options) or None
        self._partitions = [] if partition is None else [partition]

    def append(self, fields: Any, segments: Sequence[tuple[str, tuple[FileMade, ...]]]) -> None:
        from deltalake import CommitProperties
        from deltalake.transaction import Transaction

        table = self._opened(fields)
        rest = [one for one in segments if table.transaction_version(MARK + one[0]) is None]
        if not rest:
            return
        self._grow(table, fields)
        table.create_write_transaction(
            [self._add(file) for _, files in rest for file in files],
            "append",
            table.schema(),
            self._partitions,
            commit_properties=CommitProperties(app_transactions=[Transaction(MARK + seal, 0) for seal, _ in rest]),
        )

    def _opened(self, fields: Any) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            # Not asked by `is_deltatable`, which holds Python's lock until the store has answered.
            table = DeltaTable.create(
                self._uri,
                self._with_partition([one for one in fields if not _has_map_of_local_times(one.type)]),
                "error",
                self._partitions,
                storage_options=self._options,
            )
        facts = table.metadata()
        if list(facts.partition_columns) != self._partitions:
            raise Conflict(
                f"{self.place}: the Delta table there is partitioned by {list(facts.partition_columns)}, expected is "
                f"{self._partitions}: it is another table; name another place"
            )
        if facts.configuration.get(_FORGETS):
            raise InvalidRequest(
                f"{self.place}: the table's property {_FORGETS} lets it forget what was archived, and records would "
                f"come twice: ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS}')"
            )
        return table

    def _grow(self, table: Any, fields: Any) -> None:
        """New columns are a commit of their own, which changes no row: a kill behind it does no harm."""
        import pyarrow as pa
        from deltalake import Schema

        known = pa.schema(table.schema().to_arrow())
        wanted = pa.schema(self._with_partition(fields).to_arrow())
        wrong = contradictions(known, wanted)
        if wrong:
            raise Conflict(f"{self.place}: the table has other types: {', '.join(wrong)[:500]}")
        new = [one for one in evolve(known, wanted) if one.name not in known.names or one != known.field(one.name)]
        if any(_has_map_of_local_times(one.type) for one in new):
            self._allow_local_times(table)
        if new:
            table.alter.add_columns(list(Schema.from_arrow(pa.schema(new)).fields))

    def _allow_local_times(self, table: Any) -> None:
        """`deltalake` does so by itself, but for values of maps: without the feature nothing could open the table."""
        from deltalake import TableFeatures

        if "timestampNtz" not in (table.protocol().writer_features or ()):
            table.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)

    def _with_partition(self, fields: Any) -> Any:
        import pyarrow as pa
        from deltalake import Schema

        return Schema.from_arrow(pa.schema([*fields, *(pa.field(name, pa.string()) for name in self._partitions)]))

    def _add(self, file: FileMade) -> Any:
        from deltalake.transaction import AddAction

        return AddAction(
            file.key.removeprefix(self._root),
            file.size_bytes,
            dict.fromkeys(self._partitions, file.time),
            int(time.time() * 1000),
            True,
            json.dumps({"numRecords": file.rows}),
        )


def _has_map_of_local_times(kind: Any, *, is_in_map: bool = False) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return any(_has_map_of_local_times(one.type, is_in_map=is_in_map) for one in kind)
    if types.is_list(kind):
        return _has_map_of_local_times(kind.value_type, is_in_map=is_in_map)
    if types.is_map(kind):
        return _has_map_of_local_times(kind.item_type, is_in_map=True)
    return is_in_map and types.is_timestamp(kind) and kind.tz is None
