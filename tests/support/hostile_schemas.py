"""Topics of Avro and Protobuf records for `hostile_topics`: all types, damage, schemas that follow each other."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from support.hostile_topics import Oracle, Story, sent

Make = Callable[[random.Random], Any]
PLACES = {"type": "record", "name": "Place", "fields": [{"name": "code", "type": "string"}]}


def record(*fields: Any, name: str = "Flight", namespace: str = "air") -> dict[str, Any]:
    words = ("name", "type", "default")
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [dict(zip(words, one, strict=False)) for one in fields],
    }


def encoded(schema: dict[str, Any], value: dict[str, Any], schema_id: int | None = None) -> bytes:
    out = io.BytesIO(b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(0, 2)
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def avro_oracle(*schemas: dict[str, Any]) -> Oracle:
    """By the first schema that takes all bytes."""
    parsed = [fastavro.parse_schema(json.loads(json.dumps(one))) for one in schemas]

    def read(value: bytes) -> dict[str, Any]:
        for one in parsed:
            stream = io.BytesIO(value)
            try:
                found = fastavro.schemaless_reader(stream, one, None)
            except Exception:
                continue
            if not stream.read(1):
                return dict(found)
        raise ValueError("no schema takes it")

    return read


def is_as_written(schema: dict[str, Any], value: bytes) -> bool:
    """fastavro decodes more than Avro's specification allows: numbers with too many bits, symbols below 0. What it
    writes of values that have the schema's types is allowed."""
    found = avro_oracle(schema)(value)
    is_typed = fastavro.validate(found, fastavro.parse_schema(json.loads(json.dumps(schema))), raise_errors=False)
    return is_typed and encoded(schema, found) == value


def by_id_oracle(schemas: Mapping[int, dict[str, Any]]) -> Oracle:
    """Each record by its own schema; what the newest one has besides is its default."""
    known = {number: avro_oracle(one) for number, one in schemas.items()}
    newest = schemas[max(schemas)]
    defaults = {one["name"]: one.get("default") for one in newest["fields"]}

    def read(value: bytes) -> dict[str, Any]:
        if len(value) < 5 or value[0]:
            raise ValueError("no frame")
        return defaults | known[int.from_bytes(value[1:5], "big")](value[5:])

    return read


