"""Reads values of records as JSON objects, by the parser of Python's own library.

It checks its own depth, takes bytes of anyone, and keeps integers of any size: Arrow's parser, which is twice as fast,
ended the process for a value `null`, lost digits, made times of texts, and let one bad record spoil its neighbours.
A text must be UTF-8 and one JSON object alone; no name comes twice in an object, and `NaN` is not a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from stratalog_pipeline.jobs.columns.record_columns import columns_of
from stratalog_pipeline.jobs.columns.record_kinds import ReadRecords, ReadValues, first_line, without_schema_id

_ROWS: Final = 4096
_BYTES: Final = 1 << 20
"""At most this many records, and bytes of them, are Python objects at a time; one record however large."""


class JsonParser:
    """`is_exact`: numbers with a fraction are decimals, for columns that keep all digits."""

    def __init__(self, *, is_exact: bool = False, is_confluent: bool = False) -> None:
        self._is_confluent = is_confluent
        self._decode = json.JSONDecoder(
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=Decimal if is_exact else None,
        ).decode

    def parse(self, value: bytes) -> dict[str, Any]:
        """Raises: ValueError with the reason."""
        if self._is_confluent:
            value = without_schema_id(value)
        try:
            found = self._decode(value.decode())
        except RecursionError:
            raise ValueError("lists and objects are nested too deeply") from None
        except ArithmeticError as error:
            raise ValueError("it has a number that is too large") from error
        if type(found) is not dict:
            raise ValueError("it is JSON, but not an object")
        return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        for name, _ in pairs:
            if name not in found:
                raise ValueError(f"the name {name[:100]!a} comes twice in an object")
            del found[name]
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number of JSON")


def json_reader(schema: Any, *, is_confluent: bool = False) -> ReadValues:
    parser = JsonParser(is_exact=_has_decimal(schema), is_confluent=is_confluent)

    def read(values: Sequence[bytes | None]) -> ReadRecords:
        tables, good, bad = [], list[int](), list[tuple[int, str]]()
        for rows in slices(values):
            records, places = list[dict[str, Any] | None](), list[int]()
            for row in rows:
                value = values[row]
                try:
                    records.append(None if value is None else parser.parse(value))
                    places.append(row)
                except ValueError as error:
                    bad.append((row, first_line(error)))
            made = columns_of(records, schema, is_json=True)
            tables.append(made.table)
            good += [place for number, place in enumerate(places) if number not in made.bad]
            bad += [(places[number], why) for number, why in made.bad.items()]
        return ReadRecords(pa.concat_tables(tables) if tables else schema.empty_table(), good, sorted(bad))

    return read


def slices(values: Sequence[bytes | None]) -> Iterator[range]:
    """Rows that are parsed together."""
    begin = size = 0
    for row, value in enumerate(values):
        if row > begin and (row - begin == _ROWS or size + len(value or b"") > _BYTES):
            yield range(begin, row)
            begin, size = row, 0
        size += len(value or b"")
    if begin < len(values):
        yield range(begin, len(values))


def _has_decimal(fields: Any) -> bool:
    def has(kind: Any) -> bool:
        types = pa.types
        if types.is_struct(kind):
            return _has_decimal(kind)
        if types.is_list(kind):
            return has(kind.value_type)
        return bool(types.is_decimal(kind))

    return any(has(one.type) for one in fields)
