"""Makes Arrow columns of records that were read as Python values. Pure.

Each value is stored as it is, or its record is a bad one, with the field and the reason. A value never changes on its
way: a number that a column would round is refused, a text stays a text. What becomes of a record depends on the record
and the schema alone, never on its neighbours, so values are checked one by one where a column cannot take them as they
come. Python types stand for the types of JSON, Avro and Protobuf: `dict` is an object, or a map where the column is
one; a map may be a list of pairs, too.
Cost: each value is looked at once by type, and once more in columns that hold a value of another type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

_EXACT: Final = 1 << 53
"""Up to here each integer is a double."""
_LARGEST_FLOAT32: Final = 3.4028235677973366e38
_UNITS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds of each."""
_KEPT_NS: Final = _UNITS["us"]
"""Files keep times in microseconds (`archive_piece.py`)."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d{1,9}))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_WORDS: Final = {str: "text", bool: "a boolean", int: "a number", float: "a number", Decimal: "a number"}
_WORDS_OF_MORE: Final = {dict: "an object", list: "a list", bytes: "bytes", datetime: "a time", date: "a date"}
_NOT_MADE: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class ColumnsMade:
    """`table` has the good records. `bad` has the others, by their row in what was given, with the reason."""

    table: Any
    bad: dict[int, str]


def columns_of(records: Sequence[dict[str, Any] | None], schema: Any, *, is_json: bool = False) -> ColumnsMade:
    """None is a record without a value. `is_json`: an infinite number is one that was too large to be read."""
    maker = _Maker(is_json=is_json)
    rows = range(len(records))
    columns = maker.fields([{} if one is None else one for one in records], list(schema), rows, "")
    table = pa.Table.from_arrays(columns, schema=schema)
    if maker.bad:
        table = table.take(pa.array([row for row in rows if row not in maker.bad], pa.int64()))
    return ColumnsMade(table, maker.bad)


class _Maker:
    def __init__(self, *, is_json: bool) -> None:
        self.bad: dict[int, str] = {}
        self._is_json = is_json

    def fields(
        self, records: Sequence[dict[str, Any] | None], fields: Sequence[Any], owners: Sequence[int], where: str
    ) -> list[Any]:
        """A column for each field. `owners`: the row of each of these records; the first fault of a row counts."""
        found: set[str] = set().union(*(one for one in records if one is not None))
        if found - {one.name for one in fields}:
            self._refuse_unknown(records, {one.name for one in fields}, owners, where)
        return [
            self.column(
                [None if one is None else one.get(field.name) for one in records],
                field.type,
                owners,
                f"{where}{field.name}",
            )
            if field.name in found
            else pa.nulls(len(records), field.type)
            for field in fields
        ]

    def column(self, values: list[Any], kind: Any, owners: Sequence[int], where: str) -> Any:
        types = pa.types
        if types.is_struct(kind):
            return self._struct(values, kind, owners, where)
        if types.is_list(kind):
            return self._list(values, kind, owners, where)
        if types.is_map(kind):
            return self._map(values, kind, owners, where)
        plain = self._as_they_come(values, kind)
        if plain is not None:
            return plain
        return self._one_by_one(values, kind, owners, where)

    def _refuse_unknown(
        self, records: Sequence[dict[str, Any] | None], names: set[str], owners: Sequence[int], where: str
    ) -> None:
        for row, one in zip(owners, records, strict=True):
            unknown = next((name for name in one or () if name not in names), None)
            if unknown is not None:
                self._refuse(row, f"{where}{unknown}", "the table has no column for it")

    def _refuse(self, row: int, where: str, why: str) -> None:
        self.bad.setdefault(row, f"field {where[:100]!r}: {why}"[:300])

    def _only(self, kind: type, values: list[Any], column: Any, owners: Sequence[int], where: str) -> list[Any]:
        """The values that are of this kind; others are refused."""
        if set(map(type, values)) <= {kind, type(None)}:
            return values
        found = []
        for row, one in zip(owners, values, strict=True):
            if one is not None and type(one) is not kind:
                self._refuse(row, where, f"{_word(one)}, where the column is {_column_word(column)}")
                one = None
            found.append(one)
        return found

    # What holds others ----------------------------------------------------------------------------------------------
    def _struct(self, values: list[Any], kind: Any, owners: Sequence[int], where: str) -> Any:
        found = self._only(dict, values, kind, owners, where)
        columns = self.fields(found, list(kind), owners, f"{where}.")
        if not columns:
            return pa.array([None if one is None else {} for one in found], kind)
        is_null = pa.array([one is None for one in found], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=is_null)

    def _list(self, values: list[Any], kind: Any, owners: Sequence[int], where: str) -> Any:
        found = self._only(list, values, kind, owners, where)
        offsets, inner, inner_owners = _flat(found, owners)
        elements = self.column(inner, kind.value_type, inner_owners, f"{where}[]")
        return pa.ListArray.from_arrays(offsets, elements, type=kind)

    def _map(self, values: list[Any], kind: Any, owners: Sequence[int], where: str) -> Any:
        pairs = [list(one.items()) if type(one) is dict else one for one in values]
        found = self._only(list, pairs, kind, owners, where)
        offsets, inner, inner_owners = _flat(found, owners)
        keys = self.column([key for key, _ in inner], kind.key_type, inner_owners, f"{where} (key)")
        # A key that is refused is null here, which no map takes; its record goes in the end.
        keys = keys.fill_null(_default_key(kind.key_type)) if keys.null_count else keys
        items = self.column([value for _, value in inner], kind.item_type, inner_owners, f"{where} (value)")
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)

    # What does not --------------------------------------------------------------------------------------------------
    def _as_they_come(self, values: list[Any], kind: Any) -> Any:
        """None where some value is not of the column's own type, or cannot be stored as it is."""
        present = set(map(type, values)) - {type(None)}
        if not present <= _own_types(kind):
            return None
        try:
            column = pa.array(values, kind)
        except _NOT_MADE:
            return None
        if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), min_count=0).as_py():
            return None
        return column

    def _one_by_one(self, values: list[Any], kind: Any, owners: Sequence[int], where: str) -> Any:
        stored = _stored_as(kind)
        convert = _converter(kind, is_json=self._is_json)

        def checked(one: Any) -> Any:
            made = convert(one)
            pa.scalar(made, stored)
            return made

        found = self._converted(values, convert, kind, owners, where)
        try:
            return pa.array(found, stored).cast(kind)
        except _NOT_MADE:  # for some value, which Arrow does not name
            return pa.array(self._converted(values, checked, kind, owners, where), stored).cast(kind)

    def _converted(
        self, values: list[Any], convert: Callable[[Any], Any], kind: Any, owners: Sequence[int], where: str
    ) -> list[Any]:
        found = []
        for row, one in zip(owners, values, strict=True):
            made = None
            if one is not None:
                try:
                    made = convert(one)
                except _NOT_MADE as error:
                    self._refuse(row, where, f"{_word(one)}, where the column is {kind}: {_line(error)}")
            found.append(made)
        return found


