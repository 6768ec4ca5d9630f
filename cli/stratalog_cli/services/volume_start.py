"""`stratalog node start --read-only` as a process: it reads the directory of a node that was retired in volume mode."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from stratalog.model.errors import StratalogError
from stratalog.model.members import Part
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.http import TelemetryServer, split_address
from stratalog.telemetry.logs import configure_logs, logger
from stratalog.telemetry.printable import printable
from stratalog.telemetry.process_stats import add_process_metrics
from stratalog.telemetry.token_file import token_file
from stratalog_cli.services.announced_address import announced_address
from stratalog_cli.services.audit import open_audit
from stratalog_cli.services.meta_wait import until_answered
from stratalog_cli.services.port_access import port_access
from stratalog_cli.services.process_tls import open_tls
from stratalog_cli.services.server_process import (
    StoppedEarly,
    collect_less_often,
    first_of,
    run_server,
    stop_signal,
    unless_stopped,
)
from stratalog_cli.terminal.say import say, say_error

log = logger(__name__)


def run_volume(settings: ProcessSettings, data: Path, listen: str, meta_urls: str, node_id: int | None) -> None:
    """Run until SIGTERM or SIGINT, or until the mount has ended. Exits 3 when it cannot start, or is over, with the
    reason."""
    configure_logs(settings.log_level)
    run_server(_run(settings, data, listen, meta_urls, node_id))


async def _run(settings: ProcessSettings, data: Path, listen: str, meta_urls: str, node_id: int | None) -> int:
    from stratalog.meta_api.http_client import HttpMetaClient
    from stratalog_node.disk.layout import NodeLayout
    from stratalog_node.volume.directory import check_is_node, node_id_of
    from stratalog_node.volume.volume_node import VolumeNode

    stopping = stop_signal()
    async with AsyncExitStack() as running:
        audit = open_audit(settings, "volume", running)
        try:
            layout = NodeLayout(data / "node")
            check_is_node(layout)  # before a service is waited for that cannot help
            tokens = token_file(settings.auth_token_file)
            tls = await open_tls(settings, Part.NODE, node_id_of(layout), running)
            token = None if tokens is None else tokens.first
            meta = HttpMetaClient(meta_urls, token=token, tls=tls.to(Part.META))
            running.push_async_callback(meta.close)
            place = split_address(listen, "--listen")
            node = VolumeNode(settings, data / "node", *place, meta, node_id=node_id, tls=tls.identity)
            await unless_stopped(until_answered(meta), stopping)
            await unless_stopped(node.start(), stopping)
            running.push_async_callback(node.close)
            announced_address(settings, node.address)
            collect_less_often()
            add_process_metrics(node.metrics)
            node.metrics.add("stratalog_audit", audit.stats)
            http = TelemetryServer(
                node.metrics,
                readiness=node.readiness,
                allowed_hosts=settings.http_allowed_hosts,
                access=port_access(settings, tokens, is_for_members=tls.is_for_members),
                tls=tls.port,
                audit=audit,
            )
            running.push_async_callback(http.stop)
            admin = await http.start(settings.metrics_listen) if settings.metrics_listen else ""
        except StoppedEarly:
            log.info("stopped before it was ready")
            return 0
        except StratalogError as error:
            say_error(f"cannot start: {error}")
            return 3
        address = f"{node.address[0]}:{node.address[1]}"
        say(
            f"stratalog ready: peers {address}, admin {admin or 'off'}, data {printable(str(data))} of node "
            f"{node.identity.node_id}, read only"
        )
        over = await first_of(stopping, node.is_over)
        if over is node.is_over:
            say_error(f"stopping: {node.why_over}")
        log.info("stopping")
    log.info("stopped")
    return 3 if node.is_over.is_set() else 0
