"""An archive of JSON changes no value: what the table cannot hold as it is becomes a dead letter, alone."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

import pyarrow as pa

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.archive.piece import RecordSchema, packed
from stratalog_pipeline.jobs.archive.schema_files import schema_of
from stratalog_pipeline.jobs.columns.json_records import json_reader
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat
from support.archived_logs import LogPlace
from support.evolving_records import without_place


@pytest.fixture(params=list(TableFormat))
def place(tmp_path: Path, request: pytest.FixtureRequest) -> LogPlace:
    return LogPlace(tmp_path, request.param)


def texts(*objects: Any) -> list[bytes | None]:
    return [json.dumps(one).encode() for one in objects]


async def test_a_list_of_objects_gets_the_type_of_a_field_that_was_null_so_far(place: LogPlace) -> None:
    cold = await place.fill([texts({"n": 1, "stops": [{"gate": None}]})])
    await place.archive()
    later = [{"n": 2, "stops": [{"gate": "B4"}, {"gate": None}]}, {"n": 3, "stops": [None, {}]}, {"n": 4, "stops": []}]
    await place.fill([texts(*later)], into=cold)
    assert (await place.archive()).dead == 0
    rows = without_place(place.read())
    assert [row["stops"] for row in rows[1:]] == [[{"gate": "B4"}, {"gate": None}], [None, {"gate": None}], []]


@pytest.mark.fault("json-value-fit-column")
async def test_integers_keep_all_their_digits(place: LogPlace) -> None:
    """As doubles, 2**53 + 1 was 2**53, and 2**63 was rounded or lost."""
    numbers = [2**53 + 1, -(2**63), 2**63, 2**64 + 1, 10**38 - 1]
    await place.fill([texts(*({"id": number, "few": number % 7} for number in numbers))])
    assert (await place.archive()).dead == 0
    assert [(row["id"], row["few"]) for row in place.read()] == [(number, number % 7) for number in numbers]


async def test_a_number_that_its_column_would_round_is_a_dead_letter(place: LogPlace) -> None:
    values = [{"x": 0.5}, {"x": 2**53}, {"x": 2**53 + 1}, {"x": 2**60}, {"x": 2**140}, {"x": 10**40}, {"x": 7}]
    cold = await place.fill([texts(*values)])
    told = await place.archive()
    assert (told.rows, told.dead) == (5, 2), "a double has all digits of 2**140, and not of 10**40"
    assert [row["x"] for row in place.read()] == [0.5, 2.0**53, 2.0**60, 2.0**140, 7.0]
    await place.fill([texts({"y": 1})], [texts({"y": 2**63}, {"y": 3}, {"y": 1.5}, {"y": 4.0})], into=cold)
    assert (await place.archive()).dead == 0, "all new segments decide of a field together"


async def test_a_text_that_looks_like_a_time_is_a_text(place: LogPlace) -> None:
    """Before, it lost its zone, and a later text that is not a time became a dead letter."""
    cold = await place.fill([texts({"at": "2013-01-01T05:00:00+02:00"}, {"at": "2013-01-01"})])
    await place.archive()
    await place.fill([texts({"at": "soon"})], into=cold)
    assert (await place.archive()).dead == 0
    assert [row["at"] for row in place.read()] == ["2013-01-01T05:00:00+02:00", "2013-01-01", "soon"]


async def test_a_schema_has_decimals_and_times_with_a_zone(place: LogPlace) -> None:
    schema = schema_of(Kind.JSON, b'{"price": "decimal(10,2)", "at": "timestamp[ms, UTC]", "day": "date32"}', "f")
    values = [
        b'{"price": 12345678.91, "at": "2013-01-01T05:00:00+02:00", "day": "2013-01-31"}',
        b'{"price": "0.10", "at": "2013-01-01 05:00:00.125"}',
        b'{"price": 0.1e1}',
        b'{"price": 0.125}',
        b'{"price": 1e999999999}',
        b'{"price": "NaN"}',
        b'{"at": "2013-01-01T05:00:00.0001Z"}',
        b'{"at": 1357012800}',
    ]
    await place.fill([values])
    told = await place.archive(schema=schema)
    assert (told.rows, told.dead) == (3, 5)
    rows = place.read()
    assert [row["price"] for row in rows] == [Decimal("12345678.91"), Decimal("0.10"), Decimal("1.00")]
    assert [str(row["at"])[:23] for row in rows[:2]] == ["2013-01-01 03:00:00+00:", "2013-01-01 05:00:00.125"]
    assert rows[0]["day"].isoformat() == "2013-01-31"


@pytest.mark.parametrize("kind", ["decimal(39,0)", "decimal", "duration[ms]", "halffloat", "timestamp[ms, CET]", 7])
def test_a_type_that_no_column_can_be_made_of_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a type"):
        schema_of(Kind.JSON, json.dumps({"a": kind}).encode(), "f")


async def test_one_bad_record_is_one_dead_letter_wherever_it_is(place: LogPlace) -> None:
    good = [{"flight": number, "stops": [{"gate": "B"}]} for number in range(9)]
    bad = [b"null", b'{"flight": "x"}', b'{"stops": [{"gate": 1}]}', b"{", b'{"flight": 1} ', b"\n{}"]
    schema = RecordSchema(
        Kind.JSON,
        packed(
            json_schema := pa.schema([("flight", pa.int64()), ("stops", pa.list_(pa.struct([("gate", pa.string())])))])
        ),
    )
    await place.fill([[one for pair in zip(texts(*good), bad, strict=False) for one in pair]])
    told = await place.archive(schema=schema)
    assert (told.rows, told.dead) == (8, 4)
    assert [row["flight"] for row in place.read()] == [0, 1, 2, 3, 4, 1, 5, None]
    (one,) = json_reader(json_schema)([b'{"stops": [null, {"gate": 1}]}']).bad
    assert one == (0, "field 'stops[].gate': a number '1', where the column is string: it is of another type")
