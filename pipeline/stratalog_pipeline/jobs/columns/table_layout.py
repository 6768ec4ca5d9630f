"""Names and contents of the objects of an archived topic. Pure.

    <topic>/_table.json                                   what the table is: cluster, topic, kind, time partitions
    <topic>/_begin.json                                   where each shard began when the table was made
    <topic>/_gaps/<shard>-<from>-<to>.json                offsets that are in no row: retention was faster
    <topic>/_schemas/<number>.json                        its schemas, each a superset of the one before
    <topic>/_segments/<seal>.plan.json                    how a segment is archived: schema, ranges of offsets
    <topic>/_segments/<seal>.done.json                    that it is: files, rows, dead letters
    <topic>/data/by_<by>=<time>/<seal>-<piece>.parquet    records
    <topic>/dead/<seal>-<piece>.parquet                   records that could not be read as the kind says
    <topic>/data/_delta_log/, <topic>/dead/_delta_log/    of Delta tables: which files are rows (`delta_log.py`)
    <topic>/metadata/, <topic>/dead/metadata/             of Iceberg tables (`iceberg_log.py`)

`<topic>` is its name, or the folder that `topic_folder.py` gives it. `<seal>` names a sealed segment and the digest of
its records, so it names exactly these records. Every object is put once and never replaced, and its name follows from
the plan: a task that repeats a piece of work, or does it beside another, writes the same rows under the same names, and
finds them there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from stratalog.model.errors import Conflict, Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord
from stratalog_pipeline.jobs.columns.topic_folder import topic_folder

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

    def hidden_name(self, time_column: str) -> str:
        """Of the partition of an Iceberg table, which no column may have."""
        return f"{time_column}_{'day' if self is TimePartition.DATE else self.value}"


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

    @property
    def end_offset(self) -> int:
        return self.pieces[-1][1] if self.pieces else 0


@dataclass(frozen=True, slots=True)
class PieceDone:
    """The result of a piece of work; the same for every task that does it."""

    piece: int
    rows: int
    dead: int
    files: tuple[str, ...]


def seal_name(segment: SegmentKey, seal: SealRecord) -> str:
    return f"{segment.shard}-{segment.base_offset:020d}-{segment.epoch}-{seal.digest.hex()[:16]}"


_SEAL: Final = re.compile(r"(\d+)-(\d{20})-\d+-[0-9a-f]{16}")
_GAP: Final = re.compile(r"(\d+)-(\d{20})-(\d{20})\.json")


def place_of_seal(seal: str) -> tuple[int, int] | None:
    """The shard and the base offset in a seal's name; None for a name of something else."""
    found = _SEAL.fullmatch(seal)
    return None if found is None else (int(found[1]), int(found[2]))


def begin_key(topic: str) -> str:
    return f"{topic_folder(topic)}/_begin.json"


def gaps_prefix(topic: str) -> str:
    return f"{topic_folder(topic)}/_gaps/"


def gap_key(topic: str, shard: int, from_offset: int, to_offset: int) -> str:
    return f"{gaps_prefix(topic)}{shard}-{from_offset:020d}-{to_offset:020d}.json"


def offsets_of_gap(key: str) -> tuple[int, int, int] | None:
    """Shard, from, to; None for a name of something else."""
    found = _GAP.fullmatch(key.rpartition("/")[2])
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def table_key(topic: str) -> str:
    return f"{topic_folder(topic)}/_table.json"


def schemas_prefix(topic: str) -> str:
    return f"{topic_folder(topic)}/_schemas/"


def schema_key(topic: str, number: int) -> str:
    return f"{schemas_prefix(topic)}{number:06d}.json"


def segments_prefix(topic: str) -> str:
    return f"{topic_folder(topic)}/_segments/"


def plan_key(topic: str, seal: str) -> str:
    return f"{segments_prefix(topic)}{seal}.plan.json"


def done_key(topic: str, seal: str) -> str:
    return f"{segments_prefix(topic)}{seal}.done.json"


def data_key(topic: str, by: str, time: str, seal: str, piece: int) -> str:
    return f"{topic_folder(topic)}/data/by_{by}={time}/{seal}-{piece:04d}.parquet"


def dead_key(topic: str, seal: str, piece: int) -> str:
    return f"{topic_folder(topic)}/dead/{seal}-{piece:04d}.parquet"


def encode(value: Any) -> bytes:
    """One encoding of a value: two who write the same thing write the same bytes."""
    return encode_object(asdict(value))


def encode_object(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, indent=1).encode()


def decode_plan(body: bytes, source: str) -> SegmentPlan:
    fields = _object(body, source)
    try:
        return SegmentPlan(int(fields["schema"]), tuple((int(low), int(high)) for low, high in fields["pieces"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"it is not a plan of a segment: {error}", source=source, position=0) from error


def decode_begin(body: bytes, source: str) -> dict[int, int]:
    fields = _object(body, source)
    try:
        return {int(shard): int(offset) for shard, offset in fields.items()}
    except (TypeError, ValueError) as error:
        raise Corrupt(f"it does not say where shards begin: {error}", source=source, position=0) from error


def check_facts(body: bytes, expected: TableFacts, source: str) -> None:
    """Raises: Conflict for a table that is another one."""
    # Tables from before there were others say nothing of it.
    facts = {"table": TableFormat.PARQUET.value, **_object(body, source)}
    if facts.get("cluster_id") != expected.cluster_id:
        raise Conflict(
            f"{source}: the table there is of cluster {facts.get('cluster_id')!r}, asked for is one of "
            f"{expected.cluster_id!r}. A cluster that was restored from a snapshot has an id of its own, and from the "
            "snapshot on other records under the same offsets: give it a table of its own (another --to). The table "
            "there stays as it is, and has what was archived before"
        )
    for name, value in {**asdict(expected), "format": expected.format}.items():
        if facts.get(name) != value:
            raise Conflict(
                f"{source}: the table there has {name} {facts.get(name)!r}, asked for is {value!r}: name another "
                "place, or ask for what is there"
            )


def _object(body: bytes, source: str) -> Mapping[str, Any]:
    try:
        decoded = json.loads(body)
    except ValueError as error:
        raise Corrupt(f"it is no JSON: {error}", source=source, position=0) from error
    if not isinstance(decoded, dict):
        raise Corrupt("it is no JSON object", source=source, position=0)
    return decoded
