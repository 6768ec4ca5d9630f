"""`stratalog find`: the records of a key. The nodes that lead the shards search them (`find_nodes`); with --bucket or
--cold-only the bucket is read from here: complete segments by their key index, with two range reads, and what is not in
the bucket yet from the nodes, through the Kafka protocol, and its keys compared."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from stratalog.admin_api.wording import human_bytes, human_time
from stratalog.model.counting import counted
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.model.rights import Operation
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.group_reads import Shard, bounds_of, seeing_topic
from stratalog_cli.connect.group_reset import Bounds
from stratalog_cli.connect.kafka_clients import BootstrapOption, KafkaPlace, clients, result_of
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.connect.output import AdminOption, OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.connect.record_lines import as_json
from stratalog_cli.connect.several_nodes import Nodes
from stratalog_cli.records.consume import Reading
from stratalog_cli.records.find_cold import ColdFound, ColdShardFound, find_cold
from stratalog_cli.records.find_nodes import Found, Range, find_on_nodes
from stratalog_cli.terminal.say import say

_INCOMPLETE: Final = 1
_AT_A_TIME: Final = 500
_PATIENCE_S: Final = 30.0
_SHOWN: Final = 60


def register(app: typer.Typer) -> None:
    app.command("find")(find)


def find(
    topic: TopicArgument,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="The key, if it is text.")] = None,
    key_base64: Annotated[
        str | None, typer.Option("--key-base64", metavar="TEXT", help="The key in base64, if it is not text.")
    ] = None,
    only: Annotated[
        list[int] | None, typer.Option("--shard", min=0, metavar="N", help="Only this shard; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show at most N records.")] = 1_000,
    scan: Annotated[
        bool,
        typer.Option(
            "--scan", help="Also search segments without a key index: they are read as a whole, from the nodes."
        ),
    ] = False,
    cold_only: Annotated[bool, typer.Option("--cold-only", help="Search only the bucket, from this machine.")] = False,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket",
            envvar="STRATALOG_BUCKET",
            metavar="URL",
            help="Read the cluster's object store from this machine, not through the nodes.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ID", help="The cluster's id, if the bucket holds several clusters."),
    ] = None,
    meta: Annotated[
        str | None,
        typer.Option("--meta", envvar="STRATALOG_META", metavar="URL", help="Meta service to ask what is committed."),
    ] = None,
    bootstrap: BootstrapOption = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Find the records of a key, hot and cold. Topics that are searched often should have `index.keys=true`.

    The nodes named by --admin search the shards that they lead. Exit code 1 if not everything was searched: segments
    without a key index, unless --scan is given, or shards whose leader was not named."""
    wanted = _key(key, key_base64)
    shards = frozenset(only) if only else None
    if bucket is None and not cold_only:
        _show(*find_on_nodes(Nodes(admin), topic, wanted, shards or frozenset(), limit, is_scan=scan), topic, output)
        return
    place = None if cold_only else KafkaPlace(bootstrap, is_write=False)
    url = bucket or _bucket_of_node(admin, cold_only)
    cold = ColdFound("")
    if url is not None:
        named = cluster or (place.cluster_id if place is not None and meta is None else None)
        cold = asyncio.run(find_cold(url, topic, wanted, shards=shards, limit=limit, cluster_id=named, meta_url=meta))
        if place is not None and place.cluster_id != cold.cluster_id:
            raise Conflict(f"{url} is of cluster {cold.cluster_id}, {place.bootstrap} of {place.cluster_id}")
    found = Found(is_cut=cold.is_cut)
    if place is None:
        for one in cold.shards:
            _add_cold(found, topic, one, one.log_start_offset, scan=False)
    else:
        _search(found, place, topic, shards, cold, wanted, limit, scan)
    found.records.sort(key=lambda one: (one["shard"], one["offset"]))
    found.is_cut = found.is_cut or len(found.records) > limit
    del found.records[limit:]
    _show(found, cold, topic, output)


def _key(text: str | None, encoded: str | None) -> bytes:
    if (text is None) == (encoded is None):
        raise InvalidRequest("say which key, once: --key TEXT, or --key-base64 TEXT")
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("--key-base64 is not base64") from None


def _bucket_of_node(admin: str | None, cold_only: bool) -> str | None:
    bucket = Nodes(admin).first(lambda node: node.status()).bucket
    if bucket is None and cold_only:
        raise InvalidRequest("the node has no object store: name one with --bucket URL")
    return bucket


