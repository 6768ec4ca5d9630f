"""Meta stores over a real etcd, with the leadership that they need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from stratalog.machines.table.records import StoredRecord, TableWrite
from stratalog_meta.stores.etcd.client import EtcdClient, EtcdRetryPolicy
from stratalog_meta.stores.etcd.leadership import EtcdLeadership
from stratalog_meta.stores.etcd.store import COMPACT_EVERY_S, EtcdStore

PATIENT = EtcdRetryPolicy(attempt_s=10.0, longest_attempt_s=20.0, deadline_s=60.0)
"""For a member that is well, on a machine that may be busy for seconds."""
PATIENT_LEASE_S = 30
QUICK = EtcdRetryPolicy(attempt_s=0.3, longest_attempt_s=2.0, deadline_s=10.0, first_pause_s=0.005, longest_pause_s=0.1)


class LedStore:
    """An etcd store that campaigns when it is loaded and resigns when it is closed, as the suites ask of a store."""

    def __init__(self, endpoints: Sequence[str], prefix: bytes) -> None:
        self._endpoints = endpoints
        self._prefix = prefix
        self._led: tuple[EtcdClient, EtcdLeadership, EtcdStore] | None = None

    @property
    def source(self) -> str:
        return "etcd"

    async def load(self) -> list[StoredRecord]:
        if self._led is None:
            client = EtcdClient(self._endpoints, policy=PATIENT)
            leadership = EtcdLeadership(client, self._prefix, "127.0.0.1:1", lease_s=PATIENT_LEASE_S)
            await leadership.campaign()
            self._led = client, leadership, EtcdStore(client, self._prefix, leadership)
        return await self._led[2].load()

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        assert self._led is not None
        await self._led[2].write(commands)

    async def close(self) -> None:
        led, self._led = self._led, None
        if led is not None:
            client, leadership, store = led
            await store.close()
            await leadership.resign()
            await client.close()


@asynccontextmanager
async def leading(
    endpoints: Sequence[str],
    prefix: bytes,
    *,
    client: EtcdClient | None = None,
    lease_s: int = 5,
    compact_every_s: float = COMPACT_EVERY_S,
) -> AsyncIterator[tuple[EtcdClient, EtcdLeadership, EtcdStore]]:
    """A store that is loaded, under a leadership that was won."""
    client = client or EtcdClient(endpoints, policy=QUICK)
    leadership = EtcdLeadership(client, prefix, "127.0.0.1:1", lease_s=lease_s)
    store = EtcdStore(client, prefix, leadership, compact_every_s=compact_every_s)
    try:
        await leadership.campaign()
        await store.load()
        yield client, leadership, store
    finally:
        await store.close()
        await leadership.resign()
        await client.close()
