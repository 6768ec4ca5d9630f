"""Avro, Protobuf and JSON by a schema that was given, in a table of each format, and schemas that follow each other."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.archive.archive import Archived
from stratalog_pipeline.jobs.archive.schema_files import files_of_ids, schema_of, schema_of_writers
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat
from support.archived_logs import LogPlace
from support.archived_tables import json_value
from support.evolving_records import (
    INT32,
    INT64,
    MANY,
    ONE,
    STRING,
    FieldShape,
    avro_schema,
    avro_value,
    descriptor_set,
    protobuf_value,
    without_place,
)


class Place(LogPlace):
    async def avro(self, schema: dict[str, Any], *, is_confluent: bool = False) -> Archived:
        given = schema_of(Kind.AVRO, json.dumps(schema).encode(), "schema", is_confluent=is_confluent)
        return await self.archive(kind=Kind.AVRO, schema=given)

    async def avro_by_id(self, **schemas: dict[str, Any]) -> Archived:
        """`_7=schema`."""
        bodies = {int(name[1:]): (json.dumps(told).encode(), name) for name, told in schemas.items()}
        return await self.archive(kind=Kind.AVRO, schema=schema_of_writers(bodies))

    async def protobuf(self, descriptors: bytes) -> Archived:
        return await self.archive(kind=Kind.PROTOBUF, schema=schema_of(Kind.PROTOBUF, descriptors, "set", "air.Flight"))

    async def json(self, **fields: Any) -> Archived:
        return await self.archive(schema=schema_of(Kind.JSON, json.dumps(fields).encode(), "schema"))

    def records(self) -> list[dict[str, Any]]:
        return without_place(self.read())

    def reasons(self) -> list[str]:
        return [row["error"] for row in self.read(is_dead=True)]


@pytest.fixture(params=list(TableFormat))
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def files(tmp_path: Path) -> Place:
    return Place(tmp_path, TableFormat.PARQUET)


# Avro ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("schema_id", [None, 7])
async def test_avro_becomes_columns(place: Place, schema_id: int | None) -> None:
    schema = avro_schema(
        ("flight", "long"),
        ("carrier", ["null", "string"]),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("stops", {"type": "array", "items": "string"}),
        ("seats", {"type": "map", "values": "int"}),
    )
    at = datetime(2013, 1, 1, tzinfo=UTC)
    good = avro_value(schema, schema_id, flight=1, carrier="UA", at=at, stops=["EWR"], seats={"a": 1})
    await place.fill([[good, b"\xff" * 11, good + b"x", None, good[:-3]]])
    told = await place.avro(schema, is_confluent=schema_id is not None)
    assert (told.rows, told.dead) == (2, 3)
    rows = place.records()
    assert (rows[0]["flight"], rows[0]["carrier"], rows[0]["stops"]) == (1, "UA", ["EWR"])
    assert (rows[0]["at"], dict(rows[0]["seats"])) == (at, {"a": 1})
    assert set(rows[1].values()) == {None}
    assert [row["offset"] for row in place.read(is_dead=True)] == [1, 2, 4]


V1 = avro_schema(("flight", "long"), ("carrier", "string"))
V2 = avro_schema(("flight", "long"), ("carrier", "string"), ("gate", "string", "none"))
V3 = avro_schema(("flight", "long"), ("gate", "string", "none"), ("seats", "int"))


@pytest.mark.fault("avro-protobuf-schema-changes")
async def test_records_of_earlier_avro_schemas_are_read_beside_those_of_the_newest(place: Place) -> None:
    """A field that a record's own schema lacks has its default, or null; a field that the newest lacks stays."""
    cold = await place.fill([[avro_value(V1, flight=0, carrier="UA")]])
    await place.avro(V1)
    old, new = avro_value(V1, flight=1, carrier="AA"), avro_value(V2, flight=2, carrier="B6", gate="B4")
    await place.fill([[old, new]], into=cold)
    assert (await place.avro(V2)).dead == 0
    await place.fill([[old, new, avro_value(V3, flight=3, gate="C1", seats=5)]], into=cold)
    assert (await place.avro(V3)).dead == 0
    found = [(row["flight"], row["carrier"], row["gate"], row["seats"]) for row in place.records()]
    assert found == [
        (0, "UA", None, None),
        (1, "AA", "none", None),
        (2, "B6", "B4", None),
        (1, "AA", "none", None),
        (2, "B6", "B4", None),
        (3, None, "C1", 5),
    ]


