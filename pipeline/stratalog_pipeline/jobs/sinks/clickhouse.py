"""ClickHouse as a target: a range is one INSERT of one block, which is there as a whole or not at all.

ClickHouse has no transactions over tables, so a range is fixed before it is inserted: a row of `stratalog_sink_ranges`
says where it ends. That row's deduplication token is the range's beginning, so of two jobs one fixes it, and the other
reads what was fixed. An INSERT of a range has the range as its token: the same token never comes with other records,
which ClickHouse would drop without a word. Before it inserts, and when it begins, a job looks into the table: a range
of which a record is there, is whole. The token is for what is under way at that moment, and the table's engine merges
rows of one place in the end.

Over HTTP, with what is in Python alone. Beside the table, in its database: `stratalog_sinks`, `stratalog_sink_ranges`,
`stratalog_sink_progress`, `stratalog_sink_lacks`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.model.errors import Conflict, Forbidden, InvalidRequest, Unavailable
from stratalog_pipeline.cold.progress import Gap
from stratalog_pipeline.jobs.sinks.http_server import HttpServer
from stratalog_pipeline.jobs.sinks.target import (
    DELETED,
    REQUEST_S,
    Lack,
    ReadTables,
    ShardRange,
    SinkFacts,
    Stored,
    TargetAddress,
    TargetState,
    check_facts,
    out_of_order,
)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
_WINDOW: Final = 10_000
_LAST_MS: Final = 9_904_550_399_999
"""2283-11-11: ClickHouse's DateTime64 ends a little later."""
_BUSY: Final = frozenset({159, 164, 202, 209, 210, 241, 242, 252, 319, 425, 439, 999})
"""Timeouts, network, too many queries or parts, memory, read-only, no threads, unknown status of an insert, Keeper."""
_RIGHTS: Final = frozenset({192, 193, 194, 497, 516})
_TABLE: Final = f"""CREATE TABLE IF NOT EXISTS {{table}} (topic LowCardinality(String), shard Int32, offset Int64,
    time Nullable(DateTime64(3, 'UTC')), key Nullable(String), value Nullable(String),
    headers Array(Tuple(key String, value Nullable(String))))
    ENGINE = ReplacingMergeTree ORDER BY (shard, offset) SETTINGS non_replicated_deduplication_window = {_WINDOW}"""
_BOOKS: Final = (
    f"""CREATE TABLE IF NOT EXISTS {{ranges}} (name String, shard Int32, from_offset Int64, to_offset Int64,
    at DateTime64(6) DEFAULT now64(6)) ENGINE = MergeTree ORDER BY (name, shard, from_offset)
    SETTINGS non_replicated_deduplication_window = {_WINDOW}""",
    """CREATE TABLE IF NOT EXISTS {progress} (name String, shard Int32,
    next_offset SimpleAggregateFunction(max, Int64)) ENGINE = AggregatingMergeTree ORDER BY (name, shard)""",
    """CREATE TABLE IF NOT EXISTS {lacks} (name String, shard Int32, from_offset Int64, to_offset Int64, why String)
    ENGINE = ReplacingMergeTree ORDER BY (name, shard, from_offset, to_offset)""",
    f"""CREATE TABLE IF NOT EXISTS {{sinks}} (name String, cluster_id String, topic String, topic_id UUID,
    begins String, at DateTime64(6) DEFAULT now64(6)) ENGINE = MergeTree ORDER BY name
    SETTINGS non_replicated_deduplication_window = {_WINDOW}""",
)
_CODE: Final = re.compile(rb"Code: (\d+)")


