"""`stratalog produce`: lines of files or of standard input become records.

Lines are read one by one and are bounded, and so is what waits to be sent: input of any length passes in little memory.
The producer is idempotent: what is sent again after a lost answer is in the log once. The command ends when all is
acknowledged, or says how many were not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from stratalog.admin_api.wording import human_bytes
from stratalog.connect.missing_right import Right, missing_right, refused_right
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, OutcomeUnknown, StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog.settings.units import MIB, SECOND_MS, parse_seconds, size_bytes
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.kafka_clients import (
    WAIT_S,
    BootstrapOption,
    KafkaPlace,
    as_ours,
    clients,
    imported,
    kafka_exception,
    result_of,
)
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.connect.output import print_json_line
from stratalog_cli.connect.record_lines import Line, json_line, text_line
from stratalog_cli.terminal.say import say

_QUEUE_KIB: Final = 32 * 1024
_MOST_LINE_BYTES: Final = 64 * MIB


_GETTING_AN_ID: Final = Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
"""What a broker says is missing where a producer has WRITE of no topic."""


class InputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def register(app: typer.Typer) -> None:
    app.command("produce")(produce)


def produce(
    topic: TopicArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files to read; - is standard input. Default: standard input."),
    ] = None,
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--input", "-i", help="What each line is: a value, or a JSON object as `consume --output json` writes it."
        ),
    ] = InputFormat.TEXT,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="Key of the records that have none of their own.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", metavar="TEXT", help="Text between key and value.")
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Header for every record; may be repeated."),
    ] = None,
    shard: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Shard to write to. Default: chosen by the key, as Java clients choose it."
        ),
    ] = None,
    compression: Annotated[Compression, typer.Option(help="How the records are compressed.")] = Compression.NONE,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N records.")] = None,
    most_line: Annotated[
        str,
        typer.Option(
            "--max-line",
            metavar="SIZE",
            help="Longest line that is accepted, at most 64MiB; a longer one ends the command.",
        ),
    ] = "1MiB",
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the acknowledgement of a record.")
    ] = "30s",
    bootstrap: BootstrapOption = None,
    output: Annotated[InputFormat, typer.Option("--output", "-o", help="Format of the summary.")] = InputFormat.TEXT,
) -> None:
    """Write lines as records. Ends when the in-sync replicas have acknowledged all; exit code 3 if some were not."""
    if input_format is InputFormat.JSON and key_separator is not None:
        raise InvalidRequest("--key-separator is for text: with --input json a line says its key itself")
    if key_separator == "":
        raise InvalidRequest("--key-separator is empty: give the text between key and value")
    most_bytes = _most_bytes(most_line)
    timeout_ms = int(parse_seconds(timeout, "--timeout") * SECOND_MS)
    further = tuple(map(_header, headers or ()))
    paths = list(files or [Path("-")])
    for path in paths:
        if str(path) != "-" and path.is_dir():
            raise InvalidRequest(f"{path} is a directory: name the files in it")
        if str(path) != "-" and not path.exists():  # a pipe is as good as a file
            raise InvalidRequest(f"{path}: there is no such file")
    place = KafkaPlace(bootstrap, is_write=True)
    shards = place.shards_of(topic, Operation.WRITE)
    place.require_right(Operation.WRITE, topic)
    if shard is not None and shard not in shards:
        raise InvalidRequest(f"--shard {shard}: topic {topic} has {counted(len(shards), 'shard')}, the first is 0")
    sender = _Sender(place, topic, compression, timeout_ms, most_bytes)
    try:
        separator = None if key_separator is None else key_separator.encode()
        for number, line in enumerate(_lines(paths, most_bytes, limit), 1):
            one = _record(line, number, input_format, separator)
            chosen = one.shard if one.shard is not None else shard
            if chosen is not None and chosen not in shards:
                raise InvalidRequest(f"line {number}: topic {topic} has no shard {chosen}")
            own_key = one.key if one.key is not None or key is None else key.encode()
            sender.send(one._replace(key=own_key, headers=further + one.headers, shard=chosen))
    except StratalogError:
        sender.finish(output)  # says of how many records nothing is known, and why
        raise  # all that was sent is there: it is a line that was refused
    except KeyboardInterrupt:
        sender.finish(output)
        raise
    sender.finish(output)


def _record(line: bytes, number: int, input_format: InputFormat, separator: bytes | None) -> Line:
    try:
        return json_line(line) if input_format is InputFormat.JSON else text_line(line, separator)
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number} {error}") from None


class _Sender:
    def __init__(
        self, place: KafkaPlace, topic: str, compression: Compression, timeout_ms: int, most_bytes: int
    ) -> None:
        self._place = place
        self._topic = topic
        self._timeout_s = timeout_ms / SECOND_MS
        self._ranges: dict[int, list[int]] = {}
        """Shard -> first offset, one past the last one, and how many."""
        self._unacknowledged: set[int] = set()
        """Shards of records that were not acknowledged; -1: none was chosen yet."""
        self._failure: Any = None
        self._sent = self._refused = 0
        self._got_no_id = False
        """An idempotent producer sends nothing before it has an id, and WRITE of any topic gives it one."""
        self._writing = Right(Operation.WRITE, ResourceType.TOPIC, topic)
        self._producer = clients().Producer(
            place.config(
                enable_idempotence=True,
                compression_type=compression.value,
                partitioner="murmur2_random",
                linger_ms=20,
                message_timeout_ms=timeout_ms,
                message_max_bytes=most_bytes + MIB,
                queue_buffering_max_kbytes=max(_QUEUE_KIB, 2 * most_bytes // 1024),
                queue_buffering_max_messages=100_000,
            )
        )

    def send(self, one: Line) -> None:
        """Raises: what one that was sent before met, as soon as it is known."""
        fields: dict[str, Any] = {"key": one.key, "value": one.value, "headers": list(one.headers)}
        if one.shard is not None:
            fields["partition"] = one.shard
        if one.timestamp_ms is not None:
            fields["timestamp"] = one.timestamp_ms
        while True:
            if self._failure is not None:
                raise self._place.refusal(self._writing)(self._failure)
            try:
                self._producer.produce(self._topic, on_delivery=self._delivered, **fields)
            except BufferError:
                self._poll(1.0)
                continue
            except kafka_exception() as error:
                raise as_ours(error.args[0]) from None
            break
        self._sent += 1
        self._poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused += refused_right(error.code(), (self._writing,)) is not None
            self._unacknowledged.add(message.partition())
            self._failure = self._failure or error
            return
        known = self._ranges.setdefault(message.partition(), [message.offset(), 0, 0])
        known[0] = min(known[0], message.offset())
        known[1] = max(known[1], message.offset() + 1)
        known[2] += 1

    def finish(self, output: InputFormat) -> None:
        """Raises: Forbidden where all the others were refused, OutcomeUnknown where some were not acknowledged."""
        self.end()
        self.print_summary(output)
        self.require_all()

    def end(self) -> None:
        """Waits for what is under way, each record for its own time at most. Not by `flush`: after the error that ends
        a producer it serves the callbacks of the records that wait, and they lose that error (confluent-kafka 2.16)."""
        end_s = time.monotonic() + self._timeout_s + 5
        while len(self._producer) and (left_s := end_s - time.monotonic()) > 0:
            self._poll(min(left_s, 1.0))

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
        except kafka_exception() as error:
            self._note_fatal(error.args[0])

    def _note_fatal(self, error: Any) -> None:
        self._failure = error
        self._got_no_id = refused_right(self._failure.code(), (_GETTING_AN_ID,)) is not None and not self._ranges

    @property
    def _acknowledged(self) -> int:
        return sum(count for _, _, count in self._ranges.values())

    def print_summary(self, output: InputFormat) -> None:
        shards = sorted(self._ranges.items())
        if output is InputFormat.JSON:
            rows = [{"shard": shard, "from": low, "to": high, "records": n} for shard, (low, high, n) in shards]
            print_json_line({"topic": self._topic, "records": self._acknowledged, "shards": rows})
            return
        places = "; ".join(f"shard {shard} {_offsets(low, high)}" for shard, (low, high, _) in shards[:8])
        more = f" and {counted(len(shards) - 8, 'more shard')}" if len(shards) > 8 else ""
        in_them = f": {places}{more}" if places else ""
        say(f"{counted(self._acknowledged, 'record')} written to {printable(self._topic)}{in_them}", to_stderr=True)

    def require_all(self) -> None:
        """Raises: Forbidden where all the others were refused, OutcomeUnknown where some were not acknowledged."""
        missing = self._sent - self._acknowledged
        if missing and (self._got_no_id or missing == self._refused):
            outcome = f"; {counted(missing, 'record')} of {self._sent:,} not written"
            raise missing_right(self._place.settings, self._writing, self._place.bootstrap, outcome)
        if missing:
            why = "no answer came" if self._failure is None else self._failure.str()
            if (disk := full_disk(self._place, self._topic, self._unacknowledged)) is not None:
                why = f"{why}: {disk}"
            raise OutcomeUnknown(
                f"{counted(missing, 'record')} of {self._sent:,} not acknowledged ({why}): some may have been written; "
                "look before you send them again"
            )


def _offsets(low: int, high: int) -> str:
    return f"offset {low}" if high - low == 1 else f"offsets {low} to {high - 1}"


# Reading ----------------------------------------------------------------------------------------------------------
def _lines(paths: list[Path], most_bytes: int, limit: int | None) -> Iterator[bytes]:
    """Without their ends. Raises: InvalidRequest for one that is too long."""
    number = 0
    for path in paths:
        with _opened(path) as source:
            while limit is None or number < limit:
                line = source.readline(most_bytes + 2)
                if not line:
                    break
                number += 1
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                if len(line) > most_bytes:
                    raise InvalidRequest(f"line {number} is longer than {most_bytes} bytes; --max-line allows more")
                yield line


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        source = path.open("rb")
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read ({error.strerror})") from None
    with source:
        yield source


def _most_bytes(text: str) -> int:
    found = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else size_bytes(text)
    if not found or found > _MOST_LINE_BYTES:
        raise InvalidRequest(f"--max-line {text!r:.80}: expected a size up to 64MiB, such as 1MiB")
    return found


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"--header {text!r:.80}: expected NAME=VALUE")
    return name, value.encode()


_DESCRIBE_LOG_DIRS: Final = 35
_VERSION: Final = 4
"""The first with the sizes of disks."""
_RESERVE: Final = "disk.reserve.bytes"
_NEARLY: Final = 1.1
"""A node takes new data again once so much more than the reserve is free."""


def full_disk(place: KafkaPlace, topic: str, shards: Collection[int]) -> str | None:
    """In words, of the first such node; None where all have room, or none can be asked."""
    known = place.topics.get(topic)
    if known is None:
        return None
    leaders = {part.leader for number, part in known.partitions.items() if number in shards or -1 in shards}
    brokers = place.brokers
    for leader in sorted(leaders & brokers.keys()):
        try:
            words = _why(place, leader, brokers[leader].host, brokers[leader].port)
        except StratalogError:
            continue
        if words is not None:
            return words
    return None


def _why(place: KafkaPlace, node_id: int, host: str, port: int) -> str | None:
    answer = place.ask(host, port, _DESCRIBE_LOG_DIRS, _VERSION, topics=())
    reserve = _reserve_of(place, node_id)
    for disk in answer.results:
        if 0 <= disk.usable_bytes <= reserve * _NEARLY:
            return (
                f"the disk of node {node_id} is full, {human_bytes(disk.usable_bytes)} of "
                f"{human_bytes(disk.total_bytes)} are free at {disk.log_dir} and {human_bytes(reserve)} are kept in "
                "reserve; make room there"
            )
    return None


def _reserve_of(place: KafkaPlace, node_id: int) -> int:
    """0 for a broker that has no such setting."""
    admin: Any = imported("confluent_kafka.admin")
    resource = admin.ConfigResource(admin.ResourceType.BROKER, str(node_id))
    (answer,) = place.admin.describe_configs([resource], request_timeout=WAIT_S).values()
    found = result_of(answer).get(_RESERVE)
    return int(found.value) if found is not None and str(found.value).isdigit() else 0
