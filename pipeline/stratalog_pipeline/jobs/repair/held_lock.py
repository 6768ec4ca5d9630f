"""Holds a write lock of the meta service while a job runs, and sends the job's commands to the service.

A thread renews the lease, however long the job's thread waits for Spark. Every command of the job names the lock's
epoch, which excludes a job whose lease has ended. A context manager, for one thread. A job that was killed keeps its
lease until it ends; the next job waits for that once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

from stratalog.meta_api.client import MetaClient
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import AcquireLock, ReleaseLock
from stratalog.model.errors import Conflict, Fenced, StratalogError
from stratalog.model.metadata import Lock

T = TypeVar("T")
LEASE_MS: Final = 30_000
_RENEWALS: Final = 3
"""So many in a lease."""
_PAUSE_S: Final = 0.5


class HeldLock:
    """Raises: Conflict while another job holds the lock; what the service raises while it is away."""

    def __init__(self, make_client: Callable[[], HttpMetaClient], name: str | None, lease_ms: int = LEASE_MS) -> None:
        """`name`: None for a job that only asks."""
        self._make_client = make_client
        self._name = name
        self._lease_ms = lease_ms
        self._holder = f"job-{uuid4()}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stratalog-lock", daemon=True)
        self._client: HttpMetaClient | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._lock: Lock | None = None
        self._lost: StratalogError | None = None

    def __enter__(self) -> HeldLock:
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def lock(self) -> Lock:
        """Raises: Fenced once it has passed to another."""
        if self._lost is not None:
            raise self._lost
        assert self._lock is not None, "it was entered, and names a lock"
        return self._lock

    def ask(self, question: Callable[[MetaClient], Coroutine[Any, Any, T]]) -> T:
        """Of the service, by the client that the lock is held through."""
        assert self._client is not None, "it was entered"
        return self._run(question(self._client))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # On the loop ----------------------------------------------------------------------------------------------------
    async def _open(self) -> None:
        self._client = self._make_client()
        await self._client.read_cluster_id()
        if self._name is not None:
            self._lock = await self._acquire(self._client, self._name)
            self._renewing = asyncio.create_task(self._renew(self._client, self._lock))

    async def _acquire(self, client: MetaClient, name: str) -> Lock:
        gives_up = self._loop.time() + 1.5 * self._lease_ms / 1_000
        while True:
            try:
                return await self._ask_for(client, name)
            except Conflict:
                if self._loop.time() >= gives_up:
                    raise
            await asyncio.sleep(min(_PAUSE_S, self._lease_ms / 1_000))

    async def _ask_for(self, client: MetaClient, name: str, renews: int = 0) -> Lock:
        return await client.perform(AcquireLock(name, self._holder, self._lease_ms, renews=renews))

    async def _renew(self, client: MetaClient, held: Lock) -> None:
        while self._lost is None:
            await asyncio.sleep(self._lease_ms / 1_000 / _RENEWALS)
            try:
                await self._ask_for(client, held.name, held.epoch)
            except Conflict as error:
                self._lost = Fenced(f"{error}; run the job again")
            except StratalogError:
                continue  # away: the epoch keeps the order

    async def _close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        if self._client is not None:
            if self._lock is not None:
                with suppress(StratalogError):  # its lease ends by itself
                    await self._client.perform(ReleaseLock(self._lock))
            await self._client.close()
