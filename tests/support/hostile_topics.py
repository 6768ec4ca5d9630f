"""Topics of many shapes, valid and hostile, that the pipeline has to read: what is written, and what a reader expects.

`stories(seed)` makes the same topics for the same seed. What a record should become is decided here by the libraries
that everybody reads such records with (`json`, `fastavro`, `google.protobuf`), never by the pipeline's own code.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

Oracle: TypeAlias = Callable[[bytes], dict[str, Any]]
"""Decodes the record in a value. Raises if the value is not such a record."""
DAY_MS = 86_400_000
FIRST_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Sent:
    value: bytes | None
    key: bytes | None = b"key"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = FIRST_MS
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Story:
    """A topic: its records in the order in which they are sent, and how they are to be read."""

    name: str
    kind: str
    records: Sequence[Sent]
    oracle: Oracle | None = None
    """None: raw records are what they are."""
    shards: int = 1
    codec: str = "none"
    is_confluent: bool = False
    schemas: Mapping[str, bytes] = field(default_factory=dict)
    """Files that are given as --schema, by name: `ID.avsc` with ids."""
    message: str = ""
    refused: str = ""
    """What the archive says that refuses the whole topic."""
    settings: Mapping[str, object] = field(default_factory=dict)
    is_legal: Callable[[bytes], bool] = lambda _: True
    """Whether bytes that the oracle decodes are what the format's specification calls such a record."""


# What equal means ---------------------------------------------------------------------------------------------------
def is_same(told: Any, row: Any) -> bool:
    """Whether a row has what a record says. A field that a record lacks is null."""
    if told is None or row is None:
        return told is row
    if isinstance(told, dict):
        if isinstance(row, list):  # a map
            return len(row) == len(told) and all(key in told and is_same(told[key], value) for key, value in row)
        return isinstance(row, dict) and all(is_same(told.get(name), row.get(name)) for name in {*told, *row})
    if isinstance(told, list):
        return isinstance(row, list) and len(told) == len(row) and all(map(is_same, told, row))
    if isinstance(told, bool) or isinstance(row, bool):
        return told is row
    if isinstance(told, int | float | Decimal):
        if told != told:
            return bool(row != row)
        return isinstance(row, int | float | Decimal) and Decimal(told) == Decimal(row)
    if isinstance(told, datetime | date | time | str | bytes):
        return type(told) is type(row) and told == row
    return isinstance(told, UUID) and str(told) == row


def says_nothing(told: Any) -> bool:
    """Nulls, and lists and objects of only these: a field with no other value has no type, and no column."""
    if isinstance(told, dict):
        return all(map(says_nothing, told.values()))
    return told is None or (isinstance(told, list) and all(map(says_nothing, told)))


