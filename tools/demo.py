"""`make demo`: real records go in through a Kafka client, are sealed, move to the cold tier, and are read back from it.

    tools/demo.py [--nodes N] [--fixed] [--keep] [--secure] [--limit N] [--segment-bytes N]

Starts three nodes of its own with a directory as object store (`stratalog cluster start`; one node with --nodes 1),
writes the flights over six shards in small segments, kills a leader meanwhile with `kill -9` and starts it again, waits
until every segment is sealed, uploaded, verified, and its local copies freed, then lets a consumer group of three read
everything back and compares each record with the input.

Then, but for one node and with --fixed, while a producer writes on and a group reads: a node is added; the first one is
retired in offload mode, and its directory deleted; the second one in volume mode, which waits until one more is added,
and its directory is read where it is. A new group reads everything again, and a table shows which node serves what.

With --secure the same over TLS, as a user who logs in by SCRAM and has rules for these topics alone. At the end it is
checked that what this user may not do is refused.

The last line gives the totals and OK; otherwise what differs, and exit code 1. Leaves nothing behind, except with
--keep: then the nodes keep running, and it prints the commands to try.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.admin import NewTopic
from demo_cluster import start_cluster
from demo_kill import KilledLeader
from demo_node import start_node
from demo_read import Group
from demo_scaling import Scaling
from demo_secure import check_refusals
from demo_stage import DemoFailed, Node, Stage
from flights import Comparison, Flights
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from stratalog.admin_api.models import SealRequest, SegmentInfo, Tier, VerifyDone, VerifyRequest, VerifySegment
from stratalog.admin_api.wording import human_bytes
from stratalog.model.errors import StratalogError

KEPT = Path(__file__).resolve().parent.parent / "demo-data"
TOPIC, GROUP = "flights", "demo"
SHARDS = 6
BATCH_BYTES = 64 << 10
COLD_S, READ_S = 60, 60
"""How long to wait for the cold tier, and for the reading, before it is called a failure."""


# In -----------------------------------------------------------------------------------------------------------------
def create_topic(stage: Stage) -> None:
    # Local copies may go as soon as the upload is complete and verified.
    settings = {"local.retention.ms": "1"}
    if stage.replicas > 2:
        settings["min.insync.replicas"] = "2"
    admin = KafkaAdmin(stage.admin_settings)
    admin.create_topics([NewTopic(TOPIC, SHARDS, stage.replicas, config=settings)])[TOPIC].result(20)


def write(stage: Stage, flights: Flights, progress: Progress, killed: KilledLeader | None) -> None:
    bar = progress.add_task("written", total=len(flights))
    failures: list[str] = []
    delivered = 0

    def on_delivery(error: object, message: Message) -> None:
        nonlocal delivered
        if error is None:
            delivered += 1
            if killed is not None:
                killed.delivered(message)
        else:
            failures.append(str(error))

    def show_progress() -> None:
        progress.update(bar, completed=delivered)
        if killed is not None:
            killed.step(delivered)

    producer = Producer(
        {
            **stage.client_settings,
            "enable.idempotence": True,
            "batch.size": BATCH_BYTES,
            "linger.ms": 20,
            "queue.buffering.max.messages": 50_000,
        }
    )
    for row, (key, value) in enumerate(zip(flights.keys, flights.values, strict=True)):
        while True:
            try:
                producer.produce(TOPIC, value, key, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
                show_progress()
        if row % 2048 == 0:
            producer.poll(0)
            show_progress()
    while left := producer.flush(0.2):
        show_progress()
        if failures:
            break
    show_progress()
    if failures or left or delivered != len(flights):
        raise DemoFailed(f"{delivered:,} of {len(flights):,} records were acknowledged: {failures[:3]}")


# Sealed, cold, freed --------------------------------------------------------------------------------------------------
def filled(segments: list[SegmentInfo]) -> list[SegmentInfo]:
    return [segment for segment in segments if segment.end_offset > segment.base_offset]


def wait_until_cold(stage: Stage, progress: Progress) -> list[SegmentInfo]:
    """Seals what is still being written, then waits until no record is on any local disk. Returns the segments."""
    for node in stage.nodes:  # each seals what it leads
        node.client().seal(SealRequest(topic=TOPIC))
    sealed, uploaded, freed = (progress.add_task(what, total=None) for what in ("sealed", "uploaded", "freed locally"))
    deadline = time.monotonic() + COLD_S
    while True:
        by_node = [filled(node.client().segments(TOPIC)) for node in stage.nodes]
        segments = by_node[0]
        local = {
            (segment.shard, segment.epoch): segment
            for known in by_node
            for segment in known
            # Freed, and known to be by this node: until then it would read from who had a copy.
            if segment.tier is not Tier.COLD or segment.local_nodes
        }
        states = {
            sealed: sum(segment.state == "sealed" for segment in segments),
            uploaded: sum(segment.remote_state == "complete" for segment in segments),
            freed: sum((segment.shard, segment.epoch) not in local for segment in segments),
        }
        for bar, done in states.items():
            progress.update(bar, total=len(segments), completed=done)
        if not local:
            return segments
        if time.monotonic() > deadline:
            late = next(iter(local.values()))
            raise DemoFailed(f"after {COLD_S} s a segment is not only in the cold tier: {late}")
        time.sleep(0.1)


def check_storage(node: Node, segments: list[SegmentInfo]) -> None:
    """Asks the node for the ends of each segment, and looks into its directory: nothing may be local."""
    client = node.client()
    for segment in segments:
        for offset in {segment.base_offset, segment.end_offset - 1}:
            found = client.locate(TOPIC, segment.shard, offset)
            if found.tier is not Tier.COLD or not found.is_readable:
                raise DemoFailed(f"shard {segment.shard}, offset {offset} is not in the cold tier: {found}")
    topic_id = client.topic(TOPIC).topic.topic_id
    files = list((node.data / "node" / "segments" / topic_id).rglob("*.seg"))
    if len(files) > SHARDS or any(file.stat().st_size > 4096 for file in files):
        raise DemoFailed(f"local files are left: {[str(file) for file in files]}")


def show_storage(console: Console, stage: Stage, segments: list[SegmentInfo]) -> None:
    table = Table(title="What is stored where")
    for column in ("shard", "segments", "records", "local bytes", "cold bytes", "objects in the bucket"):
        table.add_column(column, justify="right")
    for shard in range(SHARDS):
        own = [segment for segment in segments if segment.shard == shard]
        objects = [path for path in stage.bucket.rglob("*") if path.is_file() and path.parts[-3] == str(shard)]
        size = sum(segment.size_bytes for segment in own)
        end = own[-1].end_offset if own else 0
        local = sum(segment.size_bytes for segment in own if segment.tier is not Tier.COLD)
        table.add_row(str(shard), str(len(own)), f"{end:,}", human_bytes(local), human_bytes(size), str(len(objects)))
    console.print(table)
    some = segments[len(segments) // 2]
    found = stage.first.client().locate(TOPIC, some.shard, some.base_offset)
    console.print(
        f"For example offset {found.offset} of shard {found.shard} is in …/{str(found.place).rpartition('/')[2]} "
        f"at byte {found.position}: {'; '.join(found.why)}."
    )


# Back -----------------------------------------------------------------------------------------------------------------
def ends_of(segments: list[SegmentInfo]) -> dict[int, int]:
    return {shard: max((s.end_offset for s in segments if s.shard == shard), default=0) for shard in range(SHARDS)}


def read_back(stage: Stage, flights: Flights, segments: list[SegmentInfo], progress: Progress) -> Comparison:
    """The members of one group read everything; what they read is compared as it comes. Raises: DemoFailed."""
    comparison = Comparison(flights)
    bar = progress.add_task("read back", total=len(flights))
    group = Group(stage.client_settings, GROUP, {TOPIC: comparison})
    group.until(len(flights), READ_S, lambda count: progress.update(bar, completed=count))
    group.close()
    group.finish({TOPIC: ends_of(segments)})
    return comparison


def verify(node: Node, progress: Progress) -> VerifyDone:
    """Every digest of every segment, in both tiers."""
    bar = progress.add_task("digests checked", total=None)
    findings: list[str] = []
    done = VerifyDone(segments=0, local_bytes=0, cold_bytes=0, errors=0, warnings=0)
    for line in node.client().verify(VerifyRequest(topic=TOPIC)):
        match line:
            case VerifySegment():
                progress.update(bar, advance=1)
                findings += [f"{finding.place}: {finding.what}" for finding in line.findings]
            case VerifyDone():
                done = line
            case _:
                progress.update(bar, total=line.segments)
    if findings:
        raise DemoFailed("a check of the digests found:\n  " + "\n  ".join(findings))
    return done


# The story ------------------------------------------------------------------------------------------------------------
LOCAL_READS = ("stratalog_log_cached_read_bytes_total", "stratalog_log_disk_read_bytes_total")
COLD_READS = ("stratalog_cold_read_used_bytes_total",)
COLUMNS = (TextColumn("{task.description:>16}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())


def print_result(console: Console, stage: Stage, flights: Flights, began: float, *, is_fixed: bool) -> Stage:
    """Returns the stage that serves afterwards."""
    segments = print_retired_one_way(console, stage, flights)
    stored = sum(segment.size_bytes for segment in segments)
    done = (
        f"{len(flights):,} flights, {human_bytes(stored)}, {len(segments)} segments: written, sealed, moved to the "
        "cold tier, read back from it and equal to the input"
    )
    if len(stage.nodes) > 1 and not is_fixed:
        console.print(f"{done}.\nNow nodes come and go, while flights are written and read:", soft_wrap=True)
        scaling = Scaling(stage, TOPIC, flights, ends_of(segments))
        with Progress(*COLUMNS, console=console) as progress:
            scaling.run(progress)
        scaling.print_result(console)
        stage = scaling.stage
        done = (
            f"{len(flights):,} flights, through the kill of a leader, the retirement of two nodes and two that were "
            f"added: {scaling.compared:,} records read again and equal to the input"
        )
    if stage.security is not None:
        console.print(check_refusals(stage, TOPIC), soft_wrap=True)
    console.print(f"{done} in {time.monotonic() - began:.1f} s: [bold green]OK[/]", soft_wrap=True)
    return stage


def print_retired_one_way(console: Console, stage: Stage, flights: Flights) -> list[SegmentInfo]:
    """Of the flights: in, sealed, cold, back. Returns their segments."""
    killed = KilledLeader(stage, TOPIC, len(flights)) if len(stage.nodes) > 1 else None
    with Progress(*COLUMNS, console=console) as progress:
        create_topic(stage)
        write(stage, flights, progress, killed)
        if killed is not None:
            killed.finish()
            killed.print_result(progress.console)
        segments = wait_until_cold(stage, progress)
        for node in stage.nodes:
            check_storage(node, segments)
        stored = sum(segment.size_bytes for segment in segments)
        local_before, cold_before = stage.metric(*LOCAL_READS), stage.metric(*COLD_READS)
        comparison = read_back(stage, flights, segments, progress)
        local = int(stage.metric(*LOCAL_READS) - local_before)
        cold = int(stage.metric(*COLD_READS) - cold_before)
        checked = verify(stage.first, progress)
    show_storage(console, stage, segments)
    console.print(
        f"Read back: {human_bytes(cold)} from the cold tier, {human_bytes(local)} from local disk or memory "
        f"(the group's own offsets), {comparison.read_again:,} records twice because of rebalances."
    )
    # Every byte must have come from the object store at least once; local reads are the offsets topic's alone.
    if cold < stored or local > stored // 20:
        raise DemoFailed(f"of {stored:,} bytes {cold:,} were read from the cold tier and {local:,} locally")
    console.print(
        f"Digests: {checked.segments:,} segments, {human_bytes(checked.cold_bytes)} in the cold tier, no fault."
    )
    return segments


def print_what_to_try(console: Console, stage: Stage, limit: int | None) -> None:
    stratalog = str(Path(sys.executable).with_name("stratalog"))
    bucket = str(stage.bucket)
    with contextlib.suppress(ValueError):
        stratalog = str(Path(stratalog).relative_to(Path.cwd()))
        bucket = str(stage.bucket.relative_to(Path.cwd()))
    limited = "" if limit is None else f" --limit {limit}"
    asked = stage.first.admin
    admin = f" --admin {stage.first.url if stage.security is not None else asked}"
    kcat = f"-b {stage.kafka}"
    if stage.security is not None:
        stratalog = f"STRATALOG_CERTIFICATE_FOLDER={stage.security.operator_path} {stratalog}"
        kcat = f"-F {stage.security.admin_path}"
    runs = "The node runs on" if len(stage.nodes) == 1 else f"The {len(stage.nodes)} nodes run on"
    status = "" if len(stage.nodes) == 1 else f"\n  {stratalog} cluster status --data {stage.directory / 'cluster'}"
    how_to_end = "; ".join([*(f"kill {process.pid}" for process in stage.beside), stage.how_to_end])
    console.print(
        f"""
{runs}: Kafka clients at {stage.kafka}, cluster UI at {stage.first.url}/, data in {stage.directory}. To try:{status}
  {stratalog} topics list{admin}
  {stratalog} segments {TOPIC} --shard 0{admin}
  {stratalog} locate {TOPIC} 0 12345{admin}
  {stratalog} verify {TOPIC}{admin}
  kcat {kcat} -C -t {TOPIC} -p 0 -o 12345 -c 1
  echo 'N14228:{{"row":-1}}' | kcat {kcat} -P -t {TOPIC} -K :
  {stratalog} seal {TOPIC}{admin}
