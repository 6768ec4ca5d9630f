"""Reads the values of records as JSON, Avro or Protobuf, or leaves them as they are; says which could not be read.

One bad record costs itself, not its neighbours. A record with a field that the schema does not have is a bad one too:
nothing is dropped unsaid. A record without a value (a deletion) has nulls in all fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.json as pj

from stratalog_pipeline.decode.columns import SCHEMA

_JSON_BLOCK_BYTES: Final = 256 << 20
PLACE: Final = pa.schema(
    [
        pa.field("_shard", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", "UTC")),
        pa.field("_key", pa.binary()),
    ]
)
"""Goes before the fields of a record."""
DEAD: Final = pa.schema([*SCHEMA, pa.field("error", pa.string())])
"""A dead letter is the whole record, and why."""


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """`table` has the good records, `good` and `bad` are their rows in what was given."""

    table: Any
    good: list[int]
    bad: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Definitions:
    """What it takes to read records that were written by schemas that followed each other.

    `newest` names the columns. `writers` are schemas under the ids that records name; where there are none, a record is
    read by the newest schema, or else by the `earlier` ones, newest first. Beside `writers`, the `earlier` ones read
    records of ids that are not among them.
    """

    newest: str
    earlier: tuple[str, ...] = ()
    writers: tuple[tuple[int, str], ...] = ()
    is_confluent: bool = False
    """Avro: each record begins with a zero byte and the id of its schema."""


ReadValues = Callable[[Sequence[bytes | None]], ReadRecords]


# JSON ---------------------------------------------------------------------------------------------------------------
def json_reader(schema: Any) -> ReadValues:
    """`schema`: an Arrow schema. By Arrow's parser, in halves where a record is bad."""

    def read(values: Sequence[bytes | None]) -> ReadRecords:
        pieces: list[Any] = []
        good: list[int] = []
        bad: list[tuple[int, str]] = []

        def attempt(rows: Sequence[int]) -> None:
            try:
                pieces.append(_parse([values[row] for row in rows], schema))
                good.extend(rows)
            except (pa.ArrowException, ValueError) as error:
                if len(rows) == 1:
                    bad.append((rows[0], first_line(error)))
                    return
                middle = len(rows) // 2
                attempt(rows[:middle])
                attempt(rows[middle:])

        together = [row for row, value in enumerate(values) if is_apart(value)]
        if together:
            attempt(together)
        for row in sorted({*range(len(values))} - {*together}):
            attempt([row])
        table = pa.concat_tables(pieces) if pieces else schema.empty_table()
        return ReadRecords(table, good, bad)

    return read


def is_apart(value: bytes | None) -> bool:
    """Whether it may stand in one text with others. What begins and ends as an object cannot run over into the next
    one, and what is empty would hide that another was two."""
    return value is None or (value[:1] == b"{" and value[-1:] == b"}" and b"\n" not in value)


def _parse(values: Sequence[bytes | None], schema: Any) -> Any:
    body = b"\n".join(b"{}" if value is None else value for value in values)
    options = pj.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="error", newlines_in_values=len(values) == 1
    )
    body.decode()  # Arrow does not look, and a text that is none would make its whole column unreadable
    table = pj.read_json(pa.py_buffer(body), pj.ReadOptions(use_threads=False, block_size=block_bytes(body)), options)
    if table.num_rows != len(values):
        raise ValueError("a value is not one JSON object")
    return table.select(schema.names).cast(schema)


def block_bytes(body: bytes) -> int:
    """Of Arrow's JSON parser, so that a text is one block."""
    return min(max(len(body), 1 << 16) + 1, _JSON_BLOCK_BYTES)


def evolve(known: Any, more: Any) -> Any:
    """The table's fields as they are, and new ones behind them: what was written stays readable together. A record that
    has another type there becomes a dead letter."""
    return pa.schema(_evolve(list(known), list(more)))


def _evolve(known: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    later = {one.name: one for one in more}
    fields = [pa.field(one.name, _type(one.type, later[one.name].type)) if one.name in later else one for one in known]
    names = {one.name for one in known}
    return fields + [one for one in more if one.name not in names]


def _type(known: Any, more: Any) -> Any:
    if pa.types.is_null(known):
        return more
    if pa.types.is_struct(known) and pa.types.is_struct(more):
        return pa.struct(_evolve(list(known), list(more)))
    if pa.types.is_list(known) and pa.types.is_list(more):
        return pa.list_(_type(known.value_type, more.value_type))
    if pa.types.is_map(known) and pa.types.is_map(more):
        return pa.map_(known.key_type, _type(known.item_type, more.item_type))
    return known


# Avro, Protobuf -----------------------------------------------------------------------------------------------------
def row_reader(schema: Any, read_one: Callable[[bytes], dict[str, Any]]) -> ReadValues:
    """Of records that a library reads one at a time; fields that a record lacks are null."""
    nothing = dict.fromkeys(schema.names)

    def read(values: Sequence[bytes | None]) -> ReadRecords:
        rows: list[dict[str, Any]] = []
        good: list[int] = []
        bad: list[tuple[int, str]] = []
        for row, value in enumerate(values):
            try:
                rows.append(nothing if value is None else read_one(value))
                good.append(row)
            except Exception as error:  # hostile bytes make these libraries raise whatever they like
                bad.append((row, first_line(error)))
        try:
            table = pa.Table.from_pylist(rows, schema=schema)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return _one_at_a_time(schema, rows, good, bad)
        return ReadRecords(table, good, bad)

    return read


def _one_at_a_time(
    schema: Any, rows: Sequence[dict[str, Any]], places: Sequence[int], bad: list[tuple[int, str]]
) -> ReadRecords:
    """Where a value is read and has no place in a column: a time out of range."""
    pieces, good = [], []
    for row, place in zip(rows, places, strict=True):
        try:
            pieces.append(pa.Table.from_pylist([row], schema=schema))
            good.append(place)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            bad.append((place, first_line(error)))
    return ReadRecords(pa.concat_tables(pieces) if pieces else schema.empty_table(), good, bad)


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
