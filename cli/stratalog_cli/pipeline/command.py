"""`stratalog pipeline …`: jobs over cold data, straight from the bucket. They need requirements/pipeline.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest
from stratalog.settings.units import size_bytes
from stratalog_cli.connect.bucket_asked import BucketOption
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.connect.output import (
    AdminOption,
    OutputFormat,
    OutputOption,
    console,
    is_watched,
    print_fields,
    print_json,
    print_table,
)
from stratalog_cli.pipeline.run import results, run
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from stratalog_pipeline.jobs.runners import Runner

ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="ID", help="The cluster's id, if the bucket holds several clusters.")
]
MetaOption = Annotated[
    str | None,
    typer.Option("--meta", envvar="STRATALOG_META", metavar="URL", help="Meta service to ask what is committed."),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Spark threads on this machine; 0 works without Spark and Java, one segment after another.",
    ),
]
MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="STRATALOG_SPARK_MASTER",
        metavar="URL",
        help="Spark cluster that does the work, such as spark://HOST:7077. Default: this machine, with --threads.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
OnProgress = Callable[[str, int, int], None]


class ArchiveKind(StrEnum):
    JSON = "json"
    RAW = "raw"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class ArchiveBy(StrEnum):
    DATE = "date"
    HOUR = "hour"
    MONTH = "month"


class ArchiveFormat(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class OnGap(StrEnum):
    FAIL = "fail"
    REPORT = "report"


class ExportShape(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    KAFKA = "kafka"


class SinkTo(StrEnum):
    POSTGRES = "postgres"
    ELASTICSEARCH = "elasticsearch"
    OPENSEARCH = "opensearch"
    CLICKHOUSE = "clickhouse"


_NEEDED_BY_TARGET: dict[SinkTo, tuple[str, ...]] = {
    SinkTo.POSTGRES: ("psycopg",),
    SinkTo.ELASTICSEARCH: (),
    SinkTo.OPENSEARCH: (),
    SinkTo.CLICKHOUSE: (),
}
"""Packages of requirements/sinks.txt that only this target needs."""

_NEEDED_BY: dict[ArchiveFormat, tuple[str, ...]] = {
    ArchiveFormat.PARQUET: (),
    ArchiveFormat.DELTA: ("deltalake",),
    ArchiveFormat.ICEBERG: ("pyiceberg",),
}
"""Packages that only this format needs."""


_ONLY_IN_BUCKETS = ("objects", "put_requests", "get_requests")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Run jobs over cold data, directly on the bucket.")
    for command in (archive, compact, verify, export, sink, cost, run, results):
        group.command()(command)
    app.add_typer(group, name="pipeline")


def archive(
    topic: TopicArgument,
    bucket: BucketOption,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Object store that the table is written to.")],
    kind: Annotated[ArchiveKind, typer.Option(help="What the values of the records are.")] = ArchiveKind.JSON,
    by: Annotated[ArchiveBy, typer.Option(help="Partition the table by this unit of time.")] = ArchiveBy.DATE,
    form: Annotated[
        ArchiveFormat,
        typer.Option("--format", help="Plain Parquet files, or files with the log of a Delta or Iceberg table."),
    ] = ArchiveFormat.PARQUET,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|ID=FILE|DIR",
            help="File with the schema. JSON: an object of fields and types; Avro: a schema, with --confluent also one "
            "for each id, or a folder of ID.avsc; Protobuf: descriptors.",
        ),
    ] = None,
    message: Annotated[str, typer.Option(metavar="NAME", help="For Protobuf: full name of the message.")] = "",
    confluent: Annotated[
        bool,
        typer.Option("--confluent", help="Each value begins with Confluent's five bytes: a zero and a schema's id."),
    ] = False,
    on_gap: Annotated[
        OnGap, typer.Option("--on-gap", help="What to do about records that were deleted before they were archived.")
    ] = OnGap.FAIL,
    cluster: ClusterOption = None,
    meta: MetaOption = None,
    threads: ThreadsOption = 2,
    master: MasterOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write the sealed segments of a topic to a table: each record once, however often this runs.

    Records that cannot be read become dead letters, with their offsets and the reason. Exit code 1 if every record
    did."""
    master = "" if dry_run else master
    _need_extra(*_NEEDED_BY[form], threads=0 if dry_run else threads, master=master)
    from stratalog_cli.pipeline.jobs import archive as run

    with _running(0 if dry_run else threads, master) as (runner, step):
        result = run(
            bucket,
            to,
            topic,
            kind,
            by,
            form,
            tuple(schema or ()),
            message,
            confluent,
            cluster,
            meta,
            on_gap is OnGap.REPORT,
            dry_run,
            runner,
            step,
        )
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        _print_archived(result, topic, kind, is_dry_run=dry_run)
    if result["dead"] and not result["rows"]:
        raise typer.Exit(1)