def _flat(values: Sequence[list[Any] | None], owners: Sequence[int]) -> tuple[Any, list[Any], list[int]]:
    """Offsets for Arrow, all elements, and the row of each element."""
    offsets: list[int | None] = []
    inner: list[Any] = []
    inner_owners: list[int] = []
    for row, one in zip(owners, values, strict=True):
        offsets.append(None if one is None else len(inner))
        if one:
            inner += one
            inner_owners += [row] * len(one)
    return pa.array([*offsets, len(inner)], pa.int32()), inner, inner_owners


def _default_key(kind: Any) -> Any:
    if pa.types.is_boolean(kind):
        return False
    return "" if pa.types.is_string(kind) else 0


def _word(value: Any) -> str:
    word = _WORDS.get(type(value)) or _WORDS_OF_MORE.get(type(value)) or type(value).__name__
    return f"{word} {str(value)[:40]!a}" if type(value) in _WORDS and type(value) is not bool else word


def _column_word(kind: Any) -> str:
    return "an object" if pa.types.is_struct(kind) else "a map" if pa.types.is_map(kind) else "a list"


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# Single values ------------------------------------------------------------------------------------------------------
def _own_types(kind: Any) -> set[type]:
    """Python types that Arrow stores in such a column unchanged, or refuses."""
    types = pa.types
    if types.is_integer(kind):
        return {int}
    if types.is_float64(kind):
        return {float, int}
    if types.is_float32(kind):
        return {float}
    if types.is_string(kind) or types.is_large_string(kind):
        return {str}
    if types.is_binary(kind) or types.is_large_binary(kind):
        return {bytes}
    if types.is_boolean(kind):
        return {bool}
    return {datetime} if types.is_timestamp(kind) and kind.unit == "us" else set()


