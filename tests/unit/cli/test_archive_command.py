"""`stratalog pipeline archive` on the command line: schemas in files, gaps, and the output for people."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

from stratalog.model.segment import RemoteState
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_pipeline.jobs.columns.table_layout import TableFormat
from support.archived_logs import LogPlace, flights
from support.archived_tables import batch_of, json_value
from support.cold_data import ColdShard
from support.cold_reading import put_shard
from support.evolving_records import (
    INT64,
    MANY,
    ONE,
    STRING,
    avro_schema,
    avro_value,
    descriptor_set,
    protobuf_value,
    without_place,
)


class Place(LogPlace):
    """Commands are run in this process, one piece after another."""

    def __init__(self, folder: Path, table: TableFormat) -> None:
        super().__init__(folder, table)
        self.folder = folder
        self.cold: ColdShard | None = None

    def put(self, *values: bytes | None) -> None:
        """A segment."""
        self.cold = asyncio.run(self.fill([list(values)], into=self.cold))

    def file(self, name: str, body: bytes | dict[str, Any]) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
        return str(path)

    def run(self, *arguments: str) -> Any:
        common = ("--bucket", self.bucket, "--to", self.target, "--format", self.format.value, "--threads", "0")
        return CliRunner().invoke(build_app(("pipeline",)), ["pipeline", "archive", "cold", *common, *arguments])

    def run_json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refusal(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code != 0
        assert result.output.count("\n") == 1, "in a line"
        told: str = result.output
        return told


@pytest.fixture(params=list(TableFormat))
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def files(tmp_path: Path) -> Place:
    return Place(tmp_path, TableFormat.PARQUET)


def test_json_by_a_schema_in_a_file(place: Place) -> None:
    schema = place.file(
        "schema.json", {"flight": "int64", "stops": ["string"], "crew": {"size": "int32"}, "at": "timestamp[ms]"}
    )
    good = b'{"flight": 1, "stops": ["EWR"], "crew": {"size": 5}, "at": "2013-01-01 05:00:00"}'
    place.put(good, b'{"flight": "one"}', json_value(2), b"{}")
    told = place.run_json("--schema", schema)
    assert (told["rows"], told["dead"]) == (2, 2)
    rows = without_place(place.read())
    assert (rows[0]["flight"], rows[0]["stops"], rows[0]["crew"], rows[0]["at"].year) == (1, ["EWR"], {"size": 5}, 2013)
    assert set(rows[1].values()) == {None}
    assert [row["offset"] for row in place.read(is_dead=True)] == [1, 2]


def test_protobuf_by_a_descriptor_set_in_a_file(place: Place) -> None:
    descriptors = descriptor_set(("number", 1, INT64, ONE), ("stops", 2, STRING, MANY))
    place.put(protobuf_value(descriptors, number=7, stops=["EWR"]), b"\x08")
    given = ("--kind", "protobuf", "--schema", place.file("flight.binpb", descriptors))
    assert "no message 'air.Nothing'" in place.refusal(*given, "--message", "air.Nothing")
    told = place.run_json(*given, "--message", "air.Flight")
    assert (told["rows"], told["dead"]) == (1, 1)
    assert without_place(place.read()) == [{"number": 7, "stops": ["EWR"], "crew": None}]


FIRST = avro_schema(("flight", "long"))
SECOND = avro_schema(("flight", "long"), ("gate", "string", "none"))


def test_avro_by_a_schema_in_a_file(place: Place) -> None:
    place.put(avro_value(SECOND, flight=1, gate="B4"), b"\xff")
    told = place.run_json("--kind", "avro", "--schema", place.file("flight.avsc", SECOND))
    assert (told["rows"], told["dead"]) == (1, 1)
    assert without_place(place.read()) == [{"flight": 1, "gate": "B4"}]


@pytest.mark.parametrize("is_folder", [True, False])
def test_avro_by_a_schema_for_each_id(place: Place, is_folder: bool) -> None:
    place.put(
        avro_value(FIRST, 3, flight=1), avro_value(SECOND, 20, flight=2, gate="B4"), avro_value(FIRST, 4, flight=3)
    )
    first, second = place.file("schemas/3.avsc", FIRST), place.file("schemas/20.avsc", SECOND)
    given = [str(Path(first).parent)] if is_folder else [f"20={second}", f"3={first}"]
    told = place.run_json("--kind", "avro", "--confluent", *(word for one in given for word in ("--schema", one)))
    assert (told["rows"], told["dead"]) == (2, 1)
    assert without_place(place.read()) == [{"flight": 1, "gate": "none"}, {"flight": 2, "gate": "B4"}]
    assert "schema id 4" in place.read(is_dead=True)[0]["error"]


def test_schemas_that_cannot_be_meant_are_refused(files: Place) -> None:
    files.put(avro_value(FIRST, flight=1))
    file = files.file("flight.avsc", FIRST)
    by_id = ("--kind", "avro", "--confluent", "--schema")
    assert "add --confluent" in files.refusal("--kind", "avro", "--schema", f"7={file}")
    assert "add --confluent" in files.refusal("--kind", "json", "--confluent", "--schema", f"7={file}")
    assert "each needs its id" in files.refusal(
        "--kind", "avro", "--confluent", "--schema", file, "--schema", f"7={file}"
    )
    assert "cannot be read" in files.refusal(*by_id, "7=/nowhere.avsc")


def framed(body: bytes, *, indexes: bytes = b"") -> bytes:
    return b"\0" + (7).to_bytes(4, "big") + indexes + body


@pytest.mark.fault("records-json-protobuf-id")
@pytest.mark.parametrize("is_given", [False, True])
def test_json_with_the_id_of_a_schema_before_it(place: Place, is_given: bool) -> None:
    """The flag was ignored, and every record a dead letter."""
    schema = ("--schema", place.file("schema.json", {"flight": "int64", "carrier": "string"})) if is_given else ()
    place.put(framed(json_value(1)), json_value(2), b"\1" + framed(json_value(3))[1:], framed(json_value(4)), None)
    told = place.run_json("--confluent", *schema)
    assert (told["rows"], told["dead"]) == (3, 2)
    assert [row["flight"] for row in place.read()] == [1, 4, None]
    assert "zero byte" in place.read(is_dead=True)[0]["error"]
    place.put(framed(json_value(5)))
    assert "was written with --confluent" in place.refusal(*schema)


def test_protobuf_with_the_id_of_a_schema_and_the_index_of_its_message(files: Place) -> None:
    descriptors = descriptor_set(("number", 1, INT64, ONE))
    value = protobuf_value(descriptors, number=7)
    given = ("--kind", "protobuf", "--message", "air.Flight", "--schema", files.file("flight.binpb", descriptors))
    files.put(
        framed(value, indexes=b"\0"),
        framed(value, indexes=b"\2\0"),
        framed(value, indexes=b"\2\2"),
        framed(value, indexes=b"\xff\xff\xff\xff\xff"),
        framed(b""),
        value,
    )
    told = files.run_json("--confluent", *given)
    assert (told["rows"], told["dead"]) == (2, 4)
    assert [row["number"] for row in files.read()] == [7, 7]
    reasons = [row["error"] for row in files.read(is_dead=True)]
    assert reasons[0] == "it is message [1] of its schema, asked for is [0]"


def test_raw_records_have_no_id_that_is_looked_at(files: Place) -> None:
    files.put(b"x")
    assert "--confluent is for kinds that are looked into" in files.refusal("--kind", "raw", "--confluent")


@pytest.mark.fault("records-json-protobuf-id")
@pytest.mark.parametrize(("values", "code"), [((b"x", b"[]"), 1), ((b"x", b"{}"), 0), ((b"{}",), 0), ((None,), 0)])
@pytest.mark.parametrize("output", ["json", "table"])
def test_the_exit_code_says_that_no_record_could_be_read(
    files: Place, values: tuple[bytes | None, ...], code: int, output: str
) -> None:
    files.put(*values)
    result = files.run("--output", output)
    assert result.exit_code == code, result.output
    assert files.run().exit_code == 0, "nothing is new"


def test_a_gap_is_an_error_or_a_line_of_the_report(files: Place) -> None:
    cold = asyncio.run(files.fill([flights(0, 10)]))
    files.run_json()
    asyncio.run(files.fill([flights(10, 10)], [flights(20, 10)], into=cold))
    asyncio.run(files.expire(cold, 2))
    said = files.refusal()
    assert "offsets 10 to 20 of shard 3 of topic cold are gone" in said and "--on-gap report" in said
    shown = files.run("--on-gap", "report")
    assert shown.exit_code == 0
    assert ["3", "10", "20"] in [line.split() for line in shown.stdout.splitlines()], shown.stdout
    assert files.run_json()["gaps"] == [{"topic": "cold", "shard": 3, "from_offset": 10, "to_offset": 20}]


def test_segments_that_are_left_for_a_later_run_are_counted(place: Place) -> None:
    """Else a person who archives a topic that is being written takes the table for the whole topic."""
    place.put(json_value(1), json_value(2))
    assert "left for a later run" not in place.run().output

    async def write_on() -> None:
        cold = place.cold
        assert cold is not None
        cold.store = open_store(place.bucket)
        await cold.add([[batch_of(2, [json_value(3)], epoch=1)]], state=RemoteState.PARTIAL)
        await put_shard(cold)
        await cold.store.close()

    asyncio.run(write_on())
    told = place.run_json()
    assert (told["segments"], told["already"], told["waiting"]) == (0, 1, 1)
    shown = " ".join(place.run().output.split())
    assert "1 segment left for a later run" in shown and "`stratalog seal cold`" in shown
