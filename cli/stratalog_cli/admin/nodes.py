"""`stratalog nodes …`: list, retire, status, cancel.

The commands state a wish and read what became of it; the meta service's leader does the work, so a command that is
ended changes nothing. Progress goes to standard error.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stratalog.admin_api.wording import human_bytes, human_duration
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.counting import counted
from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.metadata import Node
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.meta_question import MetaOption, ask_meta
from stratalog_cli.connect.output import OutputFormat, OutputOption, console, is_watched, print_json, print_table
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from stratalog.meta_api.http_client import HttpMetaClient

_POLL_S: Final = 0.5
_INTERRUPTED: Final = 130
_BY_ITSELF: Final = "`stratalog nodes status {0}` shows how far it is, `stratalog nodes cancel {0}` takes it back"
_SHOWN: Final = 100
"""Most lost ranges that are shown. The JSON has all that the service lists."""

NodeArgument = Annotated[int, typer.Argument(metavar="ID", help="The node's id, as `nodes list` shows it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="List the nodes of a cluster, and retire nodes."
    )
    group.command("list")(list_nodes)
    group.command("retire")(retire)
    group.command("status")(status)
    group.command("cancel")(cancel)
    app.add_typer(group, name="nodes")


def list_nodes(meta: MetaOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List all nodes that ever registered: address, state, and which of them are leaving."""
    nodes = sorted(ask_meta(meta, lambda client: client.nodes()), key=lambda one: one.node_id)
    if output is OutputFormat.JSON:
        print_json([_json(node) for node in nodes])
        return
    rows = [
        (
            str(node.node_id),
            _state(node),
            f"{node.host}:{node.port}",
            node.rack or "-",
            node.storage_id,
            "-" if node.retirement is None else f"{node.retirement.step} ({node.retirement.mode})",
        )
        for node in nodes
    ]
    print_table(("#node", "state", "address", "rack", "storage id", "retirement"), rows, give_up=("rack", "address"))


