"""What the pages are made of: the metadata, and the answers of nodes, gathered with an end to every wait.

Answers that several pages or viewers ask for are kept for `_KEPT_S`. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from stratalog.admin_api.models import NodeStatus
from stratalog.admin_api.node_views import HistoryAnswer
from stratalog.machines.plans.heartbeat_history import Course
from stratalog.model.errors import NotFound, StratalogError, Unavailable
from stratalog.model.views.status_page import NodeRow, Overview
from stratalog.ui.host import ClusterViews, UiHost
from stratalog.ui.node_addresses import NodeAddresses

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
_PATIENCE_S: Final = 5.0
_KEPT_S: Final = 2.0
_MOST_NODES: Final = 100
_ANSWERING: Final = frozenset({"alive", "silent", "leaves"})


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that gave no answer, so that the page lacks what it knows."""

    node_id: int
    words: str


class Gatherer:
    def __init__(self, host: UiHost) -> None:
        self.host = host
        self._node_addresses = NodeAddresses(host.token, host.to_nodes)
        self._kept: dict[str, tuple[float, asyncio.Task[Any]]] = {}

    async def close(self) -> None:
        for _, task in self._kept.values():
            task.cancel()
        await self._node_addresses.close()

    async def meta(self, ask: Callable[[ClusterViews], Awaitable[T]]) -> T:
        """An answer about the metadata. Raises StratalogError."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await ask(self.host.views())
        except TimeoutError:
            raise Unavailable(f"the meta service does not answer within {_PATIENCE_S:.0f} s: try again") from None

    async def overview(self) -> Overview:
        return await self.recent("overview", lambda: self.meta(lambda views: views.overview()))

    async def courses(self) -> Sequence[Course]:
        return await self.recent("courses", lambda: self.meta(lambda views: views.courses(0)))

    async def status(self, node_id: int) -> NodeStatus:
        """A look at all shards of a node."""
        return await self.recent(
            f"status {node_id}", lambda: self.of_node(node_id, "/v1/status", NodeStatus, patience_s=8.0)
        )

    async def own_status(self) -> NodeStatus | None:
        """Of a node that lives in the service's process, which hears no heartbeats: it is asked itself."""
        own = self.host.own_nodes()
        if len(own) != 1 or await self.courses():
            return None
        try:
            return await self.status(next(iter(own)))
        except StratalogError:
            return None

    async def history(self, node_id: int) -> HistoryAnswer:
        return await self.recent(f"history {node_id}", lambda: self.of_node(node_id, "/v1/history", HistoryAnswer))

    async def recent(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """An answer that was asked for at most `_KEPT_S` ago; one that failed is asked for again."""
        now = asyncio.get_running_loop().time()
        kept = self._kept.get(name)
        if kept is None or kept[0] + _KEPT_S < now or (kept[1].done() and kept[1].exception() is not None):
            self._kept = {key: one for key, one in self._kept.items() if one[0] + _KEPT_S >= now or not one[1].done()}
            task = asyncio.ensure_future(make())
            kept = self._kept[name] = (now, task)
        made: T = await asyncio.shield(kept[1])
        return made

    # Nodes --------------------------------------------------------------------------------------------------------
    async def urls(self) -> dict[int, str]:
        """The admin ports of nodes that may answer."""
        found = {node.node_id: node.page_url for node in (await self.overview()).nodes if is_asked(node)}
        return dict(list({**found, **self.host.own_nodes()}.items())[:_MOST_NODES])

    async def of_node(self, node_id: int, path: str, model: type[M], patience_s: float | None = None) -> M:
        """Raises StratalogError."""
        url = (await self.urls()).get(node_id)
        if url is None:
            raise NotFound(f"node {node_id} is not registered, or is not alive: it cannot be asked")
        if patience_s is not None:
            return await self._node_addresses.ask(node_id, url, path, model, patience_s)
        return await self._node_addresses.ask(node_id, url, path, model)

    async def of_nodes(
        self, paths: Mapping[int, str], model: type[M], patience_s: float | None = None
    ) -> tuple[list[M], list[Failure]]:
        """The answers of several nodes, each to its own question, and who gave none."""

        async def one(node_id: int, path: str) -> M | Failure:
            try:
                return await self.of_node(node_id, path, model, patience_s)
            except StratalogError as error:
                return Failure(node_id, str(error))

        answers = await asyncio.gather(*(one(node_id, path) for node_id, path in paths.items()))
        return [one for one in answers if not isinstance(one, Failure)], [
            one for one in answers if isinstance(one, Failure)
        ]

    async def of_all(self, path: str, model: type[M], patience_s: float | None = None) -> tuple[list[M], list[Failure]]:
        return await self.of_nodes(dict.fromkeys(await self.urls(), path), model, patience_s)


def is_asked(node: NodeRow) -> bool:
    return node.state in _ANSWERING
