"""Which types and names of columns Delta and Iceberg tables have, and what becomes of those that they lack. Pure.

Both formats have fewer types than Arrow, and no column without a type. Unsigned numbers, small numbers and times in
other units get the wider type that holds them. A field that was only null, an empty list or an empty object so far has
no type yet. It is left out until a record shows one, as a field of nulls is in a Parquet table. Anything else is
refused before the first record is written, by name and with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.columns.record_kinds import PLACE
from stratalog_pipeline.jobs.columns.table_layout import TableFormat, TimePartition

_NO_NAME: Final = {
    TableFormat.PARQUET: frozenset[str](),
    TableFormat.DELTA: frozenset(" ,;{}()\n\t="),
    TableFormat.ICEBERG: frozenset("."),
}
"""What cannot be in the name of a column. With a dot, Iceberg could not tell it from a field within a field."""
_ICEBERG_OWN: Final = frozenset(
    [
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
        "_row_id",
        "_last_updated_sequence_number",
    ]
)
"""Columns of metadata that each Iceberg table has for its readers: Spark opens no table with one of its own."""
_WAY_OUT: Final = "give a --schema without it, archive the records raw, or as Parquet"
"""Where Parquet takes it."""
_WAY_OUT_OF_ANY: Final = "give a --schema without it, or archive the records raw"

_WIDER: Final = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}
_AS_IT_IS: Final = frozenset(
    [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()]
)


_PROMOTED: Final = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64(), pa.float32()),
    pa.uint32(): (pa.int64(), pa.uint64()),
    pa.int64(): (pa.float64(), pa.float32()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
}
"""What a column of another type may take, as Avro promotes types. A value that it cannot hold is a dead letter."""
_LOSSLESS: Final = frozenset(
    [(pa.int32(), pa.int64()), (pa.int32(), pa.float64()), (pa.float32(), pa.float64()), (pa.uint32(), pa.int64())]
)


def widest(one: Any, other: Any) -> Any:
    """The type that holds all values of both as they are; None where neither does."""
    if pa.types.is_null(one) or one == other or (other, one) in _LOSSLESS:
        return other if pa.types.is_null(one) else one
    return other if (one, other) in _LOSSLESS else one if pa.types.is_null(other) else None


def settled(fields: Any) -> Any:
    """An Arrow schema as a table has it. Raises: InvalidRequest, naming the field."""
    return pa.schema(_settled(list(fields), ""))


def without_untyped(fields: Any) -> Any:
    """Without fields that have no type yet, at any depth: nulls, and structures that have no field.

    A Parquet file cannot hold such structures, and has numbers for nulls within a list, which no reader could put
    together with the texts of a later file.
    """
    kinds = [(one.name, _typed(one.type)) for one in fields]
    return pa.schema([(name, kind) for name, kind in kinds if kind is not None])


def _typed(kind: Any) -> Any:
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_struct(kind):
        inner = [(one.name, _typed(one.type)) for one in kind]
        known = [(name, one) for name, one in inner if one is not None]
        return pa.struct(known) if known else None
    if types.is_list(kind):
        element = _typed(kind.value_type)
        return None if element is None else pa.list_(element)
    if types.is_map(kind):
        item = _typed(kind.item_type)
        return None if item is None else pa.map_(kind.key_type, item)
    return kind


def check_columns(fields: Any, form: TableFormat, by: TimePartition) -> None:
    """Of the records' fields. Raises: InvalidRequest for names that the format or its readers do not take."""
    own = {one.lower() for one in PLACE.names}
    own |= _ICEBERG_OWN | {by.hidden_name("_timestamp")} if form is TableFormat.ICEBERG else {f"by_{by}"}
    taken = [one.name for one in fields if one.name.lower() in own]
    if taken:
        raise InvalidRequest(
            f"the records have a field {taken[0]}, which is a column of the table itself: {_WAY_OUT_OF_ANY}"
        )
    _check_names(list(fields), form, "")


def contradictions(known: Any, more: Any) -> list[str]:
    """The fields that `more` gives a type whose values do not fit the type in `known`. A field without a type yet
    contradicts nothing."""
    return list(_contradictions(list(known), list(more), ""))


def _settled(fields: Sequence[Any], where: str) -> list[Any]:
    found = []
    for one in fields:
        kind = _type(one.type, f"{where}{one.name}")
        if kind is not None:
            found.append(pa.field(one.name, kind))
    return found


def _type(kind: Any, where: str) -> Any:
    types = pa.types
    if kind in _AS_IT_IS or kind in _WIDER:
        return _WIDER.get(kind, kind)
    if types.is_null(kind):
        return None
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal128(kind):
        return kind
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        inner = _settled(list(kind), f"{where}.")
        return pa.struct(inner) if inner else None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _type(kind.value_type, f"{where}[]")
        return None if element is None else pa.list_(element)
    if types.is_map(kind):
        key, item = _type(kind.key_type, f"{where} (key)"), _type(kind.item_type, f"{where} (value)")
        return None if key is None or item is None else pa.map_(key, item)
    raise InvalidRequest(f"field {where} has the type {kind}, which such a table does not have: {_WAY_OUT}")


def _check_names(fields: Sequence[Any], form: TableFormat, where: str) -> None:
    seen: dict[str, str] = {}
    for one in fields:
        name = f"{where}{one.name}"
        if (not one.name and form is not TableFormat.PARQUET) or _NO_NAME[form] & {*one.name}:
            inside = f" in {where[:-1]!r:.100}" if where else ""
            raise InvalidRequest(
                f"a field{inside} is called {one.name!r:.100}, which no column of this table can be, for its format is "
                f"{form}: {_WAY_OUT}"
            )
        # Spark and others do not tell them apart, and could not read the table at all.
        if (other := seen.setdefault(one.name.lower(), name)) != name:
            raise InvalidRequest(f"the fields {other} and {name} differ in nothing but case: {_WAY_OUT_OF_ANY}")
        for inner in _inner(one.type):
            _check_names(inner, form, f"{name}.")


def _inner(kind: Any) -> Iterable[Sequence[Any]]:
    if pa.types.is_struct(kind):
        yield list(kind)
    elif pa.types.is_list(kind):
        yield from _inner(kind.value_type)
    elif pa.types.is_map(kind):
        yield from _inner(kind.item_type)


def _contradictions(known: Sequence[Any], more: Sequence[Any], where: str) -> Iterable[str]:
    before = {one.name: one.type for one in known}
    for one in more:
        if one.name in before:
            yield from _differ(before[one.name], one.type, f"{where}{one.name}")


def _differ(known: Any, more: Any, where: str) -> Iterable[str]:
    types = pa.types
    if types.is_struct(known) and types.is_struct(more):
        yield from _contradictions(list(known), list(more), f"{where}.")
    elif types.is_list(known) and types.is_list(more):
        yield from _differ(known.value_type, more.value_type, f"{where}[]")
    elif types.is_map(known) and types.is_map(more):
        yield from _differ(known.key_type, more.key_type, f"{where} (key)")
        yield from _differ(known.item_type, more.item_type, f"{where} (value)")
    elif (
        known != more and not types.is_null(known) and not types.is_null(more) and known not in _PROMOTED.get(more, ())
    ):
        yield f"{where} ({known} in the table, {more} now)"