# JSON ---------------------------------------------------------------------------------------------------------------
def json_oracle(value: bytes) -> dict[str, Any]:
    """Parses as RFC 8259 says: UTF-8, an object here, each name once, no NaN; it refuses a number that no double
    holds."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in found}) != len(found):
            raise ValueError("a name twice")
        return dict(found)

    def constant(word: str) -> Any:
        raise ValueError(word)

    found = json.loads(value.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    if not isinstance(found, dict):
        raise ValueError("no object")
    _check_finite(found)
    return found


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise ValueError("too large")
    if isinstance(value, str):
        value.encode()
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(one)
    for name in value if isinstance(value, dict) else ():
        name.encode()


def framed_json_oracle(value: bytes) -> dict[str, Any]:
    if value[:1] != b"\0" or len(value) < 5:
        raise ValueError("no frame")
    return json_oracle(value[5:])


TEXTS = (
    "",
    "x",
    "ü",
    "日本",
    "😀",
    "\u0000",
    "a\nb",
    '"',
    "\\",
    "2013-01-01T00:00:00Z",
    "null",
    "1",
    " ",
    "\u2028",
    "é" * 40,
)
NAMES = (
    "",
    "a.b",
    "a`b",
    'a"b',
    "a\nb",
    " lead",
    "trail ",
    "ü",
    "日本",
    "a/b",
    "a=b",
    "select",
    "x" * 300,
    "a,b",
    "{}",
)
NUMBERS = (
    "0",
    "-0",
    "1.0",
    "1e2",
    "0.1",
    "-1.5E-7",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "123456789012345678901234567890",
    "5e-324",
    "1.7976931348623157e308",
)
BROKEN = (
    b"",
    b" ",
    b"null",
    b" null ",
    b"null{",
    b"7",
    b'"text"',
    b"[]",
    b"true",
    b"{",
    b"}",
    b'{"a":',
    b'{"a" 1}',
    b"{'a': 1}",
    b'{"a": 1,}',
    b'{"a": 01}',
    b'{"a": NaN}',
    b'{"a": -Infinity}',
    b'{"a": 1e999}',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1} x',
    b'{"a": 1, "a": 2}',
    b'{"n": {"b": 1, "b": 1}}',
    b'\xef\xbb\xbf{"a": 1}',
    '{"a": 1}'.encode("utf-16"),
    b'{"t": "\xff"}',
    b'{"t": "\xed\xa0\x80"}',
    b'{"t": "\\ud800"}',
    b'{"\\udc00": 1}',
    b'{"t": "a\nb"}',
    b'{"t": "\\x41"}',
    b"\0\0\0\0\1" + b'{"a": 1}',
    b"{" * 40 + b"}" * 40,
    b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    b'{"a":' * 200_000,
    b"[" * 200_000,
)
"""None of them is an object that a column holds. What the parser of a job makes of them must not end the job."""


def _written(draw: random.Random, value: Any) -> bytes:
    """The same value, written in one of many ways. A `Raw` stands as it is."""
    gap = draw.choice(["", "", " ", "\n\t", "\r\n  "])
    if isinstance(value, Raw):
        return value.text.encode()
    if isinstance(value, dict):
        inside = [_written(draw, name) + f"{gap}:{gap}".encode() + _written(draw, one) for name, one in value.items()]
        return b"{" + gap.encode() + f"{gap},{gap}".encode().join(inside) + gap.encode() + b"}"
    if isinstance(value, list):
        return b"[" + f",{gap}".encode().join(_written(draw, one) for one in value) + gap.encode() + b"]"
    return json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Raw:
    text: str


def _shape(draw: random.Random, depth: int, names: Sequence[str]) -> Callable[[], Any]:
    """A generator of values of one type, which may be null, or lack fields."""
    match draw.randrange(8 if depth else 6):
        case 0:
            return lambda: draw.choice([None, draw.randrange(-5, 2**53)])
        case 1:
            return lambda: draw.choice([None, Raw(draw.choice(NUMBERS))])
        case 2:
            return lambda: draw.choice([None, True, False])
        case 3 | 4:
            return lambda: draw.choice([None, *TEXTS])
        case 5:
            return lambda: draw.choice([None, draw.random(), draw.randrange(100)])
        case 6:
            element = _shape(draw, depth - 1, names)
            return lambda: draw.choice([None, [], [element() for _ in range(draw.randrange(4))]])
        case _:
            return _object_shape(draw, depth - 1, names)


def _object_shape(draw: random.Random, depth: int, names: Sequence[str]) -> Callable[[], Any]:
    fields = {name: _shape(draw, depth, names) for name in draw.sample(names, min(len(names), draw.randint(1, 5)))}
    return lambda: {
        name: make() for name, make in draw.sample(sorted(fields.items()), len(fields)) if draw.random() < 0.8
    }


def objects(draw: random.Random, count: int, names: Sequence[str] = NAMES, depth: int = 4) -> list[bytes]:
    make = _object_shape(draw, depth, names)
    return [_written(draw, {"n": number, **make()}) for number in range(count)]


def mixed(draw: random.Random, count: int) -> list[bytes]:
    """Each field has another type in each record."""
    names = ("a", "b", "c")

    def value(depth: int) -> Any:
        match draw.randrange(7 if depth else 5):
            case 0:
                return Raw(draw.choice(NUMBERS))
            case 1:
                return draw.choice(TEXTS)
            case 2:
                return draw.choice([None, True])
            case 3:
                return draw.random()
            case 4:
                return draw.randrange(9)
            case 5:
                return [value(depth - 1) for _ in range(draw.randrange(3))]
            case _:
                return {name: value(depth - 1) for name in draw.sample(names, 2)}

    return [_written(draw, {name: value(3) for name in draw.sample(names, 2)}) for _ in range(count)]


def sent(values: Iterable[bytes | None], **more: Any) -> list[Sent]:
    return [Sent(value, b"%d" % number, **more) for number, value in enumerate(values)]


# All of them --------------------------------------------------------------------------------------------------------
def stories(seed: int) -> list[Story]:
    from support.hostile_schemas import avro_stories, protobuf_stories

    draw = random.Random(seed)
    found = [*_json_stories(draw), *avro_stories(draw), *protobuf_stories(draw), *_raw_stories(draw)]
    assert len({one.name for one in found}) == len(found)
    return found


def _json_stories(draw: random.Random) -> Iterable[Story]:
    def story(name: str, values: Sequence[bytes | None], **more: Any) -> Story:
        return Story(name, "json", sent(values), json_oracle, codec=draw.choice(CODECS), **more)

    for number in range(8):
        yield story(f"json-{number}", objects(draw, 60, draw.sample(NAMES, 6)))
    for number in range(3):
        yield story(f"plain-{number}", objects(draw, 60, ("id", "carrier", "stops", "crew", "at", "price")))
    good = [b'{"n": %d, "t": "x"}' % n for n in range(40)]
    yield story("broken", [one for pair in zip(good, BROKEN, strict=False) for one in pair] + list(BROKEN))
    yield story("all-broken", BROKEN)
    yield story("mixed", mixed(draw, 50), refused="contradict each other")
    yield story("late", [b"{}", None, *[_written(draw, {"n": n, f"late{n % 30}": n}) for n in range(90)]])
    yield story(
        "many", [_written(draw, {f"f{n}-{m}": m for m in range(40)}) for n in range(30)], refused="1,000 fields"
    )
    yield story("case", [b'{"id": 1}', b'{"ID": 2}'], refused="differ in nothing but case")
    yield story("taken", [b'{"_OFFSET": 1}'], refused="a column of the table itself")
    yield story("nothing", [b'{"a": null, "b": [], "c": {}, "d": [{}]}'] * 3)
    yield story("deaths", [None, b"", None])
    yield story("one", [b'{"only": 1}'])
    yield story("numbers", [f'{{"i": {one}, "n": {n}}}'.encode() for n, one in enumerate(NUMBERS)])
    yield story("long." + "n" * 240, objects(draw, 5, ("a",), depth=0))
    framed = [b"\0\0\0\0\x07" + one for one in objects(draw, 20, ("a", "b"), depth=1)]
    yield Story(
        "framed", "json", sent([*framed, b'{"a": 1}', b"\0\0\0", b"", None]), framed_json_oracle, is_confluent=True
    )
    times = [0, 1, -1, DAY_MS, FIRST_MS, 253_402_300_799_999, 253_402_300_800_000, 2**62]
    at = [Sent(b'{"n": %d}' % n, timestamp_ms=one) for n, one in enumerate(times * 2)]
    yield Story("times", "json", at, json_oracle, settings={"message.timestamp.after.max.ms": 2**63 - 1})
    large = [Sent(b'{"t": "%s"}' % (b"x" * size), b"k" * (size // 100)) for size in (1, 100_000, 3_000_000, 5)]
    yield Story("large", "json", large, json_oracle, settings={"max.message.bytes": 8_000_000}, codec="zstd")
    spread = [Sent(one, b"%d" % n, shard=n % 100) for n, one in enumerate(objects(draw, 250, ("a", "b"), depth=1))]
    yield Story("hundred", "json", spread, json_oracle, shards=100)


def _raw_stories(draw: random.Random) -> Iterable[Story]:
    for codec in CODECS:
        values = [draw.randbytes(draw.randrange(300)) for _ in range(30)]
        yield Story(f"codec.{codec}", "raw", sent([*values, None, b""]), codec=codec)
    headers = tuple(
        (draw.choice(["", "h", "ü", "a" * 99]), draw.choice([None, b"", b"\xff", b"x" * 50])) for _ in range(90)
    )
    many = [Sent(b"v", None, headers[: draw.randrange(91)]) for _ in range(20)]
    yield Story("headers", "raw", many)
    yield Story("Empty", "raw", [])
    yield Story("a.b", "raw", sent([b"dot"]))
    yield Story("A.b", "raw", sent([b"Dot"]))
    yield Story("...", "raw", sent([b"dots"]))
    yield Story("-", "raw", sent([b"-"]))
    yield Story("_", "raw", [Sent(None, None), Sent(b"", b""), Sent(None, b""), Sent(b"", None)])
