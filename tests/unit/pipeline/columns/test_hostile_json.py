"""Records of JSON that were made to stop an archive: none does, and none costs its neighbours."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

import pyarrow as pa

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.archive.piece import RecordSchema, packed
from stratalog_pipeline.jobs.columns.json_inference import MOST_DEPTH, MOST_FIELDS, fields_in, infer_json, is_too_deep
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat
from support.archived_logs import LogPlace, flights


@pytest.fixture(params=list(TableFormat))
def place(tmp_path: Path, request: pytest.FixtureRequest) -> LogPlace:
    return LogPlace(tmp_path, request.param)


@pytest.fixture
def files(tmp_path: Path) -> LogPlace:
    return LogPlace(tmp_path, TableFormat.PARQUET)


def nested(depth: int, opens: bytes = b'{"a":', closes: bytes = b"}") -> bytes:
    return b'{"deep":' + opens * (depth - 1) + b"1" + closes * (depth - 1) + b"}"


HOSTILE = {
    "deeper than a parser's stack": nested(100_000),
    "deeper than a serialized schema": nested(200),
    "a deep list": nested(100_000, b"[", b"]"),
    "a name that is no text": b'{"\xff": 1}',
    "a text that is none": b'{"carrier": "\xff"}',
    "a column of the table itself": b'{"_offset": 5}',
    "a null": b"null",
    "a null among white space": b" null ",
    "a null and a brace": b"null{",
    "a null behind an object": b'{"flight": 1} null',
    "nothing": b"",
    "white space": b" " * 100_000,
    "a number that is none": b'{"flight": NaN}',
    "a number beyond all": b'{"flight": 1e400}',
    "a number of a million digits": b'{"flight": ' + b"9" * 1_000_000 + b"}",
    "a name twice": b'{"flight": 1, "flight": 2}',
    "half of a character": b'{"carrier": "\\ud800"}',
    "half of a character as a name": b'{"\\ud800": 1}',
    "UTF-16": '{"flight": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"flight": 1}',
}


@pytest.mark.fault("json-record-built-stop")
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("is_first_run", [False, True])
async def test_one_hostile_record_is_one_dead_letter(place: LogPlace, value: bytes, is_first_run: bool) -> None:
    if is_first_run and b"_offset" in value:
        pytest.skip("a person decides of a table that is not there yet")
    cold = await place.fill([flights(0, 3)])
    if not is_first_run:
        await place.archive()
    await place.fill([[*flights(3, 3), value, *flights(7, 3)]], into=cold)
    told = await place.archive()
    assert (told.segments, told.dead) == (1 + is_first_run, 1)
    assert [row["flight"] for row in place.read()] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert [row["value"] for row in place.read(is_dead=True)] == [value]


@pytest.mark.fault("json-record-built-stop")
@pytest.mark.parametrize("name", ["a b", "a.b", "Flight"])
async def test_a_name_that_the_format_does_not_take_stops_no_job_once_there_is_a_table(
    tmp_path: Path, name: str
) -> None:
    form = TableFormat.ICEBERG if "." in name else TableFormat.DELTA
    place = LogPlace(tmp_path, form)
    cold = await place.fill([flights(0, 3)])
    await place.archive()
    await place.fill([[b'{"%s": 1}' % name.encode(), b'{"flight": 4, "gate": "B4"}']], into=cold)
    told = await place.archive()
    assert (told.rows, told.dead) == (1, 1)
    assert [(row["flight"], row["gate"]) for row in place.read()] == [(0, None), (1, None), (2, None), (4, "B4")]


CASES = [
    '{"Flight": 1}',
    '{"_Timestamp_day": 1}',
    '{"_file": 1}',
    '{"_OFFSET": 1}',
    '{"_Key": null}',
    '{"crew": {"Size": 1}}',
    '{"by_date": 1}',
]


@pytest.mark.fault("records-names-differ-case")
@pytest.mark.parametrize("value", CASES)
async def test_names_that_readers_do_not_tell_apart_stop_no_job_once_there_is_a_table(
    place: LogPlace, value: str
) -> None:
    """Spark does not tell `id` from `ID`: it could not read such a table at all, and nor could it a column of the
    table's own. Partitions of an Iceberg table are hidden, and took no commit where a column had their name."""
    is_taken = is_own(value, place.format)
    first = b'{"flight": 0, "crew": {"size": 1}}'
    cold = await place.fill([[first]])
    await place.archive()
    await place.fill([[value.encode(), first]], into=cold)
    told = await place.archive()
    assert (told.rows, told.dead) == ((1, 1) if is_taken else (2, 0))
    assert [row["flight"] for row in place.read()] == ([0, 0] if is_taken else [0, None, 0])