def _stored_as(kind: Any) -> Any:
    """What converted values are, before Arrow casts them without a change."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_time64(kind) or types.is_date64(kind):
        return pa.int64()
    return pa.int32() if types.is_time32(kind) or types.is_date32(kind) else kind


def _converter(kind: Any, *, is_json: bool) -> Callable[[Any], Any]:
    """It raises ValueError for a value that such a column does not hold as it is."""
    types = pa.types
    if types.is_integer(kind):
        return _integer
    if types.is_float32(kind) or types.is_float64(kind):
        return partial(_float, is_json, types.is_float32(kind))
    if types.is_string(kind) or types.is_large_string(kind):
        return _text
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _bytes
    if types.is_boolean(kind):
        return _boolean
    if types.is_decimal(kind):
        return _decimal
    if types.is_timestamp(kind):
        return partial(_timestamp, _UNITS[kind.unit])
    if types.is_date32(kind):
        return _days
    if types.is_date64(kind):
        return _integer
    if types.is_time(kind):
        return partial(_time_of_day, _UNITS[kind.unit])
    return _nothing


def is_stored(kind: Any) -> bool:
    """Whether single values of this type can be made."""
    return _converter(kind, is_json=True) is not _nothing or pa.types.is_null(kind)


def _wrong() -> ValueError:
    return ValueError("it is of another type")


def _nothing(_: Any) -> Any:
    raise ValueError("the table has no type for it yet")


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if type(value) is Decimal and abs(value) <= _EXACT and value == int(value):
        return int(value)
    raise _wrong()


def _float(is_json: bool, is_short: bool, value: Any) -> float:
    if type(value) not in (int, float, Decimal):
        raise _wrong()
    found = float(value)
    is_infinite = found in (float("inf"), float("-inf"))
    if type(value) is int and (is_infinite or int(found) != value):
        raise ValueError("it would lose digits")
    if (is_infinite and is_json) or (is_short and not is_infinite and abs(found) >= _LARGEST_FLOAT32):
        raise ValueError("it is too large")
    return found


def _text(value: Any) -> str:
    if type(value) is bytes:
        return value.decode()
    if type(value) is UUID:
        return str(value)
    if type(value) is not str:
        raise _wrong()
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a character, which no text in UTF-8 can have") from error
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is str:
        return _text(value).encode()
    if type(value) is not bytes:
        raise _wrong()
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong()
    return value


def _decimal(value: Any) -> Decimal:
    if type(value) not in (int, float, Decimal, str):
        raise _wrong()
    try:
        found = Decimal(repr(value) if type(value) is float else value)
    except ArithmeticError as error:
        raise ValueError("it is not a decimal number") from error
    digits, exponent = found.as_tuple()[1:]
    if not isinstance(exponent, int) or abs(exponent) + len(digits) > 200:
        raise ValueError("it has more digits than any column")
    return found


def _timestamp(unit_ns: int, value: Any) -> int:
    if type(value) is str:
        at, rest_ns = _time_of_text(value)
    elif type(value) is datetime:
        at, rest_ns = value if value.tzinfo else value.replace(tzinfo=UTC), 0
    else:
        raise _wrong()
    since = at - _EPOCH
    ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000 + rest_ns
    return _in_units(ns, max(unit_ns, _KEPT_NS)) * (_KEPT_NS // min(unit_ns, _KEPT_NS))


def _time_of_text(text: str) -> tuple[datetime, int]:
    """As UTC; a text without a zone is UTC. And its nanoseconds below the second."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("it is not a time such as 2013-01-01T00:00:00Z")
    day, hour, minute, second, fraction, zone = found.groups()
    at = datetime.fromisoformat(f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}{zone or ''}")
    return at if at.tzinfo else at.replace(tzinfo=UTC), int((fraction or "0").ljust(9, "0"))


def _in_units(ns: int, unit_ns: int) -> int:
    if ns % unit_ns:
        raise ValueError("it would lose digits")
    return ns // unit_ns


def _days(value: Any) -> int:
    if type(value) is date:
        return (value - _EPOCH.date()).days
    if type(value) is str:
        if len(value) != 10:
            raise ValueError("it is not a date such as 2013-01-31")
        return (date.fromisoformat(value) - _EPOCH.date()).days
    return _integer(value)


def _time_of_day(unit_ns: int, value: Any) -> int:
    if type(value) is time:
        us = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return _in_units(us * 1_000, unit_ns)
    found = _integer(value)
    if not 0 <= found * unit_ns < 86_400 * _UNITS["s"]:
        raise ValueError("it is not a time of day")
    return found