def _print_archived(result: dict[str, Any], topic: str, kind: ArchiveKind, *, is_dry_run: bool) -> None:
    title = f"{'would be archived' if is_dry_run else 'archived'}: {topic}"
    print_fields(_fields(result, is_dry_run=is_dry_run), title=title)
    if result["gaps"]:
        rows = [(str(one["shard"]), str(one["from_offset"]), str(one["to_offset"])) for one in result["gaps"]]
        print_table(["#shard", "#gone from", "#to"], rows)
    if result["waiting"]:
        say(
            f"{counted(result['waiting'], 'segment')} left for a later run: each waits until it, and those before it "
            f"in its shard, are sealed and complete in the bucket; `stratalog segments {topic}` shows them, "
            f"`stratalog seal {topic}` ends those that are being written"
        )
    if result["dead"]:
        from stratalog_pipeline.jobs.columns.topic_folder import topic_folder

        which = counted(result["dead"], "record") if result["rows"] else f"all {counted(result['dead'], 'record')}"
        say(f"{which} could not be read as {kind}: see {topic_folder(topic)}/dead/, with the reasons")


def compact(
    bucket: BucketOption,
    meta: Annotated[
        str, typer.Option("--meta", envvar="STRATALOG_META", metavar="URL", help="The cluster's meta service.")
    ],
    topics: Annotated[str, typer.Option(metavar="T[,T...]", help="Only these topics. Default: all topics.")] = "",
    object_bytes: Annotated[
        str, typer.Option("--object-bytes", metavar="SIZE", help="Most bytes of batches in one object.")
    ] = "64MiB",
    pack: Annotated[
        bool,
        typer.Option(
            "--pack",
            help="Compress them with zstd if that saves an eighth or more. Every node and reader must know packed "
            "chunks: see docs/upgrade.md.",
        ),
    ] = False,
    threads: ThreadsOption = 2,
    master: MasterOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Merge the many small objects of complete segments into a few large ones. Batches stay the same; readers continue.

    Exit code 1 if a segment could have been merged and was not."""
    master = "" if dry_run else master
    _need_extra(threads=0 if dry_run else threads, master=master)
    from stratalog_cli.pipeline.jobs import compact as run

    target_bytes = size_bytes(object_bytes)
    if target_bytes is None:
        raise InvalidRequest(f"--object-bytes {object_bytes!r:.80}: expected a size such as 64MiB")
    with _running(0 if dry_run else threads, master) as (runner, step):
        result = run(bucket, meta, _names(topics), target_bytes, dry_run, pack, runner, step)
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        print_fields(_fields(result, is_dry_run=dry_run), title="would be compacted" if dry_run else "compacted")
        if result["not_merged"]:
            print_table(["not merged", "why"], [(one["segment"], one["why"]) for one in result["not_merged"]])
    if result["not_merged"]:
        raise typer.Exit(1)


def verify(
    bucket: BucketOption,
    topics: Annotated[str, typer.Option(metavar="T[,T...]", help="Only these topics. Default: all topics.")] = "",
    cluster: ClusterOption = None,
    meta: MetaOption = None,
    repair: Annotated[
        list[str] | None,
        typer.Option(
            "--repair",
            metavar="URL|DIR",
            help="Restore damaged objects from there: another bucket with the same keys, or a node's data directory. "
            "May be repeated.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    threads: ThreadsOption = 2,
    master: MasterOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Read every byte of every committed segment, and check it against manifests and metadata.

    Exit code 1 if something is damaged or missing, and was not restored."""
    _need_extra(threads=threads, master=master)
    from stratalog_cli.pipeline.jobs import verify as run

    sources = tuple(repair or ())
    with _running(threads, master) as (runner, step):
        result = run(bucket, _names(topics), cluster, meta, sources, dry_run, runner, step)
    findings = result["findings"]
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        print_fields(_fields(result), title="verified")
        if result["repaired"]:
            print_table(["would be put back" if dry_run else "put back"], [(key,) for key in result["repaired"]])
        if result["not_repaired"]:
            print_table(["not put back"], [(why,) for why in result["not_repaired"]])
        if findings:
            print_table(["where", "what"], [(one["place"], one["what"]) for one in findings])
        if result["archived"]:
            say(
                f"{counted(result['archived'], 'segment')} not checked: the data is archived; `stratalog topics "
                "restore` makes it readable"
            )
        say("no findings" if not findings else counted(len(findings), "finding"))
    if findings:
        raise typer.Exit(1)


def export(
    bucket: BucketOption,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL|H:P[,H:P...]", help="Object store, or the bootstrap servers of a Kafka cluster."
        ),
    ],
    shape: Annotated[
        ExportShape, typer.Option("--as", help="Write files of this kind, or produce to a Kafka cluster.")
    ] = ExportShape.JSONL,
    topics: Annotated[str, typer.Option(metavar="T[,T...]", help="Only these topics. Default: all topics.")] = "",
    snapshot: Annotated[str | None, typer.Option(metavar="NAME", help="Export what this snapshot holds.")] = None,
    from_offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Records at this offset or later, in each shard.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Records before this offset, in each shard.")
    ] = None,
    from_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Records of this time or later, in Unix milliseconds.")
    ] = None,
    to_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Records before this time, in Unix milliseconds.")
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="KEY=VALUE|KEY=@FILE",
            help="A setting of the Kafka client, or a file with its value; may be repeated.",
        ),
    ] = None,
    cluster: ClusterOption = None,
    meta: MetaOption = None,
    threads: ThreadsOption = 2,
    master: MasterOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Export committed records to JSON lines or Parquet files, or to another Kafka cluster.

    Exit code 1 if there are batches whose records cannot be read; all others are exported.
    """
    master = "" if dry_run else master
    _need_extra(threads=0 if dry_run else threads, master=master)
    from stratalog_cli.pipeline.jobs import export as run

    ranges = (from_offset, to_offset, from_ms, to_ms)
    settings, files = _client_settings(client or ())
    with _running(0 if dry_run else threads, master) as (runner, step):
        result = run(
            bucket, to, shape, _names(topics), snapshot, ranges, settings, files, cluster, meta, dry_run, runner, step
        )
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        print_fields(_fields(result, is_dry_run=dry_run), title="would be exported" if dry_run else "exported")
        if result["same_shards"]:
            say(f"records have the shards that they had: {', '.join(result['same_shards'])}")
        if result["by_key"]:
            topics = ", ".join(result["by_key"])
            say(f"records are placed by their keys, for the Kafka has another number of shards: {topics}")
        if result["unread"]:
            print_table(["not exported"], [(why,) for why in result["unread"]])
    if result["unread"]:
        raise typer.Exit(1)


def sink(
    topic: TopicArgument,
    bucket: BucketOption,
    to: Annotated[SinkTo, typer.Option("--to", help="What kind of target the records are stored in.")],
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Address of the target, without a password.")],
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Table or index to store the records in. Default: the topic's name."),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="User of the target. Elasticsearch without a user: the password is an API key."
        ),
    ] = "",
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the user's password. Default: STRATALOG_SINK_PASSWORD."),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificates to trust, in PEM. Default: those that the system trusts."),
    ] = None,
    on_gap: Annotated[
        OnGap, typer.Option("--on-gap", help="What to do about records that were deleted before they were stored.")
    ] = OnGap.FAIL,
    cluster: ClusterOption = None,
    meta: MetaOption = None,
    threads: ThreadsOption = 2,
    master: MasterOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Store the committed records of a topic in a database or a search engine: each once, however often this runs.

    Exit code 1 if there are batches whose records cannot be read; all others are stored."""
    threads = 0 if dry_run else threads
    _need_extra(threads=threads, master=master)
    _need_for(to)
    from stratalog_cli.pipeline.jobs import sink as run

    files = tuple("" if one is None else str(one) for one in (password_file, ca_file))
    with _running(threads, master) as (runner, step):
        result = run(
            bucket, to, url, table, topic, user, files, cluster, meta, on_gap is OnGap.REPORT, dry_run, runner, step
        )
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        print_fields(
            _fields(result, is_dry_run=dry_run), title=f"{'would be stored' if dry_run else 'stored'}: {topic}"
        )
        if result["lacks"]:
            names = ("shard", "from_offset", "to_offset", "why")
            rows = [tuple(str(one[name]) for name in names) for one in result["lacks"]]
            print_table(["#shard", "#lacks from", "#to", "why"], rows)
    if result["unread"]:
        raise typer.Exit(1)