async def test_an_avro_schema_counts_only_if_it_takes_all_bytes(files: Place) -> None:
    """By the newest schema alone the older record would be a flight with its last byte left."""
    short = avro_schema(("flight", "long"))
    longer = avro_schema(("flight", "long"), ("seats", "long"))
    cold = await files.fill([[avro_value(longer, flight=1, seats=2)]])
    await files.avro(longer)
    values = [avro_value(longer, flight=3, seats=4), avro_value(short, flight=5), b"", b"\x02\x02\x02"]
    await files.fill([values], into=cold)
    told = await files.avro(short)
    assert (told.rows, told.dead) == (2, 2)
    assert [(row["flight"], row["seats"]) for row in files.records()] == [(1, 2), (3, 4), (5, None)]


async def test_structures_within_avro_records_grow_too(place: Place) -> None:
    def schema(*fields: Any) -> dict[str, Any]:
        crew = {**avro_schema(*fields), "name": "Crew"}
        return avro_schema(
            ("crew", crew), ("legs", {"type": "array", "items": "Crew"}), ("by", {"type": "map", "values": "Crew"})
        )

    first, second = schema(("size", "int")), schema(("lead", "string", "x"))
    old = avro_value(first, crew={"size": 1}, legs=[{"size": 2}], by={"x": {"size": 3}})
    cold = await place.fill([[old]])
    await place.avro(first)
    await place.fill([[old, avro_value(second, crew={"lead": "y"}, legs=[], by={})]], into=cold)
    assert (await place.avro(second)).dead == 0
    found = place.records()
    assert [(row["crew"], row["legs"], dict(row["by"])) for row in found[1:]] == [
        ({"size": 1, "lead": "x"}, [{"size": 2, "lead": "x"}], {"x": {"size": 3, "lead": "x"}}),
        ({"size": None, "lead": "y"}, [], {}),
    ]


@pytest.mark.fault("avro-protobuf-schema-changes")
async def test_records_are_read_by_the_schemas_that_their_ids_name(place: Place) -> None:
    """Bytes that would fit two schemas are read by their own."""
    first, second = (
        avro_schema(("flight", "long"), ("seats", "long")),
        avro_schema(("flight", "long"), ("delay", "long")),
    )
    cold = await place.fill([[avro_value(first, 4, flight=1, seats=2), avro_value(second, 9, flight=3, delay=4)]])
    assert (await place.avro_by_id(_4=first, _9=second)).dead == 0
    third = avro_schema(("flight", "long"), ("delay", "long"), ("gate", "string", "none"))
    values = [
        avro_value(first, 4, flight=5, seats=6),
        avro_value(third, 10, flight=7, delay=8, gate="B4"),
        avro_value(third, 11, flight=7, delay=8, gate="B4"),
        b"\1" + avro_value(third, 10, flight=7, delay=8, gate="B4")[1:],
        b"\0\0\0",
    ]
    await place.fill([values], into=cold)
    told = await place.avro_by_id(_10=third)
    assert (told.rows, told.dead) == (2, 3), "the table remembers the ids that it was given before"
    found = [(row["flight"], row["seats"], row["delay"], row["gate"]) for row in place.records()]
    assert found == [(1, 2, None, None), (3, None, 4, None), (5, 6, None, "none"), (7, None, 8, "B4")]
    reasons = place.reasons()
    assert "schema id 11, which is not known: give --schema 11=FILE" in reasons[0]
    assert all("zero byte" in reason for reason in reasons[1:])


async def test_an_id_names_one_schema_for_good(files: Place) -> None:
    cold = await files.fill([[avro_value(V1, 4, flight=1, carrier="UA")]])
    await files.avro_by_id(_4=V1)
    await files.fill([[avro_value(V2, 4, flight=1, carrier="UA", gate="B4")]], into=cold)
    with pytest.raises(InvalidRequest, match="schema id 4 named another schema"):
        await files.avro_by_id(_4=V2)
    with pytest.raises(InvalidRequest, match="by their ids"):
        await files.avro(V2, is_confluent=True)


