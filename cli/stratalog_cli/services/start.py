"""A storage node as a process, with a bucket the cold tier too: `stratalog start` with the meta service inside,
`stratalog node start` with one that runs elsewhere.

Imports what it needs and no more: start to ready is measured (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.model.addresses import written
from stratalog.model.errors import StratalogError
from stratalog.model.listeners import INTERNAL
from stratalog.model.members import Part
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.http import split_address
from stratalog.telemetry.logs import configure_logs, logger
from stratalog.telemetry.printable import printable
from stratalog.telemetry.token_file import TokenFile, token_file
from stratalog_cli.services.announced_address import announced_address
from stratalog_cli.services.audit import open_audit
from stratalog_cli.services.meta_wait import until_answered
from stratalog_cli.services.process_tls import ProcessTls, open_tls
from stratalog_cli.services.server_process import (
    StoppedEarly,
    collect_less_often,
    first_of,
    run_server,
    stop_signal,
    unless_stopped,
)
from stratalog_cli.terminal.say import say, say_error

if TYPE_CHECKING:
    from stratalog.meta_api.client import MetaForNodes
    from stratalog.meta_api.http_client import HttpMetaClient
    from stratalog.objects import ObjectStore
    from stratalog_meta.stores.spare_room import SpareRoom
    from stratalog_node.node import StorageNode

log = logger(__name__)

_MEMORY: Final = Path("/dev/shm")
"""Of Linux: a file system in memory."""
_BUCKET_S: Final = 2
"""How long the line that says ready waits for the bucket's first answer; clients are served meanwhile."""


def run_node(
    settings: ProcessSettings, data: Path, listen: str, bucket: str | None, meta_urls: str | None = None
) -> None:
    """Run until SIGTERM or SIGINT. Exits 3 when the node cannot start, or when its life is over, with the reason.

    Without `meta_urls` the meta service runs inside.
    """
    configure_logs(settings.log_level, node_id=settings.node_id)
    run_server(_run(settings, data, listen, bucket, meta_urls))


async def _run(settings: ProcessSettings, data: Path, listen: str, bucket: str | None, meta_urls: str | None) -> int:
    from stratalog_meta.stores.spare_room import SpareRoom
    from stratalog_node.node import Listen, StorageNode

    stopping = stop_signal()
    host, port = split_address(listen, "--listen")
    async with AsyncExitStack() as running:
        audit = open_audit(settings, f"node {settings.node_id}", running)
        node: StorageNode | None = None
        try:
            store = None
            if bucket is not None:
                from stratalog.objects.opening import open_store

                store = open_store(bucket)
                running.push_async_callback(store.close)
            tokens = token_file(settings.auth_token_file)
            tls = await open_tls(settings, Part.NODE, settings.node_id, running)
            spare = SpareRoom(data / "meta")  # used by a meta service inside alone
            heartbeat_client = None
            if meta_urls is None:
                # The node tries the same store, and says what is wrong with it.
                meta: MetaForNodes = await _meta_inside(
                    settings, data, spare, store, running, lambda: node is None or node.tier.is_store_doubted
                )
            else:
                meta = client = _meta_elsewhere(meta_urls, tokens, tls, running)
                heartbeat_client = client.another
                await unless_stopped(until_answered(meta), stopping)
            node = StorageNode(
                settings,
                data / "node",
                Listen(host, port),
                meta,
                store,
                why_short=spare.why_short,
                heartbeat_client=heartbeat_client,
                memory=_MEMORY if _MEMORY.is_dir() else None,
                tls=tls.identity,
                audit=audit,
            )
            await unless_stopped(node.start(), stopping)
            running.push_async_callback(node.close)
            announced_address(settings, node.address)
            collect_less_often()
            from stratalog_cli.services.process_services import ProcessServices

            services = ProcessServices(node, meta, settings, data, tokens, tls)
            admin = await services.start()
            running.push_async_callback(services.close)
        except StoppedEarly:
            log.info("stopped before it was ready")
            return 0
        except StratalogError as error:
            say_error(f"cannot start: {error}")
            return 3
        kafka = f"{node.address[0]}:{node.address[1]}"
        further = "".join(f", {name} {written(*at)}" for name, at in node.listening.items() if name != INTERNAL)
        place = await _bucket_words(node, stopping)
        endpoints = f"kafka {kafka}, admin {admin or 'off'}"
        say(f"stratalog ready: {endpoints}, data {printable(str(data))}, bucket {place}{further}")
        over = await first_of(stopping, node.is_over)
        if over is node.is_over:
            say_error(f"stopping: {node.why_over}")
        log.info("stopping")
    log.info("stopped")
    return 3 if node.is_over.is_set() else 0


async def _bucket_words(node: StorageNode, stopping: asyncio.Event) -> str:
    """The bucket for the line that says ready, and whether it can be used: it is asked while the node starts."""
    if node.store is None:
        return "none"
    asked = asyncio.ensure_future(node.tier.asked_store())
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((asked, stop), timeout=_BUCKET_S, return_when=asyncio.FIRST_COMPLETED)
    has_answered = asked.done()
    for task in (asked, stop):
        task.cancel()
    trouble = node.tier.trouble() if has_answered else f"it has not answered within {_BUCKET_S} s"
    trouble = trouble and trouble.removeprefix("it cannot be used: ")  # the line has just said so
    return printable(f"{node.store.url} (NOT USABLE, uploads wait: {trouble})" if trouble else node.store.url)


async def _meta_inside(
    settings: ProcessSettings,
    data: Path,
    spare: SpareRoom,
    store: ObjectStore | None,
    running: AsyncExitStack,
    is_told: Callable[[], bool],
) -> MetaForNodes:
    from stratalog_meta import open_service
    from stratalog_node.disk.layout import NodeLayout
    from stratalog_node.node import wall_ms

    # A store is made before node.json names its cluster: where that file is, the store is not new.
    node_file = NodeLayout(data / "node").node_file
    known_by = node_file if node_file.exists() else None
    backups = None
    if store is not None:
        from stratalog_cli.services.backup_place import place_in

        backups = place_in(store, settings, is_told)
    meta = open_service(data / "meta", wall_ms, known_by=known_by, spare=spare, backups=backups)
    await meta.start()
    running.push_async_callback(meta.close)
    return meta


def _meta_elsewhere(urls: str, tokens: TokenFile | None, tls: ProcessTls, running: AsyncExitStack) -> HttpMetaClient:
    from stratalog.meta_api.http_client import HttpMetaClient

    token = None if tokens is None else tokens.first
    client = HttpMetaClient(urls, token=token, tls=tls.to(Part.META), with_credentials=True)
    running.push_async_callback(client.close)
    return client
