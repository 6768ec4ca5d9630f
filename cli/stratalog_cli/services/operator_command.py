"""`stratalog operator …`: options of the commands; `operator_actions` runs them."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.model.errors import InvalidRequest
from stratalog.settings.choices import LogLevel
from stratalog.telemetry.http import split_address

NamespaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace", envvar="STRATALOG_WATCH_NAMESPACES", metavar="NS", help="Namespace to watch; may be repeated."
    ),
]
AllNamespacesOption = Annotated[
    bool, typer.Option("--all-namespaces", envvar="STRATALOG_WATCH_ALL_NAMESPACES", help="Watch all namespaces.")
]
LeaseNamespaceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NS", envvar="STRATALOG_LEASE_NAMESPACE", help="Namespace of the Lease. Default: the pod's own."
    ),
]
LeaseNameOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        envvar="STRATALOG_LEASE_NAME",
        help="Name of the Lease; the instance that holds it does the work.",
    ),
]
LEASE = "stratalog-operator"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Run the Kubernetes operator, check how it is installed, or replace one that is gone.",
    )
    group.callback()(_operator)
    group.command("start")(start)
    group.command("check")(check)
    group.command("release")(release)
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
            help="Address for health and metrics; empty turns them off.",
        ),
    ] = "127.0.0.1:9644",
    allowed_hosts: Annotated[
        str,
        typer.Option(
            "--allowed-hosts",
            envvar="STRATALOG_HTTP_ALLOWED_HOSTS",
            metavar="NAMES",
            help="Host names that requests may use, separated by commas; .NAME allows all names below it.",
        ),
    ] = "",
    lease_namespace: LeaseNamespaceOption = None,
    lease_name: LeaseNameOption = LEASE,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", envvar="STRATALOG_LOG_LEVEL", help="Lowest level that is logged.")
    ] = LogLevel.INFO,
) -> None:
    """Run the operator, until SIGTERM or Ctrl-C. Several instances may run; one of them does the work.

    In a pod it uses the service account; elsewhere, the user of the kubeconfig (KUBECONFIG).
    """
    namespaces = _watched(namespace, all_namespaces)
    if listen:
        split_address(listen, "--listen")
    from stratalog_cli.services.operator_actions import run_operator

    run_operator(namespaces, listen, allowed_hosts, lease_namespace, lease_name, log_level)


def check(
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    lease_namespace: LeaseNamespaceOption = None,
    lease_name: LeaseNameOption = LEASE,
) -> None:
    """Check how an operator is installed: its kinds exist, its account has all rights, one instance leads.

    Run it with the operator's own account and environment. It changes nothing. Exit code 1 on findings.
    """
    namespaces = _watched(namespace, all_namespaces)
    from stratalog_cli.services.operator_actions import check_operator

    check_operator(namespaces, lease_namespace, lease_name)


def release(namespace: NamespaceOption = None, all_namespaces: AllNamespacesOption = False) -> None:
    """Release what is being deleted and waits for an operator that is gone, such as after `kubectl delete -f crds/`.

    Run it as a user who may change the objects. It touches only what is being deleted, and keeps the volumes. Exit code
    1 if something still waits.
    """
    namespaces = _watched(namespace, all_namespaces)
    from stratalog_cli.services.operator_actions import release_deleted

    release_deleted(namespaces)


def _watched(namespace: list[str] | None, all_namespaces: bool) -> tuple[str, ...]:
    """None: all of them."""
    namespaces = tuple(dict.fromkeys(namespace or ()))
    if bool(namespaces) == all_namespaces:
        raise InvalidRequest("say what to watch: --namespace NS, which may be repeated, or --all-namespaces")
    return namespaces