@pytest.mark.fault("table-reads-records-ids")
async def test_records_that_were_read_before_there_were_ids_still_are(files: Place) -> None:
    """A table of one schema for records of all ids learns of a new id. Those of the others do not become unreadable."""
    cold = await files.fill([[avro_value(V1, 4, flight=1, carrier="UA")]])
    await files.avro(V1, is_confluent=True)
    more = [avro_value(V1, 5, flight=2, carrier="AA"), avro_value(V2, 9, flight=3, carrier="B6", gate="B4")]
    await files.fill([more], into=cold)
    assert (await files.avro_by_id(_9=V2)).dead == 0
    await files.fill(
        [[avro_value(V1, 5, flight=4, carrier="DL"), avro_value(V1, 8, flight=5, carrier="EV")]], into=cold
    )
    assert (await files.avro_by_id(_4=V1, _10=V3)).dead == 0
    assert [(row["flight"], row["gate"]) for row in files.records()] == [
        (1, None),
        (2, "none"),
        (3, "B4"),
        (4, "none"),
        (5, "none"),
    ]


@pytest.mark.fault("table-reads-records-ids")
@pytest.mark.parametrize("is_confluent", [False, True])
async def test_a_flag_that_would_make_all_records_unreadable_is_refused(files: Place, is_confluent: bool) -> None:
    schema_id = 4 if is_confluent else None
    cold = await files.fill([[avro_value(V1, schema_id, flight=1, carrier="UA")]])
    await files.avro(V1, is_confluent=is_confluent)
    await files.fill([[avro_value(V1, schema_id, flight=2, carrier="AA")]], into=cold)
    with pytest.raises(InvalidRequest, match=f"was written {'with' if is_confluent else 'without'} --confluent"):
        await files.avro(V1, is_confluent=not is_confluent)
    assert (await files.avro(V1, is_confluent=is_confluent)).dead == 0


async def test_a_schema_that_is_asked_for_again_is_no_new_one(files: Place) -> None:
    cold = await files.fill([[avro_value(V1, flight=0, carrier="UA")]])
    for number in range(1, 4):
        await files.avro(V1)
        await files.fill([[avro_value(V1, flight=number, carrier="UA")]], into=cold)
    assert len(list(Path(files.target).rglob("_schemas/*.json"))) == 1


