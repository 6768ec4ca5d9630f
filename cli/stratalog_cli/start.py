"""`stratalog start`: one process with the meta service, a storage node and, with a bucket, the cold tier.

Imports what it needs and no more: start to ready is measured (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from stratalog.model.errors import StratalogError
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.http import split_address
from stratalog.telemetry.logs import configure_logs, logger
from stratalog.telemetry.printable import printable
from stratalog_cli.say import say, say_error

log = logger(__name__)

_M_MMAP_THRESHOLD, _M_ARENA_MAX, _M_TRIM_THRESHOLD = -3, -8, -1
_MALLOC_OPTIONS = ((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, 512 << 10), (_M_TRIM_THRESHOLD, 4 << 20))
_GC_THRESHOLD = (50_000, 20, 20)
_SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread (sealing, checking) may keep the event loop waiting for the interpreter; the default is ten
times it."""


def run_node(settings: ProcessSettings, data: Path, listen: str, bucket: str | None) -> None:
    """Run until SIGTERM or SIGINT. Exits 3 when the node cannot start, with the reason."""
    configure_logs(settings.log_level, node_id=settings.node_id)
    _keep_memory_small()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        code = runner.run(_run(settings, data, listen, bucket))
    sys.stdout.flush()
    os._exit(code)


def _keep_memory_small() -> None:
    """glibc keeps an arena per thread and, once a large block was freed, ever larger blocks in it: with a dozen threads
    hundreds of MiB of nothing (measured: 367 against 137 MiB while 10 GiB pass). So few arenas, and large blocks go
    back at once. Elsewhere (musl, macOS) there is no such knob."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in _MALLOC_OPTIONS:
        mallopt(option, value)


async def _run(settings: ProcessSettings, data: Path, listen: str, bucket: str | None) -> int:
    from stratalog_meta import open_service
    from stratalog_node.disk.layout import NodeLayout
    from stratalog_node.node import Listen, StorageNode, wall_ms

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    host, port = split_address(listen)
    async with AsyncExitStack() as running:
        try:
            # A store is made before node.json names its cluster: where that file is, the store is not new.
            node_file = NodeLayout(data / "node").node_file
            meta = open_service(data / "meta", wall_ms, known_by=node_file if node_file.exists() else None)
            await meta.start()
            running.push_async_callback(meta.close)
            store = None
            if bucket is not None:
                from stratalog.objects.opening import open_store

                store = open_store(bucket)
                running.push_async_callback(store.close)
            node = StorageNode(settings, data / "node", Listen(host, port), meta, store)
            await node.start()
            running.push_async_callback(node.close)
            _collect_less_often()
            from stratalog_cli.process_services import ProcessServices

            services = ProcessServices(node, meta, settings, data)
            admin = await services.start()
            running.push_async_callback(services.close)
        except StratalogError as error:
            say_error(f"cannot start: {error}")
            return 3
        kafka = f"{node.address[0]}:{node.address[1]}"
        place = "none" if store is None else printable(store.url)
        say(f"stratalog ready: kafka {kafka}, admin {admin or 'off'}, data {printable(str(data))}, bucket {place}")
        await stopping.wait()
        log.info("stopping")
    log.info("stopped")
    return 0


def _collect_less_often() -> None:
    """What start-up made stays; after that nearly everything dies by its reference count: the collector may look
    seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)
