"""The meta service's HTTP boundary. Importing `server` costs 0.3 s (aiohttp, schemas): `serve` does it in a thread."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog_meta.api.server import MetaServer
    from stratalog_meta.service import MetaService


async def serve(service: MetaService, host: str, port: int) -> MetaServer:
    """Start the HTTP server of a started service; port 0 takes a free one. Raises Unavailable when it is taken."""
    await asyncio.to_thread(importlib.import_module, "stratalog_meta.api.server")
    from stratalog_meta.api.server import MetaServer

    server = MetaServer(service)
    await server.start(host, port)
    return server


__all__ = ["serve"]