def is_own(value: str, form: TableFormat) -> bool:
    """Whether no column of such a table can have the name."""
    if "by_date" in value:
        return form is not TableFormat.ICEBERG
    return form is TableFormat.ICEBERG or not ("_file" in value or "_Timestamp_day" in value)


@pytest.mark.parametrize(
    "value", ['{"a": 1, "A": 2}', '{"x": {"a": 1, "A": 2}}', *(one for one in CASES if '"_' in one or "by_" in one)]
)
async def test_names_that_readers_do_not_tell_apart_are_refused_in_a_first_run(place: LogPlace, value: str) -> None:
    await place.fill([[value.encode()]])
    if not is_own(value, place.format):
        assert (await place.archive()).dead == 0
        return
    with pytest.raises(InvalidRequest, match=r"differ in nothing but case|column of the table itself"):
        await place.archive()
    assert not list(Path(place.target).rglob("*.parquet"))


@pytest.mark.fault("json-record-built-stop")
def test_keys_that_are_data_cost_no_column_each() -> None:
    """6,000 columns of 6,000 records would take 600 MiB, and 60,000 of them a hundred times that."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, wrong = infer_json([b'{"k%06d": 1}' % number for number in range(20_000)])
    assert (fields_in(found), wrong) == (MOST_FIELDS, [f"more than {MOST_FIELDS:,} fields"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


@pytest.mark.fault("json-record-built-stop")
async def test_a_table_of_too_many_fields_needs_a_schema_and_then_grows_no_further(files: LogPlace) -> None:
    values = [b'{"k%d": {"x": 1}}' % number for number in range(MOST_FIELDS)]
    cold = await files.fill([values])
    with pytest.raises(InvalidRequest, match="more than 1,000 fields: give a --schema"):
        await files.archive()
    await files.archive(schema=RecordSchema(Kind.JSON, packed(pa.schema([("flight", pa.int64())]))))
    await files.fill([[b'{"flight": 1, "gate": 2}'], values], into=cold)
    told = await files.archive()
    assert (told.rows, told.dead) == (MOST_FIELDS // 2, MOST_FIELDS // 2 + 1)
    await files.fill([[b'{"flight": 3, "other": 1}'], values[-1:]], into=cold)
    told = await files.archive()
    assert (told.rows, told.dead) == (0, 2), "not a thousand more with each run"


def test_contradictions_are_reported_once_each_and_not_without_end() -> None:
    values: list[Any] = [b'{"a": 1}', *(b'{"a": {"k%d": %d}}' % (number, number) for number in range(500))]
    _, wrong = infer_json(values)
    assert 1 <= len(wrong) <= 100 and max(map(len, wrong)) <= 300


@pytest.mark.fault("json-record-built-stop")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (nested(MOST_DEPTH), False),
        (nested(MOST_DEPTH + 1), True),
        (nested(MOST_DEPTH, b"[", b"]"), False),
        (nested(MOST_DEPTH + 1, b"[", b"]"), True),
        (b'{"a": [' + b"{}," * 500 + b"{}]}", False),
        (b'{"a": "' + b"{" * 500 + b'"}', False),
        (b'{"a": "\\"' + b"{" * 500 + b'"}', False),
        (b'{"}}}}": ' * 40 + b"1" + b"}" * 40, True),
        (b'{"\\\\": ' * 40 + b"1" + b"}" * 40, True),
        (b"{" * 40 + b'"' + b'\\"' * 1_000_000, True),
        (b"", False),
    ],
)
def test_depth_is_counted_outside_of_texts(value: bytes, expected: bool) -> None:
    assert is_too_deep(value) is expected
