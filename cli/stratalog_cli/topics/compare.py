"""`stratalog topics compare`: whether a topic holds the same records here as in another cluster, shard by shard.

Keys, values, headers and timestamps are compared, in their order; offsets are not, for a copy has its own. Each shard
is read from its start to its end at that moment, on both sides at once. Memory is bounded, whatever there is to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from stratalog.connect.client_settings import PLAIN_TEXT, read_client_settings
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest
from stratalog.settings.units import parse_seconds
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.group_reads import Shard, bounds_of
from stratalog_cli.connect.kafka_clients import BootstrapOption, KafkaPlace
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.records.consume import Reading
from stratalog_cli.terminal.say import say

_AT_A_TIME: Final = 500
_FIELDS: Final = ("key", "value", "headers", "timestamp")


class Record(NamedTuple):
    """What of a record must be the same on both sides."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None


@dataclass(slots=True)
class Compared:
    """One shard. `differs_in` is the first field of the first pair that is not the same; "count" where one side ends
    first."""

    shard: int
    records: int = 0
    """Pairs that are the same."""
    differs_in: str | None = None
    there: int | None = None
    """Offset of the first record that differs, in the other cluster; None: it has none there."""
    here: int | None = None


def compare(
    topic: TopicArgument,
    other: Annotated[
        str, typer.Option("--with", metavar="HOST:PORT[,HOST:PORT...]", help="Kafka address of the other cluster.")
    ],
    other_topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", help="Its name there. Default: the same.")
    ] = None,
    other_config: Annotated[
        Path | None,
        typer.Option(
            "--with-client-config",
            metavar="FILE",
            help="How to log in there: settings of a client. Default: plain text, no login.",
        ),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Exit with code 3 if nothing arrives for this long.")
    ] = "30s",
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare a topic with the one of another cluster: keys, values, headers and timestamps of all records, in order.

    Exit code 1 if a shard differs."""
    patience_s = parse_seconds(timeout, "--timeout")
    # The login of this cluster is not shown to the other one.
    settings = PLAIN_TEXT if other_config is None else read_client_settings(other_config, {})
    here, there = KafkaPlace(bootstrap, is_write=False), KafkaPlace(other, is_write=False, settings=settings)
    name_there = other_topic or topic
    shards, shards_there = here.shards_of(topic), there.shards_of(name_there)
    if shards != shards_there:
        raise InvalidRequest(
            f"topic {topic} has {counted(len(shards), 'shard')} here and {len(shards_there)} there: their records "
            "cannot be compared shard by shard"
        )
    found = [
        compare_shard(
            shard,
            records_of(there, (name_there, shard), patience_s),
            records_of(here, (topic, shard), patience_s),
        )
        for shard in shards
    ]
    _print(topic, found, output)
    if any(one.differs_in is not None for one in found):
        raise typer.Exit(1)


def compare_shard(shard: int, there: Iterator[Record], here: Iterator[Record]) -> Compared:
    """Up to the first difference."""
    found = Compared(shard)
    for left, right in zip_longest(there, here):
        if left is None or right is None:
            found.differs_in = "count"
        elif left[1:] != right[1:]:
            pairs = zip(_FIELDS, left[1:], right[1:], strict=True)
            found.differs_in = next(name for name, one, other in pairs if one != other)
        if found.differs_in is not None:
            found.there = None if left is None else left.offset
            found.here = None if right is None else right.offset
            return found
        found.records += 1
    return found


def records_of(place: KafkaPlace, shard: Shard, patience_s: float) -> Iterator[Record]:
    """All records of a shard. Raises: Unavailable if none comes for `patience_s`."""
    bounds = bounds_of(place, [shard])
    reading = Reading(place, {shard: bounds[shard].start}, bounds, patience_s)
    try:
        while not reading.is_done:
            for message in reading.some(_AT_A_TIME):
                yield _record(message)
    finally:
        reading.close()


def _record(message: Any) -> Record:
    kind, timestamp_ms = message.timestamp()
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(message.offset(), message.key(), message.value(), headers, timestamp_ms if kind else None)


def _print(topic: str, found: list[Compared], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(
            [
                {
                    "shard": one.shard,
                    "is_same": one.differs_in is None,
                    "records": one.records,
                    "differs_in": one.differs_in,
                    "offset_there": one.there,
                    "offset_here": one.here,
                }
                for one in found
            ]
        )
        return
    differing = [one for one in found if one.differs_in is not None]
    same = sum(one.records for one in found)
    if not differing:
        say(f"{printable(topic)}: the same {counted(same, 'record')} in {counted(len(found), 'shard')}")
        return
    rows = [
        (str(one.shard), f"{one.records:,}", str(one.differs_in), _offset(one.there), _offset(one.here))
        for one in differing
    ]
    title = f"{counted(len(differing), 'shard')} of {len(found)} not the same"
    print_table(("#shard", "#same before", "differs in", "#offset there", "#offset here"), rows, title=title)


def _offset(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
