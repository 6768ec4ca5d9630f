"""What reading the values of records means, as JSON, Avro or Protobuf; and how a table's fields grow.

One bad record costs itself, not its neighbours. A record with a field that the schema does not have is a bad one too:
nothing is dropped unsaid. A record without a value (a deletion) has nulls in all fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from stratalog_pipeline.decode.columns import SCHEMA
from stratalog_pipeline.jobs.columns.record_columns import columns_of

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


CONFLUENT_BYTES: Final = 5
"""A zero byte and the id of a schema, before each record of Confluent's serializers."""


def without_schema_id(value: bytes) -> bytes:
    """Raises: ValueError for a record that does not begin so."""
    if len(value) < CONFLUENT_BYTES or value[0]:
        raise ValueError("it does not begin with a zero byte and the id of a schema")
    return value[CONFLUENT_BYTES:]


Settle: TypeAlias = Callable[[Any, Any], Any]
"""Chooses the column's type from two types of one field that contain no others."""


def evolve(known: Any, more: Any, settle: Settle = lambda known, more: known) -> Any:
    """The table's fields unchanged, with new ones behind them, so that old and new files stay readable together. A
    record with another type for a field becomes a dead letter."""
    return pa.schema(_evolve(list(known), list(more), settle))


def _evolve(known: Sequence[Any], more: Sequence[Any], settle: Settle) -> list[Any]:
    later = {one.name: one for one in more}
    fields = [
        pa.field(one.name, _type(one.type, later[one.name].type, settle)) if one.name in later else one for one in known
    ]
    names = {one.name for one in known}
    return fields + [one for one in more if one.name not in names]


def _type(known: Any, more: Any, settle: Settle) -> Any:
    if pa.types.is_null(known):
        return more
    if pa.types.is_struct(known) and pa.types.is_struct(more):
        return pa.struct(_evolve(list(known), list(more), settle))
    if pa.types.is_list(known) and pa.types.is_list(more):
        return pa.list_(_type(known.value_type, more.value_type, settle))
    if pa.types.is_map(known) and pa.types.is_map(more):
        return pa.map_(known.key_type, _type(known.item_type, more.item_type, settle))
    return settle(known, more)


# Avro, Protobuf -----------------------------------------------------------------------------------------------------
def row_reader(schema: Any, read_one: Callable[[bytes], dict[str, Any]]) -> ReadValues:
    """Of records that a library reads one at a time; fields that a record lacks are null."""

    def read(values: Sequence[bytes | None]) -> ReadRecords:
        records: list[dict[str, Any] | None] = []
        places: list[int] = []
        bad: list[tuple[int, str]] = []
        for row, value in enumerate(values):
            try:
                records.append(None if value is None else read_one(value))
                places.append(row)
            except Exception as error:  # hostile bytes make these libraries raise whatever they like
                bad.append((row, first_line(error)))
        made = columns_of(records, schema)
        good = [place for number, place in enumerate(places) if number not in made.bad]
        bad += [(places[number], why) for number, why in made.bad.items()]
        return ReadRecords(made.table, good, sorted(bad))

    return read


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