def retire(
    node_id: NodeArgument,
    meta: MetaOption = None,
    mode: Annotated[
        RetireMode,
        typer.Option(
            help="offload: its data is served from the bucket, or from copies on other nodes; volume: from its "
            "directory, in place."
        ),
    ] = RetireMode.OFFLOAD,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the node has left, and show the progress.")] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="With --wait: exit with code 3 after this time."),
    ] = None,
    force: Annotated[
        str | None,
        typer.Option(
            "--force",
            metavar="STORAGE-ID",
            help="For a node that is lost for good: give up the data that only it has. Takes its storage id.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Retire a node. It is released only when everything it held is safe without it. A second call changes nothing."""

    async def ask(client: HttpMetaClient) -> None:
        """A force is about the absence that the node is in now, however often the request has to be repeated."""
        absence = None
        if force is not None:
            absence = next((one.absences for one in await client.nodes() if one.node_id == node_id), None)
        await client.perform(RetireNode(node_id, mode, force, absence))

    ask_meta(meta, ask, is_write=True)
    try:
        found = (
            _watch(meta, node_id, timeout_s, is_shown=output is OutputFormat.TABLE) if wait else _read(meta, node_id)
        )
    except KeyboardInterrupt:
        say(f"node {node_id} continues to leave: {_BY_ITSELF.format(node_id)}", to_stderr=True)
        raise typer.Exit(_INTERRUPTED) from None
    _show([found], output)
    if not wait and output is OutputFormat.TABLE and found.retirement.step is not RetireStep.DONE:
        say(f"it continues by itself: {_BY_ITSELF.format(node_id)}")


def status(
    meta: MetaOption = None,
    node_id: Annotated[
        int | None, typer.Argument(metavar="ID", help="Only this node. Default: all that leave or have left.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the progress of nodes that are leaving or have left: step, what remains, and what they wait for."""
    if node_id is not None:
        _show([_read(meta, node_id)], output)
        return
    found = ask_meta(meta, lambda client: client.retirements())
    if found or output is OutputFormat.JSON:
        _show(list(found), output)
    else:
        say("no node leaves, and none has left")


def cancel(node_id: NodeArgument, meta: MetaOption = None) -> None:
    """Cancel a retirement: the node stays. Refused, with the reason, once the node has been released."""

    async def ask(client: HttpMetaClient) -> bool:
        """Returns whether the node was leaving. The command goes to the service in any case, which refuses an unknown
        node."""
        is_leaving = any(one.node_id == node_id for one in await client.retirements())
        await client.perform(CancelRetirement(node_id))
        return is_leaving

    if ask_meta(meta, ask, is_write=True):
        say(f"node {node_id} stays: it gets new segments again; what was sealed or uploaded meanwhile stays so")
    else:
        say(f"node {node_id} was not leaving: nothing was changed")


def _read(meta: str | None, node_id: int) -> RetirementStatus:
    found = next((one for one in ask_meta(meta, lambda client: client.retirements()) if one.node_id == node_id), None)
    if found is None:
        raise NotFound(f"node {node_id} is not leaving, and has not left: `stratalog nodes list` shows who is there")
    return found


def _watch(meta: str | None, node_id: int, timeout_s: float | None, *, is_shown: bool) -> RetirementStatus:
    """Until it is done. A service that is away is waited for: another instance may lead soon."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[step]}", markup=False),
    )
    end = None if timeout_s is None else time.monotonic() + timeout_s
    steps, most, last_shown = list(RetireStep), 0, ""
    with Progress(
        *columns, TimeElapsedColumn(), console=console(to_stderr=True), transient=True, disable=not is_watched()
    ) as progress:
        task = progress.add_task(f"node {node_id}", total=len(steps) - 1, step="")
        while True:
            try:
                found = _read(meta, node_id)
            except Unavailable as error:
                line = str(error)
            else:
                most = max(most, found.remaining_bytes)
                share = 1 - found.remaining_bytes / most if most else 0.0
                at = steps.index(found.retirement.step) + (share if found.retirement.step is RetireStep.OFFLOAD else 0)
                line = f"{found.retirement.step}: {found.words}"
                progress.update(task, completed=min(at, len(steps) - 1), step=str(found.retirement.step))
                if found.retirement.step is RetireStep.DONE:
                    return found
            if is_shown and line != last_shown:
                # Whole, on lines of its own: the bar's line ends where the terminal does.
                words = f"node {node_id}: {printable(line)}"
                if is_watched():
                    progress.console.print(words, markup=False, soft_wrap=True)
                else:
                    say(words, to_stderr=True)
            last_shown = line
            if end is not None and time.monotonic() > end:
                raise Unavailable(f"node {node_id} has not left after {timeout_s:g} s: {line}; it continues by itself")
            time.sleep(_POLL_S)


# Showing ----------------------------------------------------------------------------------------------------------
def _state(node: Node) -> str:
    if node.is_retired:
        return "retired"
    return ("alive" if node.is_alive else "not alive") + (", leaves" if node.is_leaving else "")


def _show(found: list[RetirementStatus], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in found])
        return
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            str(one.node_id),
            str(one.retirement.step),
            str(one.retirement.mode),
            str(one.remaining_segments),
            human_bytes(one.remaining_bytes),
            f"{human_bytes(one.bytes_per_second)}/s" if one.bytes_per_second else "-",
            "-" if one.seconds_left < 0 else human_duration(one.seconds_left),
            human_duration((now_ms - one.retirement.step_since_ms) // 1_000),
        )
        for one in sorted(found, key=lambda one: one.node_id)
    ]
    columns = ("#node", "step", "mode", "#segments left", "#bytes left", "#rate", "#time left", "#for")
    print_table(columns, rows, give_up=("#for", "#time left", "#rate", "mode"))
    for one in sorted(found, key=lambda one: one.node_id):
        say(f"node {one.node_id}: {printable(one.words)}")  # a table would break it into a narrow column
    for one in found:
        _show_unheld(one)
        record = one.retirement
        for lost in record.given_up:
            key = lost.segment
            offsets = f"offsets [{lost.base_offset}, {lost.end_offset})"
            if lost.end_offset == lost.base_offset:
                offsets = f"what may have been written from offset {lost.base_offset} on"
            say(f"node {one.node_id}: given up: topic {key.topic_id} shard {key.shard} {offsets}")
        if record.given_up_count > len(record.given_up):
            say(f"node {one.node_id}: and {counted(record.given_up_count - len(record.given_up), 'more range')}")


def _show_unheld(one: RetirementStatus) -> None:
    if not one.unheld_count:
        return
    rows = [
        (
            printable(lost.topic),
            str(lost.segment.shard),
            f"{lost.segment.base_offset}-{lost.segment.epoch}",
            f"{lost.base_offset} and on" if lost.end_offset is None else f"[{lost.base_offset}, {lost.end_offset})",
            "open" if lost.end_offset is None else "ended",
        )
        for lost in one.unheld[:_SHOWN]
    ]
    title = f"what only node {one.node_id} had, which is not alive: {counted(one.unheld_count, 'range')}"
    print_table(("topic", "#shard", "segment", "#offsets", "segment is"), rows, title=title)
    if one.unheld_count > len(rows):
        listed = f"--output json lists the first {len(one.unheld):,}" if len(one.unheld) > len(rows) else "cut there"
        say(f"node {one.node_id}: and {counted(one.unheld_count - len(rows), 'more range')}; {listed}")


def _json(record: Any) -> object:
    """As the meta service says it over HTTP."""
    from stratalog.meta_api.json_shape import JsonShape

    return json.loads(JsonShape(type(record)).write(record))
