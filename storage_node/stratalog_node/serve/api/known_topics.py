"""Topics that a request about settings names: a client may have created them through another node a moment ago.

If the catalog does not have one of them, it is brought up to date once for the request. Callers leave out the names
that the client has no right to: how long the answer takes would tell it which of them exist. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from stratalog_node.serve.connections.context import NodeServices


async def learn_topics(services: NodeServices, named: Iterable[str | UUID | None]) -> None:
    """By name or id. When the meta service does not answer, what is known is what there is."""
    catalog = services.catalog
    for one in named:
        known = catalog.topic_by_id(one) if isinstance(one, UUID) else catalog.topic(one or "")
        if one is not None and known is None:
            await services.control.lag(catalog, services.meta).catch_up()
            return
