"""`stratalog meta start`: reads the options and the settings, then runs an instance
(`stratalog_cli.services.meta_start`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.model.errors import InvalidRequest
from stratalog.model.members import Part
from stratalog.settings.load import load_process_settings
from stratalog.telemetry.http import split_address
from stratalog_cli.connect.output import OutputFormat, OutputOption
from stratalog_cli.services.start_command import (
    ConfigOption,
    SettingsOption,
    require_certificates,
    require_free_ports,
    require_tokens,
)

if TYPE_CHECKING:
    from stratalog_meta.stores.etcd.access import EtcdAccess
    from stratalog_meta.stores.etcd.address import EtcdAddress


EtcdCaOption = Annotated[
    Path | None,
    typer.Option(
        "--etcd-ca",
        envvar="STRATALOG_ETCD_CA",
        metavar="FILE",
        help="Use TLS to etcd: PEM file of the CA that signed the certificates of its members.",
    ),
]
EtcdCertOption = Annotated[
    Path | None,
    typer.Option(
        "--etcd-cert",
        envvar="STRATALOG_ETCD_CERT",
        metavar="FILE",
        help="PEM file of the client certificate, if etcd asks for one.",
    ),
]
EtcdKeyOption = Annotated[
    Path | None,
    typer.Option("--etcd-key", envvar="STRATALOG_ETCD_KEY", metavar="FILE", help="PEM file of the key of --etcd-cert."),
]
EtcdUserOption = Annotated[
    str | None,
    typer.Option(
        "--etcd-user",
        envvar="STRATALOG_ETCD_USER",
        metavar="NAME",
        help="User at etcd; the password comes from --etcd-password-file or STRATALOG_ETCD_PASSWORD.",
    ),
]
EtcdPasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--etcd-password-file",
        envvar="STRATALOG_ETCD_PASSWORD_FILE",
        metavar="FILE",
        help="File whose only line is the password of --etcd-user.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="STRATALOG_STORE",
        metavar="URL",
        help="Keep the metadata in etcd: etcd://H:P,H:P,H:P[/PREFIX]; any number of instances, of which one leads.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", envvar="STRATALOG_DATA", metavar="DIR", help="Directory for the metadata; for a single instance."
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Run the meta service as a separate process.")
    group.callback()(_meta)
    group.command("start")(start)
    group.command("rebuild")(rebuild)
    app.add_typer(group, name="meta")


def _meta() -> None:
    """Run the meta service as a separate process."""


def start(
    listen: Annotated[
        str,
        typer.Option("--listen", envvar="STRATALOG_LISTEN", metavar="HOST:PORT", help="Where nodes and tools connect."),
    ] = "127.0.0.1:9100",
    data: DataOption = None,
    store: StoreOption = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket",
            envvar="STRATALOG_BUCKET",
            metavar="URL",
            help="The nodes' object store: snapshots of the metadata go there (docs/backup.md).",
        ),
    ] = None,
    etcd_ca: EtcdCaOption = None,
    etcd_cert: EtcdCertOption = None,
    etcd_key: EtcdKeyOption = None,
    etcd_user: EtcdUserOption = None,
    etcd_password_file: EtcdPasswordFileOption = None,
    config: ConfigOption = None,
    settings: SettingsOption = None,
) -> None:
    """Run an instance of the meta service, until SIGTERM or Ctrl-C.

    Settings come from the defaults, --config, STRATALOG_* environment variables and --set; the later one wins.
    """
    loaded = load_process_settings(
        file=config, environment=os.environ, assignments=settings or (), has_bucket=bucket is not None
    )
    require_tokens(loaded)
    require_certificates(loaded, Part.META)
    split_address(listen, "--listen")
    if (data is None) == (store is None):
        raise InvalidRequest("name one place for the metadata: --data DIR, or --store etcd://H:P,H:P,H:P[/PREFIX]")
    if bucket is not None:
        from stratalog.objects.urls import parse_url

        parse_url(bucket)  # a mistyped one is refused before anything is made
    from stratalog_cli.services.meta_start import run_meta

    place, access = _place(data, store, etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key)
    require_free_ports(listen, loaded)
    run_meta(loaded, listen, place, access, bucket)


def _place(
    data: Path | None,
    store: str | None,
    user: str | None,
    password_file: Path | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
) -> tuple[Path | EtcdAddress, EtcdAccess | None]:
    """Where the metadata are; exactly one of `data` and `store` is given."""
    if store is None:
        assert data is not None, "one of them is given"
        return data.absolute(), None
    from stratalog_meta.stores.etcd.access import AccessFiles, read_access
    from stratalog_meta.stores.etcd.address import parse_address

    return parse_address(store), read_access(AccessFiles(user, password_file, ca, cert, key), os.environ)


def rebuild(
    bucket: Annotated[
        str,
        typer.Option("--bucket", envvar="STRATALOG_BUCKET", metavar="URL", help="Object store of the lost cluster."),
    ],
    nodes: Annotated[
        str,
        typer.Option(metavar="N[,N...]", help="Ids of the new nodes, each of which starts on an empty disk."),
    ] = "1",
    data: DataOption = None,
    store: StoreOption = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ID", help="Which cluster, where the bucket holds several; saves a listing.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be rebuilt.")] = False,
    without_volume: Annotated[
        list[int] | None,
        typer.Option(
            "--without-volume",
            metavar="N",
            help="Give up the directory of node N, which was retired in volume mode; may be repeated.",
        ),
    ] = None,
    etcd_ca: EtcdCaOption = None,
    etcd_cert: EtcdCertOption = None,
    etcd_key: EtcdKeyOption = None,
    etcd_user: EtcdUserOption = None,
    etcd_password_file: EtcdPasswordFileOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Rebuild the metadata of a lost cluster from its bucket alone, into an empty store.

    Data that was only on the old disks is lost; docs/backup.md says what comes back."""
    if (data is None) == (store is None):
        raise InvalidRequest("name one place for the metadata: --data DIR, or --store etcd://H:P,H:P,H:P[/PREFIX]")
    from stratalog.objects.urls import parse_url
    from stratalog_cli.services.meta_rebuild import RebuildOptions, run_rebuild

    parse_url(bucket)
    place, access = _place(data, store, etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key)
    given_up = tuple(dict.fromkeys(without_volume or ()))
    run_rebuild(RebuildOptions(bucket, place, access, node_ids(nodes), cluster, dry_run, given_up), output)


def node_ids(text: str) -> tuple[int, ...]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in numbers):
        raise InvalidRequest(f"--nodes {text}: write the nodes' ids with commas between, as in 1,2,3")
    return tuple(map(int, numbers))


def place_of(
    data: Path | None, store: str | None, environment: Mapping[str, str]
) -> tuple[Path | EtcdAddress, EtcdAccess | None]:
    """What etcd asks for comes from the environment alone. Raises: InvalidRequest."""
    if (data is None) == (store is None):
        raise InvalidRequest("name one place for the metadata: --data DIR, or --store etcd://H:P,H:P,H:P[/PREFIX]")
    files = [environment.get(f"STRATALOG_ETCD_{name}") for name in ("PASSWORD_FILE", "CA", "CERT", "KEY")]
    paths = [None if file is None else Path(file) for file in files]
    return _place(data, store, environment.get("STRATALOG_ETCD_USER"), *paths)