def test_schemas_by_id_are_files_or_a_folder(tmp_path: Path) -> None:
    for name in ("7.avsc", "12.avsc", "notes.avsc", "8.json"):
        (tmp_path / name).write_text("{}")
    assert files_of_ids([str(tmp_path), "9=x.avsc"]) == {
        7: tmp_path / "7.avsc",
        12: tmp_path / "12.avsc",
        9: Path("x.avsc"),
    }
    assert files_of_ids(["schema.json"]) == files_of_ids([]) == {}
    for given, words in (
        (["a.avsc", "7=b.avsc"], "each needs its id"),
        (["a.avsc", "b.avsc"], "each needs its id"),
        (["7=a", "7=b"], "id 7 is given twice"),
        (["4294967296=a"], "not an id of a schema"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            files_of_ids(given)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest, match=r"no file <id>\.avsc"):
        files_of_ids([str(tmp_path / "empty")])


def test_what_is_no_avro_schema_of_a_record_is_refused() -> None:
    for body, words in (
        (b'{"type": "recrd"}', "cannot be read"),
        (b'"long"', "not that of a record"),
        (b"{", "no JSON"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            schema_of(Kind.AVRO, body, "schema")
        with pytest.raises(InvalidRequest, match=words):
            schema_of_writers({7: (body, "7.avsc")})


# Protobuf ------------------------------------------------------------------------------------------------------------
NUMBER: FieldShape = ("number", 1, INT64, ONE)
STOPS: FieldShape = ("stops", 2, STRING, MANY)
GATE: FieldShape = ("gate", 3, STRING, ONE)


async def test_protobuf_becomes_columns(place: Place) -> None:
    descriptors = descriptor_set(NUMBER, STOPS)
    good = protobuf_value(descriptors, number=7, stops=["EWR", "SFO"], crew={"size": 2})
    await place.fill([[good, b"\x08", None]])
    told = await place.protobuf(descriptors)
    assert (told.rows, told.dead) == (2, 1)
    assert place.records()[0] == {"number": 7, "stops": ["EWR", "SFO"], "crew": {"size": 2}}
    with pytest.raises(InvalidRequest, match=r"air\.Nothing"):
        schema_of(Kind.PROTOBUF, descriptors, "set", "air.Nothing")


@pytest.mark.fault("avro-protobuf-schema-changes")
async def test_messages_of_earlier_descriptors_are_read_beside_those_of_the_newest(place: Place) -> None:
    """Fields are added and taken away; a message with a field that no descriptor has is a dead letter."""
    first, second = descriptor_set(NUMBER, STOPS), descriptor_set(NUMBER, GATE)
    third = descriptor_set(NUMBER, ("seats", 9, INT32, ONE))
    old = protobuf_value(first, number=1, stops=["EWR"])
    cold = await place.fill([[old]])
    await place.protobuf(first)
    await place.fill([[old, protobuf_value(second, number=2, gate="B4"), protobuf_value(third, seats=5)]], into=cold)
    told = await place.protobuf(second)
    assert (told.rows, told.dead) == (2, 1)
    found = [(row["number"], row["stops"], row["gate"]) for row in place.records()]
    assert found == [(1, ["EWR"], None), (1, ["EWR"], None), (2, None, "B4")]
    assert place.reasons() == ["it has a field that the message does not have"]


# Types stay ----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("schema-gives-type-column")
async def test_a_schema_that_turns_a_column_into_another_is_refused(place: Place) -> None:
    cold = await place.fill([[avro_value(avro_schema(("flight", "long")), flight=0)]])
    await place.avro(avro_schema(("flight", "long")))
    text = avro_schema(("flight", "string"))
    await place.fill([[avro_value(text, flight="one")]], into=cold)
    with pytest.raises(InvalidRequest, match=r"flight \(int64 in the table, string now\)"):
        await place.avro(text)
    assert [row["flight"] for row in place.records()] == [0]


@pytest.mark.fault("schema-gives-type-column")
async def test_a_message_that_turns_a_column_into_another_is_refused(place: Place) -> None:
    first, second = descriptor_set(NUMBER), descriptor_set(("number", 4, STRING, ONE))
    cold = await place.fill([[protobuf_value(first, number=1)]])
    await place.protobuf(first)
    await place.fill([[protobuf_value(second, number="one")]], into=cold)
    with pytest.raises(InvalidRequest, match=r"number \(int64 in the table, string now\)"):
        await place.protobuf(second)


@pytest.mark.fault("schema-gives-type-column")
async def test_a_json_schema_that_turns_a_column_into_another_is_refused(place: Place) -> None:
    cold = await place.fill([[json_value(0, gate=None, crew={"size": 1})]])
    await place.json(flight="int64", carrier="string", crew={"size": "int32"}, gate="null")
    await place.fill([[json_value(1, gate="B4", crew={"size": 2})]], into=cold)
    with pytest.raises(InvalidRequest, match=r"crew\.size \(int32 in the table, string now\)"):
        await place.json(flight="int64", carrier="string", crew={"size": "string"})
    told = await place.json(gate="string")
    assert (told.rows, told.dead) == (1, 0), "a field without a type may get one"
    assert [(row["gate"], row["crew"]) for row in place.records()] == [(None, {"size": 1}), ("B4", {"size": 2})]


# Types of Avro -------------------------------------------------------------------------------------------------------
@pytest.mark.fault("avro-writers-use-uuid")
async def test_avro_values_of_every_type_are_stored_as_they_are(place: Place) -> None:
    """Texts of uuids were dead letters, and a name could not be used again with its namespace."""
    crew = {"type": "record", "name": "Crew", "namespace": "air.staff", "fields": [{"name": "size", "type": "int"}]}
    schema = {
        **avro_schema(
            ("id", {"type": "string", "logicalType": "uuid"}),
            ("crew", crew),
            ("other", "air.staff.Crew"),
            ("maybe", ["null", "air.staff.Crew"]),
            ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
            ("again", "air.Kind"),
            ("count", ["null", "int", "long"]),
            ("raw", {"type": "fixed", "name": "Raw", "size": 16, "logicalType": "uuid"}),
            ("ratio", {"type": "double", "logicalType": "of another type"}),
        ),
        "namespace": "air",
    }
    record = {
        "id": UUID(int=7),
        "crew": {"size": 1},
        "other": {"size": 2},
        "maybe": {"size": 3},
        "kind": "B",
        "again": "A",
        "count": 2**40,
        "raw": b"\xff" * 16,
        "ratio": float("inf"),
    }
    await place.fill([[avro_value(schema, **record)]])
    assert (await place.avro(schema)).dead == 0
    assert place.records() == [{**record, "id": str(record["id"])}]


@pytest.mark.fault("delta-table-map-values")
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_map_of_times_without_a_zone_is_a_column(place: Place, is_first: bool) -> None:
    """A Delta table took no commit, for the feature that such a column needs was not named."""
    local = {"type": "long", "logicalType": "local-timestamp-micros"}
    plain = avro_schema(("n", "long"))
    schema = avro_schema(("n", "long"), ("at", {"type": "map", "values": {"type": "array", "items": local}}, {}))
    cold = None
    if not is_first:
        cold = await place.fill([[avro_value(plain, n=0)]])
        await place.avro(plain)
    at = datetime.fromisoformat("2013-01-01T05:00:00")
    await place.fill([[avro_value(schema, n=1, at={"x": [at]})]], into=cold)
    assert (await place.avro(schema)).dead == 0
    assert dict(place.records()[-1]["at"]) == {"x": [at]}


@pytest.mark.fault("avro-writers-use-uuid")
async def test_avro_types_are_promoted_to_those_of_the_table(place: Place) -> None:
    """A writer's int is a long of the table, as Avro says; it was another type, and the schema was refused."""
    wide = avro_schema(("count", "long"), ("ratio", "double"), ("share", "double"), ("text", "string"))
    narrow = avro_schema(("count", "int"), ("ratio", "float"), ("share", "long"), ("text", "bytes"))
    cold = await place.fill([[avro_value(wide, count=2**40, ratio=0.1, share=0.5, text="a")]])
    await place.avro(wide)
    values = [
        avro_value(narrow, count=1, ratio=0.5, share=2**53, text=b"\xc3\xbc"),
        avro_value(narrow, count=1, ratio=0.5, share=2**53 + 1, text=b""),
        avro_value(narrow, count=1, ratio=0.5, share=1, text=b"\xff"),
    ]
    await place.fill([values], into=cold)
    told = await place.avro(narrow)
    assert (told.rows, told.dead) == (1, 2)
    assert place.records()[1] == {"count": 1, "ratio": 0.5, "share": 2.0**53, "text": "ü"}
    assert "would lose digits" in place.reasons()[0] and "'text'" in place.reasons()[1]
    with pytest.raises(InvalidRequest, match=r"count \(int64 in the table, string now\)"):
        await place.fill([[b""]], into=cold)
        await place.avro(avro_schema(("count", "string")))


async def test_the_widest_type_of_several_schemas_is_that_of_the_column(place: Place) -> None:
    old, new = avro_schema(("count", "long"), ("ratio", "float")), avro_schema(("count", "int"), ("ratio", "double"))
    values = [avro_value(old, 4, count=2**40, ratio=0.5), avro_value(new, 5, count=7, ratio=0.1)]
    await place.fill([values])
    assert (await place.avro_by_id(_4=old, _5=new)).dead == 0
    assert place.records() == [{"count": 2**40, "ratio": 0.5}, {"count": 7, "ratio": 0.1}]


async def test_a_number_is_never_cut_to_fit_a_column(files: Place) -> None:
    """An Avro double in a column of integers was stored without its fraction."""
    files_by_id = {4: avro_schema(("count", "double")), 5: avro_schema(("count", "long"))}
    values = [avro_value(files_by_id[4], 4, count=1.5), avro_value(files_by_id[4], 4, count=2.0)]
    await files.fill([[*values, avro_value(files_by_id[5], 5, count=3)]])
    told = await files.avro_by_id(_4=files_by_id[4], _5=files_by_id[5])
    assert (told.rows, told.dead) == (2, 1)
    assert [row["count"] for row in files.records()] == [2, 3]
