"""`stratalog mounts …`: list, create, move, end."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.mounts import CreateMountRequest, EndMountRequest, MountInfo, MoveMountRequest
from stratalog.admin_api.wording import human_bytes, human_time
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.model.mounts import DATA_SET_PREFIX
from stratalog.settings.units import parse_duration_ms
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.output import (
    AdminOption,
    OutputFormat,
    OutputOption,
    print_json,
    print_table,
)
from stratalog_cli.connect.several_nodes import Nodes
from stratalog_cli.terminal.moments import parse_time_ms
from stratalog_cli.terminal.say import say

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The mount's name, such as tier/3.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Old data that is served read-only: what retired nodes left, and mounted ranges of topics.",
    )
    group.command("list")(list_mounts)
    group.command("create")(create)
    group.command("move")(move)
    group.command("end")(end)
    app.add_typer(group, name="mounts")


def list_mounts(admin: AdminOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List mounts with their holders, states and sizes."""
    mounts = Nodes(admin).first(AdminClient.mounts)
    if output is OutputFormat.JSON:
        print_json(mounts)
    elif mounts:
        _print(mounts)
    else:
        say("no mounts: no node has been retired yet, or all their mounts have ended")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the mount; its topics are read as TOPIC@NAME.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Topic to mount; may be repeated. With --snapshot the default is all topics of the snapshot.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Start of the time range, in ISO 8601, UTC by default: 2013-01-01."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End of the time range, not included: 2013-02-01.")
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="NAME", help="Mount what this snapshot holds, instead of a time range."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="TIME", help="Time after which the mount ends by itself: 7d, 12h, 30m. Default: never."
        ),
    ] = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Mount sealed data read-only under another name: the segments of a time range, or what a snapshot holds."""
    lasts_ms = 0 if expires is None else parse_duration_ms(expires, "--expires")
    if snapshot is not None:
        if start is not None or until is not None:
            raise InvalidRequest("--snapshot says what is mounted: leave out --from and --until")
        request = CreateMountRequest(name=name, topics=topics or [], lasts_ms=lasts_ms, snapshot=snapshot)
    elif not topics or start is None or until is None:
        raise InvalidRequest("say what to mount: --topic, --from and --until, or --snapshot")
    else:
        request = CreateMountRequest(
            name=name,
            topics=topics,
            from_ms=parse_time_ms(start, "--from"),
            until_ms=parse_time_ms(until, "--until"),
            lasts_ms=lasts_ms,
        )
    mount = Nodes(admin, is_write=True).first(lambda node: node.create_mount(request))
    if output is OutputFormat.JSON:
        print_json(mount)
    else:
        say(
            f"{counted(mount.segments, 'segment')}, {human_bytes(mount.bytes)}, read as "
            f"{', '.join(map(printable, mount.topics))}"
        )


def move(
    name: NameArgument,
    node_id: Annotated[
        int | None,
        typer.Option("--to", metavar="N", help="Node that will hold the mount. Default: the one with the least load."),
    ] = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Move a mount to another node. Reads continue."""
    request = MoveMountRequest(name=name, node_id=node_id)
    mount = Nodes(admin, is_write=True).first(lambda node: node.move_mount(request))
    if output is OutputFormat.JSON:
        print_json(mount)
    else:
        say(f"mount {printable(mount.name)} goes to node {mount.holder}, under fencing epoch {mount.token}")


def end(
    name: NameArgument,
    force: Annotated[
        str | None,
        typer.Option(
            "--force",
            metavar="STORAGE-ID",
            help="For a retired directory that is lost for good: give up the data that only it has. Takes the storage "
            "id of the retired node.",
        ),
    ] = None,
    admin: AdminOption = None,
) -> None:
    """End a mount. Refused while one of its segments is stored nowhere else."""
    request = EndMountRequest(name=name, force_storage_id=force)
    nodes = Nodes(admin, is_write=True)
    if force is None and all(one.name != name for one in nodes.first(AdminClient.mounts)):
        raise NotFound(
            f"there is no mount {name!r:.200}: it has ended, or never was; `stratalog mounts list` shows all"
        )
    nodes.first(lambda node: node.end_mount(request))
    say(f"mount {printable(name)} has ended")
    if force is not None:
        retired = printable(name.removeprefix(DATA_SET_PREFIX))
        say(f"`stratalog nodes status {retired}` lists what was given up with it")


def _holder(mount: MountInfo) -> str:
    if mount.holder is not None:
        return f"node {mount.holder}"
    return "leaders" if mount.topics else "nobody"


def _print(mounts: list[MountInfo]) -> None:
    columns = (
        "mount",
        "mode",
        "state",
        "holder",
        "#token",
        "#segments",
        "#bytes",
        "#only there",
        "where",
        "since",
        "until",
    )
    rows = [
        (
            mount.name,
            mount.mode,
            mount.state,
            _holder(mount),
            str(mount.token),
            str(mount.segments),
            human_bytes(mount.bytes),
            str(mount.only_there),
            ", ".join(mount.topics) or mount.volume or ("not read now" if mount.mode == "volume" else "-"),
            human_time(mount.created_ms),
            human_time(mount.expires_ms) if mount.expires_ms else "never",
        )
        for mount in mounts
    ]
    print_table(columns, rows, give_up=("since", "#token", "until", "#bytes"))
    for mount in mounts:
        if mount.mode == "volume" and mount.volume is None:
            say(
                f"{printable(mount.name)}: no process serves the directory of node {mount.node_id} (storage "
                f"{printable(mount.storage_id)}); where it is, run: stratalog node start --read-only --data DIR "
                "--meta URL",
                to_stderr=True,
            )
