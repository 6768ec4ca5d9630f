"""A node that stops gives its write lock back for good: what it asked for before comes to nothing afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from stratalog.machines.table.locks import NOBODY
from stratalog.model.commands.table_commands import AcquireLock, Command, RegisterNode
from stratalog.model.errors import Conflict
from stratalog.model.metadata import Lock, NodeInfo
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.tier.store.lock import TierLock
from support.meta_worlds import HandClock
from support.waiting import eventually

NAME = "tier/1"


class Wire:
    """A client of the service whose requests for the lock are under way for as long as a test says: that the asker gave
    up takes none of them back."""

    def __init__(self, service: MetaService) -> None:
        self._service = service
        self._open = asyncio.Event()
        self._open.set()
        self.under_way: set[asyncio.Task[object]] = set()

    def hold(self) -> None:
        self._open.clear()

    async def arrive(self) -> None:
        self._open.set()
        await asyncio.gather(*self.under_way, return_exceptions=True)

    async def perform(self, command: Command[object], *, validate_only: bool = False) -> object:
        if not isinstance(command, AcquireLock):
            return await self._service.perform(command)

        async def arrives() -> object:
            await self._open.wait()
            return await self._service.perform(command)

        sent = asyncio.ensure_future(arrives())
        self.under_way.add(sent)
        sent.add_done_callback(self.under_way.discard)
        return await asyncio.shield(sent)


class Held:
    def __init__(
        self,
        service: MetaService,
        call_timeout_ms: int,
        ttl_ms: int,
        on_gained: Callable[[Lock], Awaitable[None]] | None = None,
    ) -> None:
        self.wire = Wire(service)

        async def nothing(*_: object) -> tuple[str, ...]:
            return ()

        self.lock = TierLock(
            meta=self.wire,  # type: ignore[arg-type]  # it takes commands, and a lock asks for no more
            name=NAME,
            holder="node-1/1",
            ttl_ms=ttl_ms,
            call_timeout_ms=call_timeout_ms,
            rng=random.Random(1),
            before_asking=nothing,
            on_gained=on_gained or nothing,  # type: ignore[arg-type]  # what it answers is not looked at
            on_lost=lambda: None,
        )
        self.running = asyncio.ensure_future(self.lock.run())

    async def stop(self) -> None:
        """As an uploader does."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.lock.release()


@pytest.fixture
async def service() -> AsyncIterator[MetaService]:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    await service.perform(RegisterNode(NodeInfo(1, "disk-1", "host", 9092)))
    yield service
    await service.close()


@pytest.mark.fault("node-stops-request-write")
@pytest.mark.parametrize("is_held", [False, True], ids=["the first request", "a renewal"])
async def test_a_request_that_is_under_way_at_the_stop_is_waited_for(service: MetaService, is_held: bool) -> None:
    held = Held(service, call_timeout_ms=600_000, ttl_ms=3_000)
    if is_held:
        await eventually(lambda: held.lock.current is not None)
    held.wire.hold()
    await eventually(lambda: held.wire.under_way)
    stopping = asyncio.ensure_future(held.stop())
    await asyncio.sleep(0)
    await held.wire.arrive()
    await stopping
    known = await held_by(service)
    assert known is not None and known.holder == NOBODY


async def test_a_lock_whose_work_had_not_begun_at_the_stop_is_given_back(service: MetaService) -> None:
    """What begins it asks a store, which may take long, or never answers."""
    has_begun = asyncio.Event()

    async def begins(_: Lock) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    held = Held(service, call_timeout_ms=600_000, ttl_ms=600_000, on_gained=begins)
    await has_begun.wait()
    await held.stop()
    known = await held_by(service)
    assert known is not None and known.holder == NOBODY


@pytest.mark.fault("node-stops-request-write")
async def test_a_renewal_that_comes_after_the_lock_was_given_back_takes_nothing(service: MetaService) -> None:
    held = Held(service, call_timeout_ms=600_000, ttl_ms=60)
    await eventually(lambda: held.lock.current is not None)
    held.wire.hold()
    await eventually(lambda: held.wire.under_way)
    await held.stop()
    assert held.wire.under_way, "nobody waits for it any more"
    await held.wire.arrive()
    known = await held_by(service)
    assert known is not None and known.holder == NOBODY


async def test_only_the_holder_under_its_epoch_renews_a_lock(service: MetaService) -> None:
    lock = await service.perform(AcquireLock(NAME, "node-1/1", 60_000))
    assert await service.perform(AcquireLock(NAME, "node-1/1", 60_000, renews=lock.epoch)) == lock
    for command in (
        AcquireLock(NAME, "node-1/1", 60_000, renews=lock.epoch + 1),
        AcquireLock(NAME, "node-1/2", 60_000, renews=lock.epoch),
        AcquireLock("tier/2", "node-1/1", 60_000, renews=1),
    ):
        with pytest.raises(Conflict, match="renew"):
            await service.perform(command)
    assert await held_by(service) == replace(lock)


async def held_by(service: MetaService) -> Lock | None:
    return await service._parts()[0].read(lambda table: table.state.locks.get(NAME))