Spark makes a table of what is in the bucket: make demo-pipeline ARGS="--bucket {bucket}{limited}"
To end it: {how_to_end}; to remove its data: rm -r {stage.directory}""",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--nodes",
        type=int,
        default=3,
        metavar="N",
        help="1, or 3 and more: then a leader is killed, and nodes come and go",
    )
    parser.add_argument("--fixed", action="store_true", help="no node is added or retired")
    parser.add_argument("--keep", action="store_true", help="let the nodes run on, in demo-data, and say what to try")
    parser.add_argument("--secure", action="store_true", help="clients come by TLS, log in by SCRAM, and have rules")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--segment-bytes", type=int, default=1 << 20, metavar="N", help="size of a segment")
    arguments = parser.parse_args()
    if arguments.limit is not None and arguments.limit < 1:
        parser.error("--limit must be at least 1")
    if arguments.nodes != 1 and not 3 <= arguments.nodes <= 20:
        parser.error("--nodes must be 1, or 3 to 20: with two a leader that is killed leaves too few in sync")
    return arguments


def start(directory: Path, arguments: argparse.Namespace, console: Console) -> Stage:
    if arguments.nodes == 1 and not arguments.secure:
        return start_node(directory, arguments.segment_bytes, on_usual_ports=arguments.keep)
    nodes = "one node" if arguments.nodes == 1 else f"{arguments.nodes} nodes"
    console.print(f"Starting {nodes}, {'its' if arguments.nodes == 1 else 'their'} meta service and its etcd …")
    return start_cluster(
        directory,
        arguments.nodes,
        arguments.segment_bytes,
        on_usual_ports=arguments.keep,
        is_secure=arguments.secure,
    )


def main() -> int:
    arguments = parse()
    console = Console(highlight=False)
    console.print("Stratalog demo: flights of 2013 from New York, keyed by tail number")
    flights = Flights(arguments.limit)
    if arguments.keep:
        KEPT.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="demo-", dir=KEPT if arguments.keep else None))
    began = time.monotonic()
    stage = None
    is_kept = False
    try:
        stage = start(directory, arguments, console)
        stage = print_result(console, stage, flights, began, is_fixed=arguments.fixed)
        is_kept = arguments.keep
    except (DemoFailed, StratalogError, KafkaException) as error:
        console.print(f"[bold red]The demo failed:[/] {error}", soft_wrap=True)
        for node in stage.nodes if stage is not None else ():
            said = node.log.read_text(errors="replace").splitlines()[-15:]
            console.print(f"The end of {node.log.name}:", *(line[:300] for line in said), sep="\n", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if is_kept and stage is not None:
            print_what_to_try(console, stage, arguments.limit)
        else:
            if stage is not None:
                stage.end()
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                KEPT.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