def cost(
    bucket: BucketOption,
    prices: Annotated[Path | None, typer.Option(metavar="FILE", help="File with prices, in JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write a chart to, as SVG.")] = None,
    cluster: ClusterOption = None,
    meta: MetaOption = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show bytes, objects, requests and cost by topic and tier: of the bucket, and of the disks of the nodes that are
    named."""
    _need_extra(threads=0)
    from stratalog_cli.connect.local_bytes import ask_local_bytes
    from stratalog_cli.pipeline.jobs import cost as run

    local, nodes = ask_local_bytes(admin)
    with _running(0) as (_, step):
        result = run(bucket, prices, plot, cluster, meta, local, step)
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        _print_cost(result)
        if prices is None:
            say("without --prices FILE every price is 0")
        if not result["nodes"]:
            say("the nodes' disks are not counted: name nodes with --admin")
    if nodes is not None:
        nodes.end()


def _print_cost(result: dict[str, Any]) -> None:
    columns = ("topic", "tier", "#bytes", "#objects", "#puts", "#gets", f"#{result['currency']} a month")
    rows = [
        (
            one["topic"],
            one["tier"],
            str(one["bytes"]),
            *(str(one[name]) if one["tier"] == "bucket" else "" for name in _ONLY_IN_BUCKETS),
            f"{one['storage_price'] + one['request_price']:.4f}",
        )
        for one in result["rows"]
    ]
    print_table(columns, rows, give_up=("#gets", "#puts", "#objects"))


def _need_extra(*more: str, threads: int, master: str = "") -> None:
    """`threads`: of Spark; a job with 0 of them and without a master needs no pyspark. Raises: InvalidRequest when a
    package is missing."""
    needed = ("pyarrow", "fastavro", *more)
    missing = [name for name in (("pyspark", *needed) if threads or master else needed) if find_spec(name) is None]
    if missing:
        instead = "; --threads 0 does this job without pyspark" if missing == ["pyspark"] else ""
        raise InvalidRequest(
            f"packages that this job needs are not installed ({', '.join(missing)}): pip install -r "
            f"requirements/pipeline.txt, or in a checkout `make spark`{instead}"
        )


def _need_for(target: SinkTo) -> None:
    """Raises: InvalidRequest when a package is missing."""
    missing = [name for name in _NEEDED_BY_TARGET[target] if find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            f"packages that this target needs are not installed ({', '.join(missing)}): pip install -r "
            "requirements/sinks.txt"
        )


def _fields(result: dict[str, Any], *, is_dry_run: bool = False) -> list[tuple[str, str]]:
    """The results that are single values, for people. Left out: the flag of a dry run, which the title shows, and
    values that a dry run does not count."""
    return [
        (name.replace("_", " "), str(value))
        for name, value in result.items()
        if not isinstance(value, list | bool) and (value or not is_dry_run)
    ]


def _names(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _client_settings(given: Iterable[str]) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Values, and files with values. A value that begins with @ names a file: a secret does not belong on a command
    line. Each process reads the file itself."""
    settings, files = [], []
    for one in given:
        key, equals, value = one.partition("=")
        if not key or not equals:
            raise InvalidRequest("--client is given as KEY=VALUE, or KEY=@FILE for what is secret")
        if value.startswith("@"):
            files.append((key, value[1:]))
        else:
            settings.append((key, value))
    return tuple(settings), tuple(files)


@contextmanager
def _running(threads: int, master: str = "") -> Iterator[tuple[Runner, OnProgress]]:
    """A runner of pieces, and a bar that follows them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stratalog_pipeline.jobs.runners import on_spark, one_by_one

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(to_stderr=True), transient=True, disable=not is_watched()) as progress:
        task = progress.add_task("planning", total=None)

        def step(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total or None)

        if not threads and not master:
            yield one_by_one, step
            return
        from stratalog_pipeline.jobs.session import cluster_session, local_session

        session = cluster_session("stratalog", master) if master else local_session("stratalog", threads=threads)
        try:
            yield on_spark(session), step
        finally:
            session.stop()
