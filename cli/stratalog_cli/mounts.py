"""`stratalog mounts …`: list, move, end."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.mounts import EndMountRequest, MountInfo, MoveMountRequest
from stratalog.admin_api.wording import human_bytes, human_time
from stratalog.telemetry.printable import printable
from stratalog_cli.output import (
    DEFAULT_ADMIN,
    AdminOption,
    OutputFormat,
    OutputOption,
    print_json,
    print_table,
)
from stratalog_cli.say import say
from stratalog_cli.several_nodes import Nodes

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The mount's name, such as tier/3.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="What retired nodes left: who looks after it, and where it is read.",
    )
    group.command("list")(list_mounts)
    group.command("move")(move)
    group.command("end")(end)
    app.add_typer(group, name="mounts")


def list_mounts(admin: AdminOption = DEFAULT_ADMIN, output: OutputOption = OutputFormat.TABLE) -> None:
    """List mounts with their holders, states and sizes."""
    mounts = Nodes(admin).first(AdminClient.mounts)
    if output is OutputFormat.JSON:
        print_json(mounts)
    elif mounts:
        _print(mounts)
    else:
        say("no mounts: no node has been retired yet, or all that they left has ended")


def move(
    name: NameArgument,
    node_id: Annotated[
        int | None, typer.Option("--to", metavar="N", help="The node that shall hold it. Default: the least loaded.")
    ] = None,
    admin: AdminOption = DEFAULT_ADMIN,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let another node hold a mount. Reads go on."""
    mount = Nodes(admin).first(lambda node: node.move_mount(MoveMountRequest(name=name, node_id=node_id)))
    if output is OutputFormat.JSON:
        print_json(mount)
    else:
        say(f"mount {printable(mount.name)} goes to node {mount.holder}, under token {mount.token}")


def end(name: NameArgument, admin: AdminOption = DEFAULT_ADMIN) -> None:
    """End a mount: nobody looks after it any more. Refused while a segment is nowhere else."""
    Nodes(admin).first(lambda node: node.end_mount(EndMountRequest(name=name)))
    say(f"mount {printable(name)} has ended")


def _print(mounts: list[MountInfo]) -> None:
    columns = ("mount", "mode", "state", "holder", "#token", "#segments", "#bytes", "#only there", "volume", "since")
    rows = [
        (
            mount.name,
            mount.mode,
            mount.state,
            "nobody" if mount.holder is None else f"node {mount.holder}",
            str(mount.token),
            str(mount.segments),
            human_bytes(mount.bytes),
            str(mount.only_there),
            mount.volume or ("not read now" if mount.mode == "volume" else "-"),
            human_time(mount.created_ms),
        )
        for mount in mounts
    ]
    print_table(columns, rows, give_up=("since", "#token", "#bytes"))
    for mount in mounts:
        if mount.mode == "volume" and mount.volume is None:
            say(
                f"{printable(mount.name)}: nobody reads the directory of node {mount.node_id} (storage "
                f"{printable(mount.storage_id)}); where it lies, run: stratalog node start --read-only --data DIR "
                "--meta URL",
                to_stderr=True,
            )
