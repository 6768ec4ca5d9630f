"""JSON records against `json.loads`: each valid object is a row with equal values, or a dead letter with the reason.

What becomes of a record depends on the record and the table's schema, never on its neighbours or their order. And a
record is not refused where the schema was made of records like it.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import pyarrow as pa

from stratalog_pipeline.jobs.columns.json_inference import infer_json, unite
from stratalog_pipeline.jobs.columns.json_records import JsonParser, json_reader
from stratalog_pipeline.jobs.columns.record_kinds import evolve

NAMES = st.sampled_from(["a", "b", "c", "ü", ""])
INTEGERS = st.integers(-10, 10) | st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64, 10**38, 10**40])
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.1, -0.0, 2.0, 1e22, 5e-324])
TEXTS = st.text(max_size=5) | st.sampled_from(
    ["2013-01-01", "2013-01-01T05:00:00Z", "2013-01-01T05:00:00+02:00", "null", "1", "\x00", "\U0001f600", "\ud800"]
)
LEAVES = st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)
LIKE = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
        "at": st.none() | TEXTS.filter(lambda text: text != "\ud800"),
        "is_late": st.none() | st.booleans(),
        "stops": st.none() | st.lists(st.fixed_dictionaries({}, optional={"gate": st.none() | st.text(max_size=3)})),
        "crew": st.none() | st.fixed_dictionaries({}, optional={"sizes": st.lists(st.none() | st.integers(0, 9))}),
    },
)
"""Records that one schema holds."""


@st.composite
def texts_of(draw: st.DrawFn, objects: st.SearchStrategy[Any]) -> bytes:
    """With white space wherever JSON allows it."""
    indent, sort = draw(st.sampled_from([None, 0, 1])), draw(st.booleans())
    body = json.dumps(draw(objects), ensure_ascii=draw(st.booleans()), indent=indent, sort_keys=sort)
    before, after = draw(st.sampled_from(["", " ", "\n", "\t\r"])), draw(st.sampled_from(["", "  ", "\n\n", " " * 300]))
    return f"{before}{body}{after}".encode("utf-8", "surrogatepass")


def is_same(stored: Any, told: Any) -> bool:
    """Whether a column has what the text says; a field that the record lacks is null."""
    if told is None or stored is None:
        return stored is told
    if isinstance(told, dict):
        return (
            isinstance(stored, dict)
            and all(is_same(value, told.get(name)) for name, value in stored.items())
            and {*told} <= {*stored}
        )
    if isinstance(told, list):
        return isinstance(stored, list) and len(stored) == len(told) and all(map(is_same, stored, told))
    if isinstance(told, bool) or isinstance(stored, bool) or isinstance(told, str):
        return type(stored) is type(told) and stored == told
    return (
        isinstance(stored, int | float | Decimal)
        and stored == told
        and math.copysign(1, stored) == math.copysign(1, told)
    )


def outcomes(values: list[bytes], schema: Any) -> list[Any]:
    """Of each record its row, or why it is a dead letter."""
    found = json_reader(schema.append(pa.field("in no record", pa.null())))(values)  # so that a table has rows
    assert sorted([*found.good, *(row for row, _ in found.bad)]) == list(range(len(values)))
    assert all(reason and reason.isprintable() for _, reason in found.bad)
    told: dict[int, Any] = dict(found.bad)
    told.update(zip(found.good, found.table.to_pylist(), strict=True))
    return [told[row] for row in range(len(values))]


@pytest.mark.fault("json-value-fit-column")
@given(st.lists(texts_of(OBJECTS), max_size=8), st.lists(texts_of(OBJECTS), max_size=4))
def test_each_object_is_a_row_of_equal_values_or_a_dead_letter_whatever_is_beside_it(
    values: list[bytes], later: list[bytes]
) -> None:
    """`later`: of a segment that comes once there is a table."""
    schema = evolve(infer_json(values)[0], infer_json(later)[0])
    every = [*values, *later]
    told = outcomes(every, schema)
    for value, one in zip(every, told, strict=True):
        assert isinstance(one, str) or is_same(one, json.loads(value.decode("utf-8", "surrogatepass")))
    assert outcomes(every[::-1], schema) == told[::-1]
    assert [outcomes([one], schema)[0] for one in every] == told


@given(st.lists(texts_of(LIKE), min_size=1, max_size=8), st.randoms())
def test_records_that_one_schema_holds_are_all_rows(values: list[bytes], random: Any) -> None:
    schema, wrong = infer_json(values)
    assert not wrong
    assert [one for one in outcomes(values, schema) if isinstance(one, str)] == []
    pieces = [infer_json([value])[0] for value in random.sample(values, len(values))]
    together = pa.schema([])
    for one in pieces:
        together, more = unite(together, one)
        assert not more
    assert unordered(together) == unordered(schema), "whatever the order of records"


def unordered(fields: Any) -> Any:
    """A schema, whatever the order of its fields."""

    def kind_of(kind: Any) -> Any:
        if pa.types.is_struct(kind):
            return unordered(kind)
        return ("list", kind_of(kind.value_type)) if pa.types.is_list(kind) else str(kind)

    return frozenset((one.name, kind_of(one.type)) for one in fields)


@given(st.one_of(st.binary(max_size=40), texts_of(VALUES), texts_of(OBJECTS)), st.data())
@settings(max_examples=300)
def test_bytes_are_an_object_exactly_where_the_library_finds_one(value: bytes, data: st.DataObject) -> None:
    """Also of texts in which a byte was changed, or that were cut."""
    if value and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(value) - 1))
        value = (
            value[:place] + data.draw(st.sampled_from([b"", b"{", b"null", b'"', b"\xff", b" "])) + value[place + 1 :]
        )
    try:
        expected = json.loads(value.decode(), object_pairs_hook=_each_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        expected = None
    if isinstance(expected, dict):
        assert JsonParser().parse(value) == expected
    else:
        with pytest.raises(ValueError, match=r"."):
            JsonParser().parse(value)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


def _refuse(_: str) -> None:
    raise ValueError
