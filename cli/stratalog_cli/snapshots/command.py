"""`stratalog snapshot …`: consistent cuts, their list, and a new cluster made of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from stratalog_cli.connect.bucket_asked import BucketOption
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
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from stratalog.model.cut import Cut

ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="ID", help="The cluster's id, if the bucket holds several clusters.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Take consistent snapshots of all shards, and create clusters from them."
    )
    for name, command in (("create", create), ("list", list_all), ("show", show), ("delete", delete)):
        group.command(name)(command)
    group.command("restore")(restore)
    app.add_typer(group, name="snapshot")


def create(
    name: NameArgument,
    bucket: BucketOption,
    topics: Annotated[str, typer.Option(metavar="T[,T...]", help="Only these topics. Default: all topics.")] = "",
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for uploads.")] = 300.0,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Take a consistent snapshot of all shards: it holds each record with everything acknowledged before it.

    Name all nodes in --admin: they pause writes for the moment that their answers take."""
    from stratalog.objects.urls import parse_url
    from stratalog_cli.snapshots import snapshots

    parse_url(bucket)
    wanted = [one.strip() for one in topics.split(",") if one.strip()]
    with _progress() as step:
        cut = snapshots.create(name, bucket, admin, wanted, wait, step)
    _print(cut, output)


def list_all(bucket: BucketOption, cluster: ClusterOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the snapshots in a bucket."""
    from stratalog.admin_api.wording import human_time
    from stratalog_cli.snapshots import snapshots

    found = snapshots.with_bucket(bucket, lambda store: snapshots.find(store, cluster))
    if output is OutputFormat.JSON:
        print_json([snapshots.as_json(cut) for cut in found])
        return
    if not found:
        say("no snapshots in this bucket; take one: stratalog snapshot create NAME --bucket URL")
        return
    columns = ("name", "created", "#topics", "#shards", "cluster")
    rows = [
        (cut.name, human_time(cut.created_ms), str(len(cut.topics)), str(len(cut.shards)), cut.cluster_id)
        for cut in found
    ]
    print_table(columns, rows, give_up=("cluster",))


def show(
    name: NameArgument, bucket: BucketOption, cluster: ClusterOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show the end offset of each shard in a snapshot."""
    from stratalog_cli.snapshots import snapshots

    _print(snapshots.with_bucket(bucket, lambda store: snapshots.find_one(store, cluster, name)), output)


def delete(
    name: NameArgument, bucket: BucketOption, cluster: ClusterOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Delete a snapshot. The nodes then delete the data that only it needed, by retention."""
    from stratalog_cli.snapshots import snapshots

    cut = snapshots.with_bucket(bucket, lambda store: snapshots.delete_one(store, cluster, name))
    if output is OutputFormat.JSON:
        print_json(snapshots.as_json(cut))
    else:
        say(f"deleted: {cut.name}")


def restore(
    name: NameArgument,
    bucket: BucketOption,
    nodes: Annotated[str, typer.Option(metavar="N[,N...]", help="Ids of the nodes of the new cluster.")] = "1",
    data: Annotated[
        Path | None,
        typer.Option("--data", envvar="STRATALOG_DATA", metavar="DIR", help="Directory for the new metadata."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="STRATALOG_STORE",
            metavar="URL",
            help="Or etcd for the new metadata: etcd://H:P[/PREFIX].",
        ),
    ] = None,
    cluster: ClusterOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a new cluster from a snapshot and the bucket alone: the data is copied under the new cluster's id.

    The new store must be empty. Access to etcd is configured by STRATALOG_ETCD_*."""
    from stratalog_cli.services.meta_command import node_ids, place_of
    from stratalog_cli.snapshots import snapshots
    from stratalog_cli.snapshots.restore import restore as run

    place, access = place_of(data, store, os.environ)
    with _progress() as step:
        restored = run(bucket, cluster, name, place, access, node_ids(nodes), step)
    if output is OutputFormat.JSON:
        print_json(
            {**snapshots.as_json(restored.cut), "new_cluster_id": restored.cluster_id, "bytes": restored.bytes_put}
        )
        return
    pairs = [("snapshot", name), ("new cluster", restored.cluster_id), ("segments", str(restored.segments))]
    print_fields(pairs, title="restored")
    together = "" if data is None else f"; on one machine `stratalog start --data {data} --bucket …` is both"
    say(f"next: start the meta service on it with --bucket, and nodes ({nodes}) on empty --data directories{together}")


def _print(cut: Cut, output: OutputFormat) -> None:
    from stratalog_cli.snapshots import snapshots

    document = snapshots.as_json(cut)
    if output is OutputFormat.JSON:
        print_json(document)
        return
    columns = ("topic", "#shard", "#log start", "#offset", "#epoch")
    rows = [tuple(str(value) for value in shard.values()) for shard in document["shards"]]
    print_table(columns, rows, title=f"snapshot {cut.name}")


class Step(Protocol):
    def __call__(self, what: str, /) -> None: ...


@contextmanager
def _progress() -> Iterator[Step]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console(to_stderr=True), transient=True, disable=not is_watched()) as progress:
        task = progress.add_task("", total=None)
        yield lambda what: progress.update(task, description=what)
