"""`stratalog node start`: reads the options and the settings, then runs a node of a cluster
(`stratalog_cli.services.start`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stratalog.settings.load import load_process_settings
from stratalog.telemetry.http import split_address
from stratalog_cli.services.start_command import (
    ConfigOption,
    SettingsOption,
    require_certificates,
    require_free_ports,
    require_tokens,
)


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Run a storage node of a cluster.")
    group.callback()(_node)
    group.command("start")(start)
    app.add_typer(group, name="node")


def _node() -> None:
    """A storage node of a cluster."""


def start(
    meta: Annotated[
        str,
        typer.Option(
            "--meta",
            envvar="STRATALOG_META",
            metavar="URL[,URL]",
            help="The meta service's instances: http://HOST:PORT, with commas between.",
        ),
    ],
    node_id: Annotated[
        int | None, typer.Option("--id", metavar="N", help="Identity in the cluster; the same as --set node.id=N.")
    ] = None,
    data: Annotated[
        Path,
        typer.Option(
            "--data", envvar="STRATALOG_DATA", metavar="DIR", help="Data directory; created if it is missing."
        ),
    ] = Path("stratalog-data"),
    listen: Annotated[
        str,
        typer.Option(
            "--listen", envvar="STRATALOG_LISTEN", metavar="HOST:PORT", help="Where clients and other nodes connect."
        ),
    ] = "127.0.0.1:9092",
    rack: Annotated[
        str | None,
        typer.Option("--rack", metavar="R", help="The rack or zone it is in; the same as --set broker.rack=R."),
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
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="Serve the --data DIR of a node that was retired in volume mode to the other nodes: nothing is "
            "written there, nothing uploaded, no client served.",
        ),
    ] = False,
    config: ConfigOption = None,
    settings: SettingsOption = None,
) -> None:
    """Run a storage node, until SIGTERM or Ctrl-C, or until another process takes its place.

    Settings come from the defaults, --config, STRATALOG_* environment variables and --set; the later one wins.
    """
    assigned = list(settings or ())
    if node_id is not None:
        assigned.append(f"node.id={node_id}")
    if rack is not None:
        assigned.append(f"broker.rack={rack}")
    loaded = load_process_settings(
        file=config, environment=os.environ, assignments=assigned, has_bucket=bucket is not None
    )
    require_tokens(loaded)
    if not read_only:
        require_certificates(loaded)
    split_address(listen, "--listen")
    if bucket is not None:
        from stratalog.objects.urls import parse_url

        parse_url(bucket)  # a mistyped one is refused before anything is made
    from stratalog.meta_api.endpoints import parse_endpoints

    parse_endpoints(meta)
    require_free_ports(listen, loaded, of_node=not read_only)
    if read_only:
        from stratalog_cli.services.volume_start import run_volume

        run_volume(loaded, data.absolute(), listen, meta, node_id)
    from stratalog_cli.services.start import run_node

    # Absolute, because the commands that show places run in other directories.
    run_node(loaded, data.absolute(), listen, bucket, meta)
