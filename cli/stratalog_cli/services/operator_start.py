"""The operator as a process: signals, logs, and its end.

Exits 0 when it was told to stop, 1 at once when another replica may have taken over, 3 when it cannot go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import configure_logs
from stratalog_cli.services.server_process import run_server
from stratalog_cli.terminal.say import say_error
from stratalog_operator.kube.connect import configuration, identity, own_namespace
from stratalog_operator.metas import HttpMetaDoors
from stratalog_operator.process import Operator, OperatorSettings

LEASE_LOST: Final = 1


def run_operator(
    namespaces: tuple[str, ...],
    listen: str,
    allowed_hosts: str,
    lease_namespace: str | None,
    lease_name: str,
    log_level: str,
) -> None:
    configure_logs(log_level)
    settings = OperatorSettings(
        identity=identity(os.environ),
        namespaces=namespaces,
        lease_namespace=lease_namespace or own_namespace(os.environ),
        lease_name=lease_name,
        admin_listen=listen,
        allowed_hosts=allowed_hosts,
    )
    run_server(_run(settings))


async def _run(settings: OperatorSettings) -> int:
    stopping = asyncio.Event()

    def take_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    take_signals()
    try:
        operator = Operator(settings, await configuration(os.environ), HttpMetaDoors(), take_signals)
        is_told = await operator.run(stopping)
    except StratalogError as error:
        say_error(f"the operator ends: {error}")
        return 3
    if not is_told:
        os._exit(LEASE_LOST)
    return 0
