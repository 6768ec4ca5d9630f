"""Writes rows to a cluster through a Kafka producer: `df.write.format("stratalog")`, and `df.writeStream`.

A row is sent to `topic` (a column, or the option) with `value`, and, where there are such columns, `key`, `headers`,
`timestamp` and `shard`. A task ends once all its records are acknowledged by all in-sync replicas; a task or a batch
that Spark repeats sends its records again: at least once. Memory: the producer's queue (32 MiB, whatever is set) and
one Arrow batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog_pipeline.sending.producer import Sender, check_limit

_FLUSH_S: Final = 300.0
_CLIENT: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_CHECKPOINT: Final = "checkpointlocation"
"""Spark's own, which it hands on to the writer of a stream."""
_COLUMNS: Final = ("topic", "key", "value", "headers", "timestamp", "shard")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`settings` may hold credentials: they are never shown."""

    servers: str
    topic: str | None
    settings: Mapping[str, str] = field(repr=False)


@dataclass
class Sent(WriterCommitMessage):
    records: int


def parse_write_options(given: Mapping[str, str], columns: Sequence[str], *, is_stream: bool = False) -> WriteOptions:
    """Raises: InvalidRequest."""
    options = {name.lower(): value for name, value in given.items()}
    if is_stream:
        options.pop(_CHECKPOINT, None)
    servers, topic = options.pop(_SERVERS, ""), options.pop("topic", None)
    settings = {name.removeprefix(_CLIENT): value for name, value in options.items() if name.startswith(_CLIENT)}
    other = sorted(name for name in options if not name.startswith(_CLIENT))
    if not servers:
        raise InvalidRequest(f"option {_SERVERS} is missing: host:port of one node, or of several")
    if other:
        raise InvalidRequest(
            f"option {other[0]} is unknown: known are topic, {_SERVERS}, and {_CLIENT}* for the client"
        )
    unknown = [name for name in columns if name not in _COLUMNS]
    if unknown or "value" not in columns:
        raise InvalidRequest(
            f"{f'column {unknown[0]} cannot be written' if unknown else 'there is no column value'}: select value and, "
            f"of {', '.join(_COLUMNS)}, what is wanted"
        )
    if (topic is None) == ("topic" not in columns):
        raise InvalidRequest("name the topic either by the option topic or in a column topic")
    check_limit(settings)
    return WriteOptions(servers, topic, settings)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _send(self.options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _send(self.options, iterator)


def _send(options: WriteOptions, batches: Iterator[Any]) -> Sent:
    """Raises: Unavailable when the cluster did not take all of them."""
    sender = Sender(options.servers, options.settings)
    count = 0
    for batch in batches:
        for row in _rows(batch):
            topic = row.get("topic") or options.topic
            if topic is None:
                raise InvalidRequest("a row has no topic")
            headers = [(one["key"], one["value"]) for one in row.get("headers") or ()]
            sender.send(topic, row.get("key"), row["value"], headers, row.get("timestamp"), row.get("shard"))
            count += 1
    if not sender.flush(_FLUSH_S):
        raise Unavailable(f"{options.servers} did not acknowledge all records in {_FLUSH_S:.0f} s")
    return Sent(count)


def _rows(batch: Any) -> list[dict[str, Any]]:
    """Texts as UTF-8, timestamps as milliseconds."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in ("key", "value") and not pa.types.is_binary(column.type):
            column = column.cast(pa.binary())
        elif name == "timestamp":
            column = pc.divide(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1_000)
        columns.append(column)
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows
