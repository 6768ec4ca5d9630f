"""`stratalog start`: reads the options and the settings, then runs the node (`stratalog_cli.services.start`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.members import Part
from stratalog.settings.load import load_process_settings
from stratalog.settings.one_node import require_one_node
from stratalog.telemetry.http import split_address

if TYPE_CHECKING:
    from stratalog.settings.process import ProcessSettings


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="STRATALOG_CONFIG",
        metavar="FILE",
        help="Settings file: KEY=VALUE lines, or TOML if its name ends in .toml.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, by its Kafka name; may be repeated."),
]


def register(app: typer.Typer) -> None:
    app.command("start")(start)


def start(
    data: Annotated[
        Path,
        typer.Option(
            "--data", envvar="STRATALOG_DATA", metavar="DIR", help="Data directory; created if it is missing."
        ),
    ] = Path("stratalog-data"),
    listen: Annotated[
        str,
        typer.Option("--listen", envvar="STRATALOG_LISTEN", metavar="HOST:PORT", help="Where Kafka clients connect."),
    ] = "127.0.0.1:9092",
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
    config: ConfigOption = None,
    settings: SettingsOption = None,
) -> None:
    """Run a node with an embedded meta service, until SIGTERM or Ctrl-C.

    Settings come from the defaults, --config, STRATALOG_* environment variables and --set; the later one wins.
    """
    loaded = load_process_settings(
        file=config, environment=os.environ, assignments=settings or (), has_bucket=bucket is not None
    )
    require_one_node(loaded)
    require_tokens(loaded)
    require_certificates(loaded)
    split_address(listen, "--listen")
    _require_no_cluster(data)
    if bucket is not None:
        from stratalog.objects.urls import parse_url

        parse_url(bucket)  # a mistyped one is refused before anything is made
    require_free_ports(listen, loaded, of_node=True, of_meta=True)
    from stratalog_cli.services.start import run_node

    # Absolute, because the commands that show places run in other directories.
    run_node(loaded, data.absolute(), listen, bucket)


def require_free_ports(listen: str, settings: ProcessSettings, *, of_node: bool = False, of_meta: bool = False) -> None:
    """Before anything is made. Raises: Unavailable."""
    from stratalog_cli.cluster.free_ports import addresses_of, require_free

    try:
        require_free(addresses_of(listen, settings, of_node=of_node, of_meta=of_meta))
    except Unavailable as error:
        raise Unavailable(f"cannot start: {error}") from None


def require_tokens(settings: ProcessSettings) -> None:
    """Before anything is made. Raises: InvalidRequest for a file of tokens that cannot be read, or used."""
    from stratalog.telemetry.token_file import role_file, token_file

    role_file(settings.auth_role_tokens_file, token_file(settings.auth_token_file))


def require_certificates(settings: ProcessSettings, part: Part = Part.NODE) -> None:
    """Before anything is made. Raises: InvalidRequest for certificates or a key that the process cannot use."""
    is_needed = any(one.is_tls for one in settings.security_protocols.values())
    if settings.has_certificate or settings.ssl_truststore_location or is_needed:
        from stratalog.tls.identity import identity_of  # with a library that plain text does not need

        identity_of(settings, part, settings.node_id if part is Part.NODE else None)


def _require_no_cluster(data: Path) -> None:
    """A node of its own in a cluster's directory would look as if the cluster had lost all it has. Raises:
    InvalidRequest."""
    from stratalog_cli.cluster.directory import ClusterDirectory

    if ClusterDirectory(data).exists:
        raise InvalidRequest(
            f"--data {data} is the directory of a cluster: `stratalog cluster start --data {data}` starts it; "
            "a single node needs another one"
        )
