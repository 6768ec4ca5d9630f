"""The meta service of each cluster, asked under the names of its pods; one client for a cluster, kept between passes.

Lives in the operator's event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog_operator.apply.meta_service import HttpMetaDesk
from stratalog_operator.apply.perform import MetaDesk
from stratalog_operator.observe.meta_service import HttpMetaSight
from stratalog_operator.observe.objects import MetaSight
from stratalog_operator.queue import Key
from stratalog_operator.specs.objects import Cluster


@dataclass(frozen=True, slots=True)
class MetaDoor:
    """Of one cluster."""

    sight: MetaSight
    desk: MetaDesk


class MetaDoors(Protocol):
    async def door(self, cluster: Cluster, token: str) -> MetaDoor:
        """`token` is shown from now on; empty: none."""
        ...

    async def forget(self, key: Key) -> None:
        """The cluster is gone."""
        ...

    async def close(self) -> None: ...


def by_name(cluster: Cluster) -> str:
    return cluster.meta_urls


class HttpMetaDoors:
    def __init__(self, urls_of: Callable[[Cluster], str] = by_name) -> None:
        """`urls_of`: where the instances of a cluster's service are asked."""
        self._urls_of = urls_of
        self._clients: dict[Key, tuple[str, HttpMetaClient]] = {}
        self._tokens: dict[Key, str] = {}

    async def door(self, cluster: Cluster, token: str) -> MetaDoor:
        key = (cluster.namespace, cluster.name)
        # Another cluster of that name is another one: its metadata are checked to be the ones that were asked before.
        urls = self._urls_of(cluster)
        asked = f"{cluster.uid} {urls}"
        known = self._clients.get(key)
        if known is None or known[0] != asked:
            await self.forget(key)
            client = HttpMetaClient(urls, token=lambda: self._tokens.get(key, ""))
            known = self._clients[key] = (asked, client)
        self._tokens[key] = token
        return MetaDoor(HttpMetaSight(known[1], cluster.spec.defaults.min_insync_replicas), HttpMetaDesk(known[1]))

    async def forget(self, key: Key) -> None:
        self._tokens.pop(key, None)
        known = self._clients.pop(key, None)
        if known is not None:
            await known[1].close()

    async def close(self) -> None:
        for key in list(self._clients):
            await self.forget(key)