# Hot ----------------------------------------------------------------------------------------------------------------
def _search(
    found: Found,
    place: KafkaPlace,
    topic: str,
    only: frozenset[int] | None,
    cold: ColdFound,
    key: bytes,
    limit: int,
    scan: bool,
) -> None:
    """What the bucket has is taken from there; the rest of each log is read from the nodes."""
    shards: list[Shard] = [
        (topic, one) for one in place.shards_of(topic, Operation.READ) if only is None or one in only
    ]
    topic_id = _topic_id(place, topic) if cold.shards else None
    # Of a topic that was deleted and made again the bucket may still tell what was before.
    in_bucket = {one.key.shard: one for one in cold.shards if one.key.topic_id == topic_id}
    left: dict[Shard, list[Range]] = {}
    for shard, bounds in bounds_of(place, shards).items():
        covered: list[Range] = []
        if (of_shard := in_bucket.get(shard[1])) is not None:
            _add_cold(found, topic, of_shard, bounds.start, scan=scan)
            covered = of_shard.searched + ([] if scan else of_shard.unindexed)
        left[shard] = without(bounds, covered)
    while any(left.values()) and len(found.records) < limit:
        now = {shard: ranges.pop(0) for shard, ranges in left.items() if ranges}
        _read(found, place, now, key, limit)
    found.is_cut = found.is_cut or any(left.values())


def _add_cold(found: Found, topic: str, cold: ColdShardFound, log_start_offset: int, *, scan: bool) -> None:
    found.records += [
        as_json(topic, cold.key.shard, one.offset, _time(one.timestamp_ms), one.key, one.value, one.headers)
        for one in cold.records
        if one.offset >= log_start_offset
    ]
    if cold.unindexed and not scan:
        found.unindexed[cold.key.shard] = cold.unindexed


def without(bounds: Bounds, covered: Iterable[Range]) -> list[Range]:
    """What of a log is in none of these ranges, offsets rising."""
    found, at = [], bounds.start
    for start, end in sorted(covered):
        if start > at:
            found.append((at, min(start, bounds.end)))
        at = max(at, end)
        if at >= bounds.end:
            break
    if at < bounds.end:
        found.append((at, bounds.end))
    return [one for one in found if one[0] < one[1]]


def _read(found: Found, place: KafkaPlace, ranges: Mapping[Shard, Range], key: bytes, limit: int) -> None:
    starts = {shard: start for shard, (start, _) in ranges.items()}
    ends = {shard: Bounds(*one) for shard, one in ranges.items()}
    reading = Reading(place, starts, ends, _PATIENCE_S)
    try:
        while not reading.is_done and len(found.records) < limit:
            for message in reading.some(_AT_A_TIME):
                if message.key() == key:
                    found.records.append(_of_message(message))
        found.is_cut = found.is_cut or not reading.is_done
    finally:
        reading.close()
    found.hot_offsets += sum(end - start for start, end in ranges.values())


def _of_message(message: Any) -> dict[str, Any]:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers() or ()
    where = (message.topic(), message.partition(), message.offset())
    return as_json(*where, timestamp_ms if kind else None, message.key(), message.value(), headers)


def _topic_id(place: KafkaPlace, topic: str) -> UUID:
    described = place.admin.describe_topics(clients().TopicCollection([topic]))
    found = result_of(described[topic], place.refusal(seeing_topic(topic))).topic_id
    high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
    return UUID(int=(high % (1 << 64)) << 64 | low % (1 << 64))


def _time(timestamp_ms: int) -> int | None:
    return timestamp_ms if timestamp_ms >= 0 else None


# Shown --------------------------------------------------------------------------------------------------------------
def _show(found: Found, cold: ColdFound, topic: str, output: OutputFormat) -> None:
    count = sum(map(len, found.unindexed.values()))
    if output is OutputFormat.JSON:
        print_json(
            {
                "topic": topic,
                "records": found.records,
                "is_cut": found.is_cut,
                "segments": cold.segments,
                "segments_without_index": count,
                "not_searched": [
                    {"shard": shard, "from_offset": start, "to_offset": end}
                    for shard, ranges in sorted(found.unindexed.items())
                    for start, end in ranges
                ],
                "key_index_reads": cold.cost.pages,
                "batch_reads": cold.cost.reads,
                "bytes_read": cold.cost.bytes,
                "hot_offsets": found.hot_offsets,
            }
        )
    else:
        rows = [_row(one) for one in found.records]
        print_table(("#shard", "#offset", "time", "value"), rows, give_up=("value",))
        reads = counted(cold.cost.pages + cold.cost.reads, "range read")
        looked = f"{counted(cold.segments, 'segment')} in the bucket ({reads})"
        say(f"{counted(len(rows), 'record')}; searched: {looked}, {counted(found.hot_offsets, 'offset')} on nodes")
    if found.is_cut:
        say("there may be more: --limit N", to_stderr=True)
    for fault in found.faults:
        say(printable(fault), to_stderr=True)
    if count:
        say(
            f"{counted(count, 'segment')} without a key index not searched: --scan reads them (index.keys=true on the "
            "topic gives an index to those completed from then on)",
            to_stderr=True,
        )
    if count or found.faults:
        raise typer.Exit(_INCOMPLETE)


def _row(record: Mapping[str, Any]) -> Sequence[str]:
    value = record.get("value", record.get("value_base64"))
    if record.get("is_left_out"):
        value = f"({human_bytes(record['size_bytes'])}: see it with `stratalog consume`)"
    text = "-" if value is None else printable(str(value))
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    time_ms = record["timestamp_ms"]
    return (str(record["shard"]), str(record["offset"]), "-" if time_ms is None else human_time(time_ms), shown)
