"""Holds this node's write lock `tier/<node id>`: takes it, renews it, tells when it is gained and lost.

One task. The lease is only a courtesy to others: what keeps a deposed writer out is the lock's epoch, which is in every
name it writes and in every commit it asks for (F6, F7, F86). So a renewal that fails for want of an answer stops
nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import AcquireLock, ReleaseLock
from stratalog.model.errors import Conflict, StratalogError
from stratalog.model.metadata import Lock
from stratalog.telemetry.logs import logger
from stratalog_node.tier.store.claim import Forked

log = logger(__name__)


_FORKED_PAUSE_S = 60.0
"""Pause between two checks whether a fork is over: each costs a listing."""


def tier_lock_name(node_id: int) -> str:
    return f"tier/{node_id}"


class TierLock:
    """`before_asking` says which earlier holders must stay remembered (see `AcquireLock.lasting`); while it raises,
    no epoch is spent. `on_gained` is awaited before the lock counts as held; if it raises, it is tried again later."""

    def __init__(
        self,
        *,
        meta: MetaClient,
        name: str,
        holder: str,
        ttl_ms: int,
        call_timeout_ms: int,
        rng: random.Random,
        before_asking: Callable[[], Awaitable[Sequence[str]]],
        on_gained: Callable[[Lock], Awaitable[None]],
        on_lost: Callable[[], None],
    ) -> None:
        self._meta = meta
        self._name = name
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._call_timeout_s = call_timeout_ms / 1_000
        self._rng = rng
        self._before_asking = before_asking
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._asked_again = asyncio.Event()
        self._complained: str | None = None
        self._is_forked = False
        self._sent: asyncio.Task[Lock] | None = None
        """A request that was under way when the task that waited for it ended."""
        self._taken: Lock | None = None
        """The service gave it to this node, which may not have begun to use it."""
        self.current: Lock | None = None

    def lost(self, epoch: int) -> None:
        """A commit under this epoch was fenced: let go at once and ask again."""
        if self.current is not None and self.current.epoch == epoch:
            self._let_go(f"epoch {epoch} was fenced")

    def ask_again(self) -> None:
        """Look now whether the lock can be held."""
        self._asked_again.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._renew()
            pause_s = self._ttl_ms / 3_000 * (0.5 + self._rng.random() / 2)
            try:
                async with asyncio.timeout(_FORKED_PAUSE_S if self._is_forked else pause_s):
                    await self._asked_again.wait()
            except TimeoutError:
                pass
            else:
                self._asked_again.clear()
                # Fenced just now: whoever took the lock keeps it for a while.
                await asyncio.sleep(pause_s / 4)

    async def release(self) -> None:
        """Give the lock back, so that the next life need not wait for the lease's end. What was asked for before may
        be carried out after that: so the answer is waited for, no longer than a lease lasts. A renewal that comes later
        still renews nothing; a first request that does holds the lock for a lease.

        Requires: `run` has ended."""
        held, self.current, self._taken = self.current or self._taken, None, None
        held = await self._answered() or held
        if held is None:
            return
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._meta.perform(ReleaseLock(held))
        except (StratalogError, TimeoutError) as error:
            log.info("write lock not given back, its lease will end by itself", lock=self._name, error=str(error))

    async def _answered(self) -> Lock | None:
        sent, self._sent = self._sent, None
        if sent is None:
            return None
        await asyncio.wait({sent}, timeout=min(self._ttl_ms / 1_000, self._call_timeout_s))
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
        return None if sent.cancelled() or sent.exception() is not None else sent.result()

    async def _ask(self, command: AcquireLock) -> Lock:
        self._sent = sent = asyncio.get_running_loop().create_task(self._perform(command))
        try:
            async with asyncio.timeout(self._call_timeout_s):
                lock = await asyncio.shield(sent)
        except Exception:
            sent.cancel()
            self._sent = None
            raise
        self._sent = None
        return lock

    async def _perform(self, command: AcquireLock) -> Lock:
        return await self._meta.perform(command)

    async def _renew(self) -> None:
        try:
            lasting = await self._before_asking() if self.current is None else ()
            renews = self.current.epoch if self.current is not None else 0
            lock = await self._ask(AcquireLock(self._name, self._holder, self._ttl_ms, tuple(lasting), renews))
            if self.current is not None and self.current.epoch != lock.epoch:
                self._let_go(f"epoch {self.current.epoch} gave way to {lock.epoch}")
            self._taken = lock
            if self.current is None:
                await self._on_gained(lock)
                log.info("write lock taken", lock=self._name, epoch=lock.epoch)
            self.current = lock
            self._complained = None
            self._is_forked = False
        except Forked as error:
            self._is_forked = True
            self._complain("this node neither uploads nor sweeps", error)
        except Conflict as error:
            if self.current is not None:
                self._let_go(str(error))
            else:
                self._complain("write lock is held by another, uploads wait", error)
        except (StratalogError, TimeoutError) as error:
            self._complain("write lock cannot be renewed", error)

    def _let_go(self, reason: str) -> None:
        self.current = self._taken = None
        log.warning("write lock lost, uploads stop", lock=self._name, reason=reason)
        self._on_lost()
        self._asked_again.set()

    def _complain(self, event: str, error: Exception) -> None:
        """One line per change, not one per renewal."""
        kind = f"{event} {type(error).__name__}"
        if self._complained != kind:
            self._complained = kind
            tell = log.error if isinstance(error, Forked) else log.warning
            tell(event, lock=self._name, error=str(error))
