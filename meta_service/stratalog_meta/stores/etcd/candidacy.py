"""What one instance of the meta service needs of etcd, made from one address.

`leadership.campaign()` comes first, then `store` may be loaded and written until `leadership.lost`; then this candidacy
is closed, and another one made to try again.
"""

from __future__ import annotations

from stratalog_meta.stores.etcd.address import parse_address
from stratalog_meta.stores.etcd.client import EtcdClient, EtcdStats
from stratalog_meta.stores.etcd.leadership import EtcdLeadership
from stratalog_meta.stores.etcd.store import EtcdStore
from stratalog_meta.stores.leadership import Leadership
from stratalog_meta.stores.meta_store import MetaStore


class EtcdCandidacy:
    """Made on the event loop that it lives on."""

    def __init__(self, url: str, serves_at: str) -> None:
        """`url` as `address.parse_address` takes it, `serves_at` where others find this instance when it leads.

        Raises InvalidRequest for either. Connects to nothing yet.
        """
        place = parse_address(url)
        self._client = EtcdClient(place.endpoints)
        self._leadership = EtcdLeadership(self._client, place.key_prefix, serves_at)
        self._store = EtcdStore(self._client, place.key_prefix, self._leadership, source=str(place))

    @property
    def leadership(self) -> Leadership:
        return self._leadership

    @property
    def store(self) -> MetaStore:
        return self._store

    @property
    def stats(self) -> EtcdStats:
        """For the composition to register: `registry.add("stratalog_etcd", candidacy.stats)`."""
        return self._client.stats

    async def close(self) -> None:
        """Stop writing, give the lead up if it is held, and let go of the connections."""
        await self._store.close()
        await self._leadership.resign()
        await self._client.close()
