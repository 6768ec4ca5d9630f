"""`stratalog meta start`: reads the options and the settings, then runs an instance (`stratalog_cli.meta_start`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stratalog.model.errors import InvalidRequest
from stratalog.settings.load import load_process_settings
from stratalog.telemetry.http import split_address


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The meta service as a process of its own.")
    group.callback()(_meta)
    group.command("start")(start)
    app.add_typer(group, name="meta")


def _meta() -> None:
    """The meta service as a process of its own."""


def start(
    listen: Annotated[
        str,
        typer.Option("--listen", envvar="STRATALOG_LISTEN", metavar="HOST:PORT", help="Where nodes and tools ask it."),
    ] = "127.0.0.1:9100",
    data: Annotated[
        Path | None,
        typer.Option("--data", envvar="STRATALOG_DATA", metavar="DIR", help="Keep the metadata here: one instance."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="STRATALOG_STORE",
            metavar="URL",
            help="Keep the metadata in etcd: etcd://H:P,H:P,H:P[/PREFIX]; any number of instances, of which one leads.",
        ),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket",
            envvar="STRATALOG_BUCKET",
            metavar="URL",
            help="The nodes' object store: snapshots of the metadata go there (docs/backup.md).",
        ),
    ] = None,
    etcd_ca: Annotated[
        Path | None,
        typer.Option(
            "--etcd-ca",
            envvar="STRATALOG_ETCD_CA",
            metavar="FILE",
            help="Reach etcd by TLS: PEM of the authority by which its members prove themselves.",
        ),
    ] = None,
    etcd_cert: Annotated[
        Path | None,
        typer.Option(
            "--etcd-cert", envvar="STRATALOG_ETCD_CERT", metavar="FILE", help="PEM: who connects, where etcd asks."
        ),
    ] = None,
    etcd_key: Annotated[
        Path | None,
        typer.Option("--etcd-key", envvar="STRATALOG_ETCD_KEY", metavar="FILE", help="PEM: the key of --etcd-cert."),
    ] = None,
    etcd_user: Annotated[
        str | None,
        typer.Option(
            "--etcd-user",
            envvar="STRATALOG_ETCD_USER",
            metavar="NAME",
            help="Its password comes from --etcd-password-file or STRATALOG_ETCD_PASSWORD.",
        ),
    ] = None,
    etcd_password_file: Annotated[
        Path | None,
        typer.Option(
            "--etcd-password-file",
            envvar="STRATALOG_ETCD_PASSWORD_FILE",
            metavar="FILE",
            help="The password of --etcd-user, as the one line of a file.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", envvar="STRATALOG_CONFIG", metavar="FILE", help="KEY=VALUE lines, or TOML (.toml)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting under Kafka's name; may be repeated."),
    ] = None,
) -> None:
    """Run an instance of the meta service until it is told to stop (SIGTERM, Ctrl-C).

    Settings come from the built-in defaults, then --config, then STRATALOG_* of the environment, then --set.
    """
    loaded = load_process_settings(
        file=config, environment=os.environ, assignments=settings or (), has_bucket=bucket is not None
    )
    split_address(listen)
    if (data is None) == (store is None):
        raise InvalidRequest("name one place for the metadata: --data DIR, or --store etcd://H:P,H:P,H:P[/PREFIX]")
    if bucket is not None:
        from stratalog.objects.urls import parse_url

        parse_url(bucket)  # a mistyped one is refused before anything is made
    from stratalog_cli.meta_start import run_meta

    if store is not None:
        from stratalog_meta.stores.etcd.access import AccessFiles, read_access
        from stratalog_meta.stores.etcd.address import parse_address

        files = AccessFiles(etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key)
        run_meta(loaded, listen, parse_address(store), read_access(files, os.environ), bucket)
    if data is not None:
        run_meta(loaded, listen, data.absolute(), bucket=bucket)
