"""Where an archived topic lies, what each of its objects is called, and what stands in them. Pure.

    <topic>/_table.json                                   what the table is: cluster, topic, kind, time partitions
    <topic>/_schemas/<number>.json                        its schemas, each a superset of the one before
    <topic>/_segments/<seal>.plan.json                    how a segment is archived: schema, ranges of offsets
    <topic>/_segments/<seal>.done.json                    that it is: files, rows, dead letters
    <topic>/data/by_<by>=<time>/<seal>-<piece>.parquet    records
    <topic>/dead/<seal>-<piece>.parquet                   records that could not be read as the kind says
    <topic>/data/_delta_log/, <topic>/dead/_delta_log/    of Delta tables: which files are rows (`delta_log.py`)
    <topic>/metadata/, <topic>/dead/metadata/             of Iceberg tables (`iceberg_log.py`)

`<seal>` names a sealed segment and the digest of its records, so it names exactly these records. Every object is put
once and never replaced, and its name follows from the plan: whoever does a piece of work again, or beside another,
writes the same rows under the same names, and finds them there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from stratalog.model.errors import Conflict, Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord

FORMAT = 1
FORMAT_WITH_LOG = 2
"""Of tables with a log: a job that knows nothing of logs would put files that never become rows."""


class Kind(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class TableFormat(StrEnum):
    """Whose table it is: the files alone, or files that a log makes rows of."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class TimePartition(StrEnum):
    """The UTC time of a record, cut off: `by_date=2013-01-31`, `by_hour=2013-01-31-05`, `by_month=2013-01`."""

    DATE = "date"
    HOUR = "hour"
    MONTH = "month"

    @property
    def pattern(self) -> str:
        return {"date": "%Y-%m-%d", "hour": "%Y-%m-%d-%H", "month": "%Y-%m"}[self.value]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What never changes about a table."""

    cluster_id: str
    topic: str
    topic_id: str
    kind: str
    by: str
    table: str = TableFormat.PARQUET.value

    @property
    def format(self) -> int:
        return FORMAT if self.table == TableFormat.PARQUET else FORMAT_WITH_LOG

    def encode(self) -> bytes:
        return encode_object({**asdict(self), "format": self.format})


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Fixed before the first record is written. `pieces` are ranges of offsets `(from, to)`."""

    schema: int
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PieceDone:
    """What a piece of work came to. The same for everybody who does it."""

    piece: int
    rows: int
    dead: int
    files: tuple[str, ...]


def seal_name(segment: SegmentKey, seal: SealRecord) -> str:
    return f"{segment.shard}-{segment.base_offset:020d}-{segment.epoch}-{seal.digest.hex()[:16]}"


def table_key(topic: str) -> str:
    return f"{topic}/_table.json"


def schemas_prefix(topic: str) -> str:
    return f"{topic}/_schemas/"


def schema_key(topic: str, number: int) -> str:
    return f"{schemas_prefix(topic)}{number:06d}.json"


def segments_prefix(topic: str) -> str:
    return f"{topic}/_segments/"


def plan_key(topic: str, seal: str) -> str:
    return f"{segments_prefix(topic)}{seal}.plan.json"


def done_key(topic: str, seal: str) -> str:
    return f"{segments_prefix(topic)}{seal}.done.json"


def data_key(topic: str, by: str, time: str, seal: str, piece: int) -> str:
    return f"{topic}/data/by_{by}={time}/{seal}-{piece:04d}.parquet"


def dead_key(topic: str, seal: str, piece: int) -> str:
    return f"{topic}/dead/{seal}-{piece:04d}.parquet"


def encode(value: Any) -> bytes:
    """One encoding of a value: two who write the same thing write the same bytes."""
    return encode_object(asdict(value))


def encode_object(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, sort_keys=True, indent=1).encode()


def decode_plan(body: bytes, source: str) -> SegmentPlan:
    told = _object(body, source)
    try:
        return SegmentPlan(int(told["schema"]), tuple((int(low), int(high)) for low, high in told["pieces"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"it is not a plan of a segment: {error}", source=source, position=0) from error


def check_facts(body: bytes, expected: TableFacts, source: str) -> None:
    """Raises: Conflict for a table that is another one."""
    # Tables from before there were others say nothing of it.
    told = {"table": TableFormat.PARQUET.value, **_object(body, source)}
    for name, value in {**asdict(expected), "format": expected.format}.items():
        if told.get(name) != value:
            raise Conflict(
                f"{source}: the table there has {name} {told.get(name)!r}, asked for is {value!r}: name another place, "
                "or ask for what is there"
            )


def _object(body: bytes, source: str) -> Mapping[str, Any]:
    try:
        told = json.loads(body)
    except ValueError as error:
        raise Corrupt(f"it is no JSON: {error}", source=source, position=0) from error
    if not isinstance(told, dict):
        raise Corrupt("it is no JSON object", source=source, position=0)
    return told