LOGICAL = record(
    ("day", {"type": "int", "logicalType": "date"}),
    ("ms", {"type": "int", "logicalType": "time-millis"}),
    ("us", {"type": "long", "logicalType": "time-micros"}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("at_us", {"type": "long", "logicalType": "timestamp-micros"}),
    ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("local_us", ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("fee", {"type": "fixed", "name": "Fee", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 4}),
    ("id", {"type": "string", "logicalType": "uuid"}),
)


def logical_value(draw: random.Random) -> dict[str, Any]:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=draw.randrange(-(2**40), 2**45))
    us = timedelta(microseconds=draw.randrange(1_000))
    return {
        "day": date(1, 1, 1) + timedelta(days=draw.randrange(3_000_000)),
        "ms": time(23, 59, 59, 999_000),
        "us": time(0, 0, 0, draw.randrange(1_000_000)),
        "at": at,
        "at_us": at + us,
        "local": at.replace(tzinfo=None),
        "local_us": draw.choice([None, at.replace(tzinfo=None) + us]),
        "price": Decimal(draw.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
        "fee": Decimal(draw.randrange(-(10**18) + 1, 10**18)).scaleb(-4),
        "id": "12345678-1234-5678-1234-567812345678",
    }


TYPES = record(
    ("null", "null"),
    ("yes", "boolean"),
    ("small", "int"),
    ("large", "long"),
    ("short", "float"),
    ("wide", "double"),
    ("raw", "bytes"),
    ("text", "string"),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"], "default": "A"}),
    ("tag", {"type": "fixed", "name": "Tag", "size": 3}),
    ("kinds", {"type": "array", "items": "air.Kind"}),
    ("sizes", {"type": "map", "values": ["null", "long"]}),
    ("place", PLACES),
    ("places", {"type": "array", "items": ["null", "air.Place"]}),
    ("by_name", {"type": "map", "values": "air.Place"}),
    ("maybe", ["string", "null"]),
    ("number", ["null", "int", "long"]),
)


def types_value(draw: random.Random) -> dict[str, Any]:
    place = {"code": draw.choice(["", "JFK", "ü"])}
    return {
        "null": None,
        "yes": draw.random() < 0.5,
        "small": draw.choice([0, -1, 2**31 - 1, -(2**31)]),
        "large": draw.choice([0, 2**63 - 1, -(2**63), draw.randrange(2**60)]),
        "short": draw.choice([0.0, -0.5, 1.5, float("inf")]),
        "wide": draw.choice([0.1, float("-inf"), 5e-324, 2.0**70]),
        "raw": draw.randbytes(draw.randrange(5)),
        "text": draw.choice(["", "日本", "\0", "x" * 500]),
        "kind": draw.choice("ABC"),
        "tag": draw.randbytes(3),
        "kinds": draw.choices("ABC", k=draw.randrange(4)),
        "sizes": {word: draw.choice([None, 7]) for word in draw.sample(["", "a", "ü", "a.b"], 2)},
        "place": place,
        "places": draw.choice([[], [None, place], [place] * 9]),
        "by_name": draw.choice([{}, {"": place}]),
        "maybe": draw.choice([None, "x"]),
        "number": draw.choice([None, 1, 2**40]),
    }


FIRST = record(("flight", "int"), ("gate", "string"))
SECOND = record(("flight", "long"), ("gate", ["null", "string"], None), ("price", "double", 1.5))
THIRD = record(
    ("flight", "long"), ("price", "double", 1.5), ("kind", {"type": "enum", "name": "K", "symbols": ["X"]}, "X")
)
RECURSIVE = record(("next", ["null", "air.Flight"], None), ("n", "int"))


def damaged(draw: random.Random, value: bytes) -> bytes:
    found = bytearray(value)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(found) + 1)
        found[at : at + draw.randrange(2)] = draw.randbytes(draw.randrange(3))
    return bytes(found)


def avro_stories(draw: random.Random) -> Iterator[Story]:
    def values(schema: dict[str, Any], make: Make, count: int = 40) -> list[bytes]:
        return [encoded(schema, make(draw)) for _ in range(count)]

    types, logical = values(TYPES, types_value), values(LOGICAL, logical_value)
    yield _avro("avro-types", types, TYPES)
    yield _avro("avro-logical", logical, LOGICAL, codec="zstd")
    yield _avro("avro.damaged", [*types, *(damaged(draw, one) for one in types), b"", None], TYPES)
    yield _avro("avro_damaged.logical", [*logical, *(damaged(draw, one) for one in logical)], LOGICAL)
    yield _avro("avro-recursive", [encoded(RECURSIVE, {"n": 1})], RECURSIVE, refused="holds itself")
    union = record(("u", ["string", "long"]))
    yield _avro("avro-union", values(union, lambda draw: {"u": draw.choice(["x", 1])}), union, refused="union of 2")
    older = [{"flight": n, "gate": "B"} for n in range(20)]
    newer = [{"flight": n, "gate": draw.choice([None, "C"]), "price": n / 4} for n in range(20)]
    newest = [{"flight": n, "price": n / 4, "kind": "X"} for n in range(20)]
    framed = [
        *(encoded(FIRST, one, 7) for one in older),
        *(encoded(SECOND, one, 8) for one in newer),
        *(encoded(THIRD, one, 900) for one in newest),
        *(encoded(FIRST, one, 7) for one in older[:3]),
        encoded(FIRST, older[0], 5),
        encoded(FIRST, older[0]),
        b"",
        b"\0\0",
        None,
    ]
    schemas = {7: FIRST, 8: SECOND, 900: THIRD}
    yield Story(
        "Avro-By-Id",
        "avro",
        sent(framed),
        by_id_oracle(schemas),
        is_confluent=True,
        codec="lz4",
        schemas={f"{number}.avsc": json.dumps(one).encode() for number, one in schemas.items()},
    )


def _avro(name: str, values: Sequence[bytes | None], schema: dict[str, Any], **more: Any) -> Story:
    return Story(
        name,
        "avro",
        sent(values),
        avro_oracle(schema),
        schemas={"s.avsc": json.dumps(schema).encode()},
        is_legal=partial(is_as_written, schema),
        **more,
    )


# Protobuf -----------------------------------------------------------------------------------------------------------
INT32, INT64, UINT64, DOUBLE, STRING, BYTES, ENUM, MESSAGE, BOOL, FLOAT, SINT64 = 5, 3, 4, 1, 9, 12, 14, 11, 8, 2, 18
ONE, NEEDED, MANY = 1, 2, 3


def proto3() -> descriptor_pb2.FileDescriptorProto:
    """Nested, repeated, oneof, optional, maps, enums, and a message of another file."""
    file = descriptor_pb2.FileDescriptorProto(name="air.proto", package="air", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="LATE", number=5)
    place = file.message_type.add(name="Place")
    place.field.add(name="code", number=1, type=STRING, label=ONE)
    flight = file.message_type.add(name="Flight")
    flight.oneof_decl.add(name="way")
    flight.oneof_decl.add(name="_seats")
    entry = flight.nested_type.add(name="BagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=STRING, label=ONE)
    entry.field.add(name="value", number=2, type=MESSAGE, label=ONE, type_name=".air.Place")
    for name, number, type_, label, more in (
        ("n", 1, INT64, ONE, {}),
        ("big", 2, UINT64, ONE, {}),
        ("kind", 3, ENUM, ONE, {"type_name": ".air.Kind"}),
        ("kinds", 4, ENUM, MANY, {"type_name": ".air.Kind"}),
        ("road", 5, STRING, ONE, {"oneof_index": 0}),
        ("rail", 6, MESSAGE, ONE, {"oneof_index": 0, "type_name": ".air.Place"}),
        ("seats", 7, INT32, ONE, {"oneof_index": 1, "proto3_optional": True}),
        ("stops", 8, MESSAGE, MANY, {"type_name": ".air.Place"}),
        ("bags", 9, MESSAGE, MANY, {"type_name": ".air.Flight.BagsEntry"}),
        ("at", 10, MESSAGE, ONE, {"type_name": ".google.protobuf.Timestamp"}),
        ("raw", 11, BYTES, ONE, {}),
        ("wide", 12, DOUBLE, ONE, {}),
        ("short", 13, FLOAT, MANY, {}),
        ("yes", 14, BOOL, ONE, {}),
        ("zig", 300, SINT64, MANY, {}),
    ):
        flight.field.add(name=name, number=number, type=type_, label=label, **more)  # type: ignore[arg-type]
    return file


def proto2() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=1)
    flight = file.message_type.add(name="Flight")
    flight.field.add(name="n", number=1, type=INT32, label=NEEDED)
    flight.field.add(name="gate", number=2, type=STRING, label=ONE, default_value="B4")
    flight.field.add(name="kind", number=3, type=ENUM, label=ONE, type_name=".old.Kind")
    flight.field.add(name="kinds", number=4, type=ENUM, label=MANY, type_name=".old.Kind")
    return file


def descriptors(file: descriptor_pb2.FileDescriptorProto) -> bytes:
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    return descriptor_pb2.FileDescriptorSet(file=[times, file]).SerializeToString()


def message_of(file: descriptor_pb2.FileDescriptorProto, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(descriptors(file)).file:
        pool.Add(one)  # type: ignore[no-untyped-call]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))  # type: ignore[no-untyped-call]


def protobuf_oracle(kind: Any) -> Oracle:
    def read(value: bytes) -> dict[str, Any]:
        found = kind.FromString(value)
        size = found.ByteSize()
        found.DiscardUnknownFields()
        if found.ByteSize() != size or not found.IsInitialized():
            raise ValueError("fields that it does not have, or lacks")
        return _row(found)

    return read


def _row(message: Any) -> dict[str, Any]:
    row = {}
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name)
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            inner = one.message_type.fields_by_name["value"]
            row[one.name] = {key: _single(value[key], inner) for key in value}
        elif one.is_repeated:
            row[one.name] = [_single(item, one) for item in value]
        elif one.has_presence and not message.HasField(one.name):
            row[one.name] = None
        else:
            row[one.name] = _single(value, one)
    return row


def _single(value: Any, one: Any) -> Any:
    if one.message_type is not None:
        return _row(value)
    if one.enum_type is not None:
        known = one.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def protobuf_stories(draw: random.Random) -> Iterator[Story]:
    new, old = message_of(proto3(), "air.Flight"), message_of(proto2(), "old.Flight")
    values = []
    for n in range(40):
        one = new(n=n - 5, big=2**64 - 1 - n, kind=draw.choice([0, 5, 77]), raw=draw.randbytes(3), wide=n / 3)
        one.kinds.extend(draw.choices([0, 5, 9], k=draw.randrange(3)))
        one.short.extend([1.5, float("inf")][: draw.randrange(3)])
        one.zig.extend([-(2**63), 2**63 - 1][: draw.randrange(3)])
        one.stops.add(code="ü")
        if draw.random() < 0.7:
            one.bags["a" * draw.randrange(3)].code = "x"
            one.at.seconds = n
        match draw.randrange(4):
            case 0:
                one.road = ""
            case 1:
                one.rail.SetInParent()
            case 2:
                one.seats = 0
        values.append(one.SerializeToString())
    unknown = [one + b"\xa0\x1f\x01" for one in values[:3]]
    hurt = [damaged(draw, one) for one in values]
    pre = [old(n=n, gate=draw.choice(["", "C"])).SerializeToString() for n in range(9)]
    pre += [old(n=1).SerializeToString(), b"", b"\x12\x01x", b"\x08\x01\x18\x09", b"\x08\x01\x20\x09\x20\x01"]
    files = {"d.pb": descriptors(proto3())}
    yield Story("proto-new", "protobuf", sent(values), protobuf_oracle(new), schemas=files, message="air.Flight")
    yield Story(
        "proto-hurt",
        "protobuf",
        sent([*unknown, *hurt, None, b""]),
        protobuf_oracle(new),
        schemas=files,
        message="air.Flight",
    )
    yield Story(
        "proto-old",
        "protobuf",
        sent(pre),
        protobuf_oracle(old),
        schemas={"d.pb": descriptors(proto2())},
        message="old.Flight",
    )
    framed = [b"\0\0\0\0\x09\x02\x02" + one for one in values[:9]]
    framed += [
        b"\0\0\0\0\x09\0" + values[0],
        values[0],
        b"\0\0\0\0\x09",
        b"\0\0\0\0\x09\xff\xff\xff\xff\xff\xff" + values[0],
    ]

    def oracle(value: bytes) -> dict[str, Any]:
        if value[:7] != b"\0\0\0\0\x09\x02\x02":
            raise ValueError("no frame of this message")
        return protobuf_oracle(new)(value[7:])

    yield Story(
        "proto-framed", "protobuf", sent(framed), oracle, is_confluent=True, schemas=files, message="air.Flight"
    )
