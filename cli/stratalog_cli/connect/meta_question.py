"""Questions to the meta service, and changes by it: where they go, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from stratalog.telemetry.printable import printable
from stratalog_cli.connect.target_address import meta_target
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from stratalog.meta_api.http_client import HttpMetaClient

T = TypeVar("T")

MetaOption = Annotated[
    str | None,
    typer.Option(
        "--meta",
        envvar="STRATALOG_META",
        metavar="URL[,URL]",
        help="The meta service's instances: http://HOST:PORT, with commas between. Default: the context's.",
    ),
]


def ask_meta(meta: str | None, ask: Callable[[HttpMetaClient], Awaitable[T]], *, is_write: bool = False) -> T:
    """Of a write it is said to which cluster it goes, and it goes to no other.

    Raises what the service says; Unavailable when none answers; Conflict where the
    context is of another cluster; InvalidRequest where nothing names the service."""
    from stratalog.meta_api.http_client import HttpMetaClient

    whom = meta_target(meta)

    async def asked() -> T:
        client = HttpMetaClient(whom.addresses, token=whom.token, tls=whom.tls)
        try:
            if is_write:
                cluster_id = await client.read_cluster_id()
                whom.require_cluster(cluster_id, whom.addresses)
                target = f"to cluster {printable(cluster_id)}, meta service at {whom.addresses}{whom.by_context}"
                say(target, to_stderr=True)
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(asked())
