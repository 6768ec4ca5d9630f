"""Writes rows to a cluster through a Kafka producer: `df.write.format("stratalog")`, and `df.writeStream`.

A row is sent to `topic` (a column, or the option) with `value`, and, where there are such columns, `key`, `headers`,
`timestamp` and `shard`. A task ends once all its records are acknowledged by all in-sync replicas; a task or a batch
that Spark repeats sends its records again: at least once. Memory: the producer's queue (32 MiB, whatever is set) and
one Arrow batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from stratalog.connect.client_settings import PASSWORD_VARIABLE, VARIABLE
from stratalog.connect.contexts import Context, client_config, place_of
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog_pipeline.sending.login import NO_LOGIN, KafkaLogin, is_secret, login_with
from stratalog_pipeline.sending.producer import Sender, check_limit

_FLUSH_S: Final = 300.0
_CLIENT: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_CHECKPOINT: Final = "checkpointlocation"
"""Spark's own, which it hands on to the writer of a stream."""
_COLUMNS: Final = ("topic", "key", "value", "headers", "timestamp", "shard")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """No secret is in it: Spark's plans and event logs show options, and tasks get this pickled."""

    servers: str
    topic: str | None
    login: KafkaLogin = NO_LOGIN


@dataclass
class Sent(WriterCommitMessage):
    records: int


def parse_write_options(
    given: Mapping[str, str], columns: Sequence[str], environment: Mapping[str, str], *, is_stream: bool = False
) -> WriteOptions:
    """Raises: InvalidRequest; NotFound for a context that is not there."""
    options = {name.lower(): value for name, value in given.items()}
    if is_stream:
        options.pop(_CHECKPOINT, None)
    servers, topic = options.pop(_SERVERS, None), options.pop("topic", None)
    file, name = options.pop("clientconfig", ""), options.pop("context", None)
    settings = {name.removeprefix(_CLIENT): value for name, value in options.items() if name.startswith(_CLIENT)}
    other = sorted(name for name in options if not name.startswith(_CLIENT))
    servers, context = place_of("bootstrap", servers or None, name, environment)
    if not servers:
        raise InvalidRequest(
            f"option {_SERVERS} is missing: host:port of one node, or of several; or name a context by option context"
        )
    if other:
        raise InvalidRequest(
            f"option {other[0]} is unknown: known are topic, {_SERVERS}, clientConfig, context, and "
            f"{_CLIENT}* for the client"
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
    return WriteOptions(servers, topic, _login(file, settings, context, environment))


def _login(
    file: str, settings: Mapping[str, str], context: Context | None, environment: Mapping[str, str]
) -> KafkaLogin:
    """Raises: InvalidRequest for a secret among the options."""
    secret = next((key for key in settings if is_secret(key)), None)
    if secret is not None:
        raise InvalidRequest(
            f"option {_CLIENT}{secret} is a secret, and Spark shows options in plans and event logs: name a file with "
            f"the client's settings by option clientConfig, or by {VARIABLE}; a password may also come from "
            f"{PASSWORD_VARIABLE} in the environment of the executors"
        )
    return login_with(file or client_config(environment, context), settings)


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
    sender = Sender(options.servers, options.login)
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
