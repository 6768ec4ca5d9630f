"""The meta service of each cluster, and the etcd that the operator runs for it, asked under the names of their pods.

Clients of the meta service are kept between passes, one for a cluster.

Lives in the operator's event loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.tls.identity import meta_context
from stratalog.tls.material import TlsMaterial
from stratalog_operator.apply.meta_service import HttpMetaRequests
from stratalog_operator.apply.perform import MetaRequests
from stratalog_operator.etcd_members import EtcdMembers
from stratalog_operator.observe.meta_service import HttpMetaObserver
from stratalog_operator.observe.objects import MetaObserver
from stratalog_operator.queue import Key
from stratalog_operator.specs.etcd import client_scheme, members, peer_urls
from stratalog_operator.specs.objects import ETCD_CLIENT_PORT, Cluster


@dataclass(frozen=True, slots=True)
class MetaConnection:
    """Access to the meta service and the etcd of one cluster."""

    observer: MetaObserver
    requests: MetaRequests
    etcd: EtcdMembers | None = None
    """None if the user runs etcd. With TLS it is shown what the operator has for it (`EtcdMembers.show`)."""


class MetaConnections(Protocol):
    async def connect(self, cluster: Cluster, token: str, own: TlsMaterial | None = None) -> MetaConnection:
        """Requests carry `token` from now on; empty: none. `own` is what the operator shows and trusts; None: the
        cluster speaks plain text."""
        ...

    async def forget(self, key: Key) -> None:
        """The cluster is gone."""
        ...

    async def close(self) -> None: ...


def by_name(cluster: Cluster) -> str:
    return cluster.meta_urls


def etcd_by_name(cluster: Cluster) -> Mapping[int, tuple[str, ...]]:
    etcd = cluster.spec.meta.etcd
    hosts = () if etcd is None else members(cluster, etcd)
    return {
        number: (f"{client_scheme(cluster)}://{host}:{ETCD_CLIENT_PORT}", *peer_urls(cluster, number))
        for number, host in enumerate(hosts)
    }


class HttpMetaConnections:
    def __init__(
        self,
        urls_of: Callable[[Cluster], str] = by_name,
        etcd_of: Callable[[Cluster], Mapping[int, tuple[str, ...]]] = etcd_by_name,
    ) -> None:
        """`urls_of`: where the instances of a cluster's service are asked; `etcd_of`: where the members of its etcd
        are, for clients and among themselves, by their numbers."""
        self._urls_of = urls_of
        self._etcd_of = etcd_of
        self._clients: dict[Key, tuple[str, HttpMetaClient, HttpMetaObserver]] = {}
        self._tokens: dict[Key, str] = {}
        self._shown: dict[Key, tuple[TlsMaterial, ssl.SSLContext]] = {}

    async def connect(self, cluster: Cluster, token: str, own: TlsMaterial | None = None) -> MetaConnection:
        key = (cluster.namespace, cluster.name)
        # A new cluster of the same name needs a new client, which checks that all answers come from one cluster.
        urls = self._urls_of(cluster)
        asked = f"{cluster.uid} {urls}"
        known = self._clients.get(key)
        if known is None or known[0] != asked:
            await self.forget(key)
            tls = (lambda: self._context(key)) if cluster.has_internal_tls else None
            client = HttpMetaClient(urls, token=lambda: self._tokens.get(key, ""), tls=tls)
            known = self._clients[key] = (asked, client, HttpMetaObserver(client))
        self._tokens[key] = token
        if own is not None and (key not in self._shown or self._shown[key][0] != own):
            self._shown.pop(key, None)
            with suppress(InvalidRequest):  # the plan issues another one, and until then the service is not asked
                self._shown[key] = own, meta_context(own)
        etcd = None if cluster.spec.meta.etcd is None else EtcdMembers(lambda: self._etcd_of(cluster))
        return MetaConnection(known[2], HttpMetaRequests(known[1]), etcd)

    def _context(self, key: Key) -> ssl.SSLContext:
        """For the next connection: with the certificate that was read last."""
        shown = self._shown.get(key)
        if shown is None:
            raise Unavailable(f"the operator has no certificate of cluster {'/'.join(key)} yet: look again")
        return shown[1]

    async def forget(self, key: Key) -> None:
        self._tokens.pop(key, None)
        self._shown.pop(key, None)
        known = self._clients.pop(key, None)
        if known is not None:
            await known[1].close()

    async def close(self) -> None:
        for key in list(self._clients):
            await self.forget(key)
