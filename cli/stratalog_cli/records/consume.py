"""`stratalog consume`: prints records of a topic as lines. It joins no group and commits nothing.

It reads each shard from the requested position to the end that it had at the start, or continues with --follow. Records
of one shard come in order, those of several shards as they arrive. Memory is bounded, however much there is to read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from stratalog.connect.missing_right import Right
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, NotFound, Unavailable
from stratalog.model.rights import Operation, ResourceType
from stratalog.settings.units import parse_duration_ms, parse_seconds
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.group_reads import Shard, bounds_of, offsets_since
from stratalog_cli.connect.group_reset import Bounds
from stratalog_cli.connect.kafka_clients import BootstrapOption, KafkaPlace, clients
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.connect.output import print_json_line
from stratalog_cli.connect.record_lines import as_json
from stratalog_cli.terminal.moments import now_ms, parse_time_ms
from stratalog_cli.terminal.say import say

_OF_GROUPS: Final = frozenset({"GROUP_AUTHORIZATION_FAILED"})
"""librdkafka asks for a coordinator, even where no group is joined; the user needs no right to a group."""
_GROUP: Final = "stratalog-consume"
"""librdkafka wants a name of a group. None is joined, and all runs of all users have the same one: where a user may not
see it, the audit log has one kind of denial, and a rule with DESCRIBE of this group ends it."""
_POLL_S: Final = 0.5
_AT_A_TIME: Final = 500
_QUEUE_KIB: Final = 32 * 1024


class RecordFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topic: TopicArgument,
    only: Annotated[
        list[int] | None, typer.Option("--shard", min=0, metavar="N", help="Only this shard; may be repeated.")
    ] = None,
    from_offset: Annotated[
        int | None,
        typer.Option("--from-offset", min=0, metavar="N", help="Start at this offset. Default: the start of the log."),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from-time", metavar="TIME", help="Start at the first record of this time or later: 2013-01-01T12:00."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DURATION", help="Start this long ago: 10m, 12h, 7d.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=0, metavar="N", help="Read the last N offsets of each shard.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records, until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N records.")] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="Exit with code 3 if nothing arrives for this long. Default: 30s; forever with --follow.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", metavar="TEXT", help="Print the key before the value, with this text between them."
        ),
    ] = None,
    bootstrap: BootstrapOption = None,
    output: Annotated[
        RecordFormat, typer.Option("--output", "-o", help="Print the values, or each whole record as a JSON object.")
    ] = RecordFormat.TEXT,
) -> None:
    """Read records as lines. By default, from the start of the log to its current end."""
    given = [one is not None for one in (from_offset, from_time, since, last)]
    if sum(given) > 1:
        raise InvalidRequest("say where to begin once: --from-offset, --from-time, --since or --last")
    time_ms = None if from_time is None else parse_time_ms(from_time, "--from-time")
    if since is not None:
        time_ms = now_ms() - parse_duration_ms(since, "--since")
    patience_s = None if timeout is None else parse_seconds(timeout, "--timeout")
    if patience_s is None and not follow:
        patience_s = 30.0
    place = KafkaPlace(bootstrap, is_write=False)
    shards = _chosen(place, topic, only)
    bounds = bounds_of(place, shards)
    at_time = {} if time_ms is None else offsets_since(place, shards, time_ms)
    starts = {
        shard: first_offset(bounds[shard], from_offset, at_time.get(shard, -1) if time_ms is not None else None, last)
        for shard in shards
    }
    if from_offset is not None:
        _warn_of_empty_ranges(bounds, from_offset)
    reading = Reading(place, starts, None if follow else bounds, patience_s)
    try:
        _copy(reading, limit, output, key_separator)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    finally:
        reading.close()


def first_offset(bounds: Bounds, offset: int | None, at_time: int | None, last: int | None) -> int:
    """Within the log. `at_time` is the first offset of the time asked for, -1 where no record is as late; None where no
    time was asked for."""
    if offset is not None:
        wanted = offset
    elif at_time is not None:
        wanted = bounds.end if at_time < 0 else at_time
    else:
        wanted = bounds.start if last is None else bounds.end - last
    return min(max(wanted, bounds.start), bounds.end)


def _warn_of_empty_ranges(bounds: Mapping[Shard, Bounds], offset: int) -> None:
    for (topic, shard), one in bounds.items():
        if offset > one.end:
            say(f"{printable(topic)}-{shard} ends at offset {one.end}, before {offset}", to_stderr=True)


def _chosen(place: KafkaPlace, topic: str, only: list[int] | None) -> list[Shard]:
    there = place.shards_of(topic, Operation.READ)
    if missing := set(only or ()) - set(there):
        raise NotFound(f"topic {topic} has no shard {min(missing)}; it has {len(there)}")
    return [(topic, shard) for shard in there if not only or shard in only]


def _copy(reading: Reading, limit: int | None, output: RecordFormat, key_separator: str | None) -> None:
    left = limit
    is_watched = sys.stdout.isatty()
    while not reading.is_done:
        for message in reading.some(_AT_A_TIME if left is None else min(left, _AT_A_TIME)):
            _write(message, output, key_separator, is_watched=is_watched)
            if left is not None:
                left -= 1
        sys.stdout.flush()
        if left == 0:
            return


def _write(message: Any, output: RecordFormat, key_separator: str | None, *, is_watched: bool) -> None:
    if output is RecordFormat.JSON:
        kind, timestamp_ms = message.timestamp()
        print_json_line(
            as_json(
                message.topic(),
                message.partition(),
                message.offset(),
                timestamp_ms if kind else None,
                message.key(),
                message.value(),
                message.headers() or (),
            )
        )
        return
    line = message.value() or b""
    if key_separator is not None:
        line = (message.key() or b"") + key_separator.encode() + line
    if is_watched:  # text of others never steers the terminal; to a pipe or a file it goes as it is
        line = printable(line.decode(errors="backslashreplace")).encode()
    sys.stdout.buffer.write(line + b"\n")


class Reading:
    """Shards under way: each until its end, or forever where there are no ends."""

    def __init__(
        self,
        place: KafkaPlace,
        starts: Mapping[Shard, int],
        ends: Mapping[Shard, Bounds] | None,
        patience_s: float | None,
    ) -> None:
        kafka = clients()
        self._place = place
        self._ends = None if ends is None else {shard: bound.end for shard, bound in ends.items()}
        self._left = {shard for shard, start in starts.items() if self._ends is None or start < self._ends[shard]}
        self._patience_s = patience_s
        self._heard_at = time.monotonic()
        self._eof = kafka.KafkaError._PARTITION_EOF
        self._consumer = kafka.Consumer(
            place.config(
                group_id=_GROUP,
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset="error",
                queued_max_messages_kbytes=_QUEUE_KIB,
            )
        )
        self._consumer.assign([kafka.TopicPartition(*shard, starts[shard]) for shard in sorted(self._left)])

    @property
    def is_done(self) -> bool:
        return not self._left

    def some(self, most: int) -> list[Any]:
        """The next records, perhaps none. Raises: Unavailable when nothing came for too long, or what a shard says."""
        found = []
        for message in self._consumer.consume(most, timeout=_POLL_S):
            shard = (message.topic(), message.partition())
            error = message.error()
            if error is not None:
                if error.code() == self._eof:
                    self._passed(shard, message.offset())
                elif error.name() not in _OF_GROUPS and not error.retriable():
                    right = Right(Operation.READ, ResourceType.TOPIC, message.topic())
                    raise self._place.refusal(right)(error)
                continue
            if shard in self._left and not self._is_beyond(shard, message.offset()):
                found.append(message)
            self._passed(shard, message.offset() + 1)
        self._extend_deadline(bool(found))
        return found

    def _is_beyond(self, shard: Shard, offset: int) -> bool:
        return self._ends is not None and offset >= self._ends[shard]

    def _passed(self, shard: Shard, position: int) -> None:
        """An end may lie behind offsets that hold no record: then the end of the log is what tells."""
        if self._ends is not None and position >= self._ends[shard]:
            self._left.discard(shard)

    def _extend_deadline(self, has_come: bool) -> None:
        now = time.monotonic()
        if has_come or self.is_done:
            self._heard_at = now
        elif self._patience_s is not None and now - self._heard_at > self._patience_s:
            words = f"nothing came for {self._patience_s:g} s"
            if self._ends is not None:  # with --follow there is no end to miss
                words += f"; {counted(len(self._left), 'shard', verb=('was', 'were'))} not read to the end"
            raise Unavailable(words)

    def close(self) -> None:
        self._consumer.close()
