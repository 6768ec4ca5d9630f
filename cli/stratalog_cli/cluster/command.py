"""`stratalog cluster …`: several nodes, their meta service and its etcd, as processes of one machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.settings.load import COMMAND_LINE_VARIABLES, load_process_settings
from stratalog_cli.cluster.checked import health
from stratalog_cli.cluster.control import NotRunning, ask
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.plan import Plan
from stratalog_cli.connect.output import OutputFormat, OutputOption, SetOption, print_json
from stratalog_cli.terminal.say import say

DataOption = Annotated[
    Path, typer.Option("--data", envvar="STRATALOG_DATA", metavar="DIR", help="The cluster's directory.")
]
DEFAULT_DATA = Path("stratalog-cluster")
_FINDINGS = 1


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Run a cluster of several nodes on this machine; check the health of any."
    )
    group.callback()(_cluster)
    group.command("start")(start)
    group.command("stop")(stop)
    group.command("add")(add)
    group.command("status")(status)
    group.command("health")(health)
    app.add_typer(group, name="cluster")


def _cluster() -> None:
    """A cluster of several nodes on this machine."""


def start(
    data: DataOption = DEFAULT_DATA,
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", help="Number of nodes of a new cluster.  [default: 3]")
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            metavar="P",
            help="The first of 100 ports for a new cluster; node 1 takes P, node 2 P+1, …  "
            "[default: 9092 on, and 9644 on for what is not Kafka]",
        ),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket",
            envvar="STRATALOG_BUCKET",
            metavar="URL",
            help="Object store of the cold tier: a directory, file:///DIR, s3://BUCKET/PREFIX?endpoint=URL, "
            "gs://BUCKET/PREFIX or az://CONTAINER/PREFIX?account_name=ACCOUNT.",
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Clients come by TLS and log in, and the parts speak TLS with each other: makes authorities, "
            "certificates, a token and a user `admin`, and prints the settings of clients.",
        ),
    ] = False,
    settings: SetOption = None,
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="NAME", help="Start only this part of a running cluster, after it went down."),
    ] = None,
) -> None:
    """Run a cluster until Ctrl-C or `stratalog cluster stop`, or restart one part of it.

    Prints a line for each part that is ready, the command that creates a context for the cluster, the address of the
    UI, and finally `ready bootstrap=HOST:PORT,…`. A cluster that is started again keeps its data, ports and
    settings; options that are given again replace the earlier ones. Settings apply to all parts.
    """
    directory = ClusterDirectory(data)
    if part is not None:
        if nodes is not None or port_base is not None or settings or secure:
            raise InvalidRequest("--part starts what is known: leave the other options out")
        _ask(directory, {"do": "start-part", "part": part})
        return
    _require_not_running(directory)
    from stratalog_cli.cluster.etcd import find_etcd
    from stratalog_cli.cluster.plan import Asked, Programs, first_plan, next_plan, secured
    from stratalog_cli.cluster.run import run_cluster

    asked = Asked(nodes, port_base, None if bucket is None else _bucket(bucket), settings or (), secure)
    etcd = find_etcd()
    if directory.exists:
        plan = next_plan(directory.read()[0], asked)
    else:
        directory.require_new()
        plan = first_plan(asked, has_etcd=etcd is not None)
    plan = secured(plan, directory.path)
    _check_settings(plan)
    # Not from this folder: a file in it may have the name of a module.
    programs = Programs((sys.executable, "-P", "-m", "stratalog_cli.entry"), etcd)
    run_cluster(directory, plan, programs)


def stop(
    data: DataOption = DEFAULT_DATA,
    part: Annotated[str | None, typer.Option("--part", metavar="NAME", help="Stop only this part.")] = None,
) -> None:
    """Stop a cluster in order: nodes, then the meta service, then etcd. Or stop one part of it.

    Returns when they have stopped. Their data is kept.
    """
    directory = ClusterDirectory(data)
    if part is not None:
        _ask(directory, {"do": "stop-part", "part": part})
        return
    try:
        _ask(directory, {"do": "stop"})
    except NotRunning:
        say(f"the cluster in {directory.path} does not run")


def add(data: DataOption = DEFAULT_DATA) -> None:
    """Add a node to a running cluster: it gets shards as their segments roll, and no data is moved."""
    answer = _ask(ClusterDirectory(data), {"do": "add-node"})
    if "context" in answer:  # not from one that was started by an earlier version
        say(f"commands  stratalog context add NAME --replace {answer['context']}")
    say(f"ready bootstrap={answer['bootstrap']}")


def status(data: DataOption = DEFAULT_DATA, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show a cluster: its parts, which of them lead, why others are down, and what is wrong with its shards.

    Exit code 1 if a part is down or not ready, or a shard is in trouble."""
    from stratalog_cli.cluster.status import is_in_order, print_status, read_status

    found = read_status(ClusterDirectory(data))
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        print_status(found)
    if not is_in_order(found):
        raise typer.Exit(_FINDINGS)


def _ask(directory: ClusterDirectory, request: dict[str, Any]) -> Any:
    directory.read()  # raises if this is not the directory of a cluster
    return ask(directory.path, request, say)


def _require_not_running(directory: ClusterDirectory) -> None:
    try:
        ask(directory.path, {"do": "state"}, say, timeout_s=5)
    except NotRunning:
        return
    place = directory.path
    raise Conflict(
        f"the cluster in {place} runs already: `stratalog cluster status --data {place}` shows it, "
        f"`stratalog cluster stop --data {place}` ends it"
    )


def _bucket(url: str) -> str:
    """Absolute, for a later start may be made from another folder. Raises InvalidRequest."""
    from stratalog.objects.urls import DirectoryLocation, MemoryLocation, is_url, parse_url

    location = parse_url(url)  # a mistyped one is refused before anything is made
    if isinstance(location, MemoryLocation):
        raise InvalidRequest("--bucket memory: is one process's own: name a directory, which all nodes share")
    is_path = isinstance(location, DirectoryLocation) and not is_url(url)
    return str(Path(url).absolute()) if is_path else url


def _check_settings(plan: Plan) -> None:
    """Raises InvalidRequest before anything is made."""
    environment = {name: value for name, value in os.environ.items() if name not in COMMAND_LINE_VARIABLES}
    assigned = [f"{key}={value}" for key, value in plan.choices.settings.items()]
    if plan.choices.parts_have_tls:
        assigned += ["http.security.protocol=SSL", f"ssl.certificate.folder={plan.security}"]  # as each part has them
    load_process_settings(environment=environment, assignments=assigned, has_bucket=plan.choices.bucket is not None)
