"""What the commands of `stratalog operator` do: `start` runs the operator as a process, `check` asks Kubernetes whether
it is installed correctly, `release` releases objects that are being deleted while no operator runs.

The commands import this module only when they run, because it needs the Kubernetes client.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

import typer

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import configure_logs
from stratalog_cli.services.server_process import run_server
from stratalog_cli.terminal.say import say, say_error
from stratalog_operator.announce import Announcer
from stratalog_operator.finalizer_release import held, let_go_all, served_kinds
from stratalog_operator.installed import problems
from stratalog_operator.kube.connect import configuration, connected, identity, own_namespace
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.passes import Passes
from stratalog_operator.process import Operator, OperatorSettings
from stratalog_operator.stats import OperatorStats

LEASE_LOST: Final = 1
FINDINGS: Final = 1
STILL_WAITING: Final = 1
"""Exit codes."""


def run_operator(
    namespaces: tuple[str, ...],
    listen: str,
    allowed_hosts: str,
    lease_namespace: str | None,
    lease_name: str,
    log_level: str,
) -> None:
    """Exits 0 after a signal to stop, 1 at once when another replica may hold the Lease, 3 on an error."""
    configure_logs(log_level)
    settings = OperatorSettings(
        identity=identity(os.environ),
        namespaces=namespaces,
        namespace=own_namespace(os.environ),
        lease_namespace=lease_namespace or own_namespace(os.environ),
        lease_name=lease_name,
        admin_listen=listen,
        allowed_hosts=allowed_hosts,
    )
    run_server(_run(settings))


async def _run(settings: OperatorSettings) -> int:
    stopping = asyncio.Event()

    def handle_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    handle_signals()
    try:
        operator = Operator(settings, await configuration(os.environ), HttpMetaConnections(), handle_signals)
        was_stopped = await operator.run(stopping)
    except StratalogError as error:
        say_error(f"the operator ends: {error}")
        return 3
    if not was_stopped:
        os._exit(LEASE_LOST)
    return 0


def check_operator(namespaces: tuple[str, ...], lease_namespace: str | None, lease_name: str) -> None:
    """Print what is missing. Raises: typer.Exit with 1 if something is; StratalogError without an API server."""
    found = asyncio.run(_found(namespaces, lease_namespace or own_namespace(os.environ), lease_name))
    for problem in found:
        say_error(problem)
    if found:
        raise typer.Exit(FINDINGS)
    say("installed correctly: the kinds are served, every right is there, one operator leads")


async def _found(namespaces: tuple[str, ...], lease_namespace: str, lease_name: str) -> list[str]:
    async with connected(await configuration(os.environ)) as kubernetes:
        return await problems(kubernetes, namespaces, lease_namespace, lease_name)


def release_deleted(namespaces: tuple[str, ...]) -> None:
    """Release objects whose deletion waits for an operator. Raises: typer.Exit with 1 if some still wait."""
    before, after = asyncio.run(_released(namespaces))
    for name in sorted({*before} - {*after}):
        say(f"released: {name}")
    for name in after:
        say_error(f"still waits: {name}; its status says for what (`kubectl describe`)")
    if after:
        raise typer.Exit(STILL_WAITING)
    if not before:
        say("nothing that is being deleted waits for an operator")


async def _released(namespaces: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The names of the objects that waited before, and of those that still wait."""
    stats, metas = OperatorStats(), HttpMetaConnections()
    async with connected(await configuration(os.environ)) as kubernetes:
        try:
            served = await served_kinds(kubernetes)
            before = await held(kubernetes, namespaces, served)
            passes = Passes(kubernetes, metas, Announcer(kubernetes, stats, identity(os.environ)), stats)
            await let_go_all(kubernetes, passes, namespaces, served)
            return before, await held(kubernetes, namespaces, served)
        finally:
            await metas.close()
