"""`stratalog operator start`: reads the options, then runs the operator (`stratalog_operator.process`)."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.model.errors import InvalidRequest
from stratalog.settings.choices import LogLevel
from stratalog.telemetry.http import split_address

NamespaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace", envvar="STRATALOG_WATCH_NAMESPACES", metavar="NS", help="A namespace to watch; may be repeated."
    ),
]
AllNamespacesOption = Annotated[
    bool, typer.Option("--all-namespaces", envvar="STRATALOG_WATCH_ALL_NAMESPACES", help="Watch all of them.")
]
LeaseNamespaceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NS", envvar="STRATALOG_LEASE_NAMESPACE", help="The Lease's namespace. Default: the pod's own."
    ),
]
LeaseNameOption = Annotated[
    str, typer.Option(metavar="NAME", envvar="STRATALOG_LEASE_NAME", help="The Lease's name; whoever holds it works.")
]
LEASE = "stratalog-operator"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The Kubernetes operator.")
    group.callback()(_operator)
    group.command("start")(start)
    group.command("check")(check)
    app.add_typer(group, name="operator")


def _operator() -> None:
    """The Kubernetes operator."""


def start(
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            envvar="STRATALOG_LISTEN",
            metavar="HOST:PORT",
            help="Health and metrics; empty: none.",
        ),
    ] = "127.0.0.1:9644",
    allowed_hosts: Annotated[
        str,
        typer.Option(
            "--allowed-hosts",
            envvar="STRATALOG_HTTP_ALLOWED_HOSTS",
            metavar="NAMES",
            help="Names under which that port is asked, with commas between; .NAME: all below it.",
        ),
    ] = "",
    lease_namespace: LeaseNamespaceOption = None,
    lease_name: LeaseNameOption = LEASE,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", envvar="STRATALOG_LOG_LEVEL", help="Lowest level of the log's lines.")
    ] = LogLevel.INFO,
) -> None:
    """Run the operator until it is told to stop (SIGTERM, Ctrl-C). Several may run: one of them works.

    In a pod it uses the service account; elsewhere the user of the kubeconfig (KUBECONFIG).
    """
    namespaces = _watched(namespace, all_namespaces)
    if listen:
        split_address(listen)
    from stratalog_cli.operator_start import run_operator

    run_operator(namespaces, listen, allowed_hosts, lease_namespace, lease_name, log_level)


def check(
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    lease_namespace: LeaseNamespaceOption = None,
    lease_name: LeaseNameOption = LEASE,
) -> None:
    """Check how an operator is installed: its kinds are served, its account has every right, one instance leads.

    Run it with the operator's own account and environment. Exit code 1 on findings; nothing is changed.
    """
    namespaces = _watched(namespace, all_namespaces)
    from stratalog_cli.operator_check import check_operator

    check_operator(namespaces, lease_namespace, lease_name)


def _watched(namespace: list[str] | None, all_namespaces: bool) -> tuple[str, ...]:
    """None: all of them."""
    namespaces = tuple(dict.fromkeys(namespace or ()))
    if bool(namespaces) == all_namespaces:
        raise InvalidRequest("say what to watch: --namespace NS, which may be repeated, or --all-namespaces")
    return namespaces