class ClickHouseTarget:
    def __init__(self, address: TargetAddress) -> None:
        database, _, self._name = address.name.rpartition(".")
        if _NAME.fullmatch(self._name) is None or (database and _NAME.fullmatch(database) is None):
            raise InvalidRequest(f"{address.name!r:.80} cannot be a table's name: give --table [DATABASE.]NAME")
        self._server = HttpServer(address)
        place = f"`{database}`." if database else ""
        self._names = {"table": f"{place}`{self._name}`"}
        for book in ("sinks", "ranges", "progress", "lacks"):
            name = "stratalog_sinks" if book == "sinks" else f"stratalog_sink_{book}"
            if self._name == name:
                raise InvalidRequest(f"--table {name} is where sinks keep their progress: name another")
            self._names[book] = f"{place}`{name}`"
        self._source = f"table {address.name}"

    def __enter__(self) -> ClickHouseTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    # What is there --------------------------------------------------------------------------------------------------
    def read(self, facts: SinkFacts) -> TargetState | None:
        return self._state(facts) if self._exists("sinks") else None

    def prepare(self, facts: SinkFacts, begins: Mapping[int, int]) -> TargetState:
        if not self._exists("sinks"):
            for book in _BOOKS:
                self._run(book)
        state = self._state(facts)
        if state is not None:
            return state
        if not self._exists("table"):
            self._run(_TABLE)
        elif self._rows("SELECT count() FROM {table}")[0][0] != "0":
            raise Conflict(f"{self._source} has rows, and no sink wrote them: name another --table, or empty it")
        elif "PARTITION BY" in self._rows("SHOW CREATE TABLE {table}")[0][0]:
            raise Conflict(f"{self._source} has partitions, so that an INSERT is not one block: name another --table")
        words = json.dumps({str(shard): offset for shard, offset in begins.items()})
        values = ", ".join(map(_text, (self._name, facts.cluster_id, facts.topic, str(facts.topic_id), words)))
        self._insert("sinks", "name, cluster_id, topic, topic_id, begins", values, token=f"{self._name} begins")
        state = self._state(facts)
        if state is None:
            raise Conflict(f"the progress of {self._source} was deleted just now: run the job again")
        return state

    def _state(self, facts: SinkFacts) -> TargetState | None:
        begins = self._check(facts)
        if begins is None:
            return None
        offsets = {**begins, **self._progress()}
        fixed: dict[int, dict[int, int]] = {}
        for shard, from_offset, to_offset in self._fixed():
            if to_offset > offsets.get(shard, 0):
                fixed.setdefault(shard, {})[from_offset] = to_offset
        for shard, ranges in fixed.items():
            at = offsets.get(shard, 0)
            while at in ranges and self._count(ShardRange(shard, at, ranges[at])):
                at = ranges[at]
            offsets[shard] = at
        found = self._rows(
            "SELECT DISTINCT shard, from_offset, to_offset, why FROM {lacks} "
            f"WHERE name = {self._quoted} ORDER BY 1, 2"
        )
        return TargetState(offsets, [Lack(int(one[0]), int(one[1]), int(one[2]), one[3]) for one in found], fixed)

    def _check(self, facts: SinkFacts) -> dict[int, int] | None:
        """Where shards began; None: no sink wrote to the table yet. Raises: Conflict."""
        found = self._rows(
            f"SELECT cluster_id, topic, topic_id, begins FROM {{sinks}} WHERE name = {self._quoted} ORDER BY at LIMIT 1"
        )
        if not found:
            return None
        cluster_id, topic, topic_id, begins = found[0]
        check_facts(SinkFacts(cluster_id, topic, UUID(topic_id)), facts, self._source)
        if not self._exists("table"):
            raise Conflict(
                f"{self._source} was dropped, and stratalog_sinks still has its progress: name another --table, or "
                "drop the stratalog_sink tables of this database, too, if nothing else uses them"
            )
        return {int(shard): int(offset) for shard, offset in json.loads(begins).items()}

    def _progress(self) -> dict[int, int]:
        found = self._rows(
            f"SELECT shard, max(next_offset) FROM {{progress}} WHERE name = {self._quoted} GROUP BY shard"
        )
        return {int(shard): int(offset) for shard, offset in found}

    def _fixed(self) -> list[tuple[int, int, int]]:
        """What was fixed first counts."""
        found = self._rows(
            "SELECT shard, from_offset, argMin(to_offset, (at, to_offset)) FROM {ranges} "
            f"WHERE name = {self._quoted} GROUP BY shard, from_offset"
        )
        return [(int(one[0]), int(one[1]), int(one[2])) for one in found]

    def _count(self, wanted: ShardRange) -> int:
        """How many records of a range the table has."""
        return int(
            self._rows(
                f"SELECT uniqExact(offset) FROM {{table}} WHERE shard = {wanted.shard} "
                f"AND offset >= {wanted.from_offset} AND offset < {wanted.to_offset}"
            )[0][0]
        )

    # Changes --------------------------------------------------------------------------------------------------------
    def accept(self, facts: SinkFacts, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._note(gap.shard, Lack(gap.shard, gap.from_offset, gap.to_offset, DELETED))
            self._move(gap.shard, gap.to_offset)

    def store(self, facts: SinkFacts, wanted: ShardRange, read: ReadTables) -> Stored:
        begins = self._check(facts)
        if begins is None:
            raise Conflict(f"the progress of {self._source} was deleted meanwhile: run the job again")
        next_offset = self._progress().get(wanted.shard, begins.get(wanted.shard, 0))
        if next_offset >= wanted.to_offset:
            return Stored(was_there=True)
        if next_offset > wanted.from_offset:
            raise out_of_order(wanted, next_offset, self._source)
        # A range is fixed before its INSERT: so what is there of one that is not fixed, is of a range cut otherwise.
        if self._count(wanted) and not self._is_fixed(wanted):
            raise Conflict(
                f"{self._source} has records of offsets {wanted.from_offset} to {wanted.to_offset} of shard "
                f"{wanted.shard}, and stratalog_sink_ranges no range that begins there: were they put back from "
                f"different backups? Delete the shard's rows from offset {wanted.from_offset} on, and run again"
            )
        self._fix(wanted)
        if self._count(wanted):
            self._move(wanted.shard, wanted.to_offset)
            return Stored(was_there=True)
        stored = Stored()
        body = self._body(read(wanted.from_offset, stored.unread), stored)
        for batch in stored.unread:
            self._note(wanted.shard, Lack(wanted.shard, batch.base_offset, batch.end_offset, batch.why))
        if stored.records:
            columns = "topic, shard, offset, time, key, value, headers"
            token = f"{facts.topic_id}/{wanted.shard}/{wanted.from_offset}-{wanted.to_offset}"
            self._run(f"INSERT INTO {{table}} ({columns}) {_settings(token)} FORMAT ArrowStream", body)
            found = self._count(wanted)
            if found != stored.records:
                raise Conflict(
                    f"{self._source} has {found} of the {stored.records} records of offsets {wanted.from_offset} to "
                    f"{wanted.to_offset} of shard {wanted.shard} after their INSERT: rows were deleted, or something "
                    "else wrote to it. Name another --table"
                )
        self._move(wanted.shard, wanted.to_offset)
        return stored

    def _fix(self, wanted: ShardRange) -> None:
        """Raises: Conflict where another job has fixed another range with this beginning."""
        values = f"{self._quoted}, {wanted.shard}, {wanted.from_offset}, {wanted.to_offset}"
        token = f"{self._name}/{wanted.shard}/{wanted.from_offset}"
        self._insert("ranges", "name, shard, from_offset, to_offset", values, token=token)
        for shard, from_offset, to_offset in self._fixed():
            if (shard, from_offset) == (wanted.shard, wanted.from_offset) and to_offset != wanted.to_offset:
                raise Conflict(
                    f"another job stores shard {shard} in {self._source}: run the job again when it has ended"
                )

    def _is_fixed(self, wanted: ShardRange) -> bool:
        return any(one[:2] == (wanted.shard, wanted.from_offset) for one in self._fixed())

    def _body(self, tables: Any, stored: Stored) -> bytes:
        """All records of a range as an Arrow stream with one batch."""
        batches = list(tables)
        stored.records = sum(one.num_rows for one in batches)
        if not batches:
            return b""
        table = pa.Table.from_batches(batches).combine_chunks()
        at = table.schema.get_field_index("timestamp")
        millis = pc.divide(table.column(at).cast(pa.int64()), 1_000)
        fits = pc.less_equal(millis, _LAST_MS)
        times = pc.if_else(fits, millis, None).cast(pa.timestamp("ms", "UTC"))
        table = table.set_column(at, "time", times).combine_chunks()
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def _move(self, shard: int, next_offset: int) -> None:
        self._insert("progress", "name, shard, next_offset", f"{self._quoted}, {shard}, {next_offset}")

    def _note(self, shard: int, lack: Lack) -> None:
        values = f"{self._quoted}, {shard}, {lack.from_offset}, {lack.to_offset}, {_text(lack.why)}"
        self._insert("lacks", "name, shard, from_offset, to_offset, why", values)

    # The server -----------------------------------------------------------------------------------------------------
    @property
    def _quoted(self) -> str:
        return _text(self._name)

    def _exists(self, table: str) -> bool:
        return self._rows(f"EXISTS TABLE {{{table}}}")[0][0] == "1"

    def _insert(self, book: str, columns: str, values: str, *, token: str = "") -> None:
        self._run(f"INSERT INTO {{{book}}} ({columns}) {_settings(token)} VALUES ({values})")

    def _rows(self, statement: str) -> list[list[str]]:
        answer = self._run(f"{statement} FORMAT JSONCompact")
        try:
            return [[str(one) for one in row] for row in json.loads(answer)["data"]]
        except (ValueError, KeyError, TypeError):
            raise Unavailable(f"{self._server.where}: the answer to a query is not one of ClickHouse") from None

    def _run(self, statement: str, body: bytes = b"") -> bytes:
        for key, name in self._names.items():
            statement = statement.replace("{" + key + "}", name)
        settings = {"wait_end_of_query": "1", "max_execution_time": str(REQUEST_S)}
        if body:
            settings["query"] = statement
        path = f"/?{urlencode(settings)}"
        status, answer = self._server.request("POST", path, body or statement.encode(), "application/octet-stream")
        if status == 200:
            return answer
        where, words = self._server.where, " ".join(answer[:500].decode("utf-8", "replace").split())
        found = _CODE.search(answer)
        code = int(found[1]) if found else 0
        if code in _RIGHTS or status in (401, 403):
            raise Forbidden(f"{where}: {words}: check the login and its rights")
        if code in _BUSY or (not code and status >= 429):
            raise Unavailable(f"{where}: {status}: {words}")
        raise InvalidRequest(f"{where}: {status}: {words}")


def _settings(token: str) -> str:
    """Of an INSERT: one block, by one thread, done before it is answered; and once for each token."""
    found = "SETTINGS async_insert = 0, insert_deduplicate = 1, max_insert_threads = 1, max_threads = 1"
    found += ", max_insert_block_size = 1000000000, min_insert_block_size_rows = 1000000000"
    found += ", min_insert_block_size_bytes = 0, input_format_parallel_parsing = 0"
    return f"{found}, insert_deduplication_token = {_text(token)}" if token else found


def _text(value: str) -> str:
    """A literal of SQL, without what would be taken for the name of a table."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("{", "\\x7b") + "'"
