"""Instances of the meta service that share a store in this process, and elections that a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stratalog.model.errors import Unavailable
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.leader import Candidacy, MetaInstance
from stratalog_meta.stores.memory import MemoryStore
from stratalog_meta.stores.meta_store import MetaStore
from support.meta_worlds import HandClock


class Election:
    """Says which instance may lead; none until a test names one."""

    def __init__(self) -> None:
        self.elected: str | None = None
        self.seen_leader: str | None = None
        """What instances that do not lead have seen."""
        self.is_in_doubt = False
        """The one elected cannot tell now whether it leads: it does not, and is not deposed."""
        self._moved = asyncio.Event()

    def elect(self, address: str | None) -> None:
        """Whoever led leads no more, at once."""
        self.elected = self.seen_leader = address
        self._moved.set()
        self._moved = asyncio.Event()

    async def moved(self) -> None:
        await self._moved.wait()


class TestLeadership:
    """Implements `Leadership` by an election."""

    __test__ = False

    def __init__(self, election: Election, address: str) -> None:
        self._election = election
        self._address = address
        self._lost = asyncio.Event()
        self._leads = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    @property
    def is_leading(self) -> bool:
        is_elected = self._election.elected == self._address and not self._election.is_in_doubt
        return self._leads and not self._lost.is_set() and is_elected

    async def campaign(self) -> None:
        while self._election.elected != self._address:
            await self._election.moved()
        self._leads = True
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while self._election.elected == self._address:
            await self._election.moved()
        self._lost.set()

    def leader_address(self) -> str | None:
        return self._election.seen_leader

    async def resign(self) -> None:
        self._lost.set()
        if self._watching is not None:
            self._watching.cancel()


class SharedStore:
    """One memory store that each new leader may open after its predecessor has closed it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def load(self):  # type: ignore[no-untyped-def]
        for _ in range(2_000):
            try:
                return await self._store.load()
            except Unavailable:  # the one before still closes
                await asyncio.sleep(0.001)
        raise Unavailable("the instance before never closed the store")

    source = "shared memory"

    async def write(self, commands):  # type: ignore[no-untyped-def]
        await self._store.write(commands)

    async def close(self) -> None:
        await self._store.close()


@dataclass
class Instances:
    """Some instances, each at an address of its own."""

    election: Election
    servers: list[MetaServer] = field(default_factory=list)
    instances: list[MetaInstance] = field(default_factory=list)

    @property
    def urls(self) -> str:
        return ",".join(server.address for server in self.servers)

    def elect(self, number: int | None) -> None:
        self.election.elect(None if number is None else self.servers[number].address.removeprefix("http://"))

    def leads(self, number: int) -> bool:
        return self.instances[number].is_leading


@asynccontextmanager
async def instances(
    count: int, make_service: Callable[[MetaStore], MetaService] = lambda led: MetaService(led, HandClock())
) -> AsyncIterator[Instances]:
    """They compete for one store; none leads before a test elects it."""
    store, running = MemoryStore(), Instances(Election())
    try:
        for _ in range(count):
            await _add(running, store, make_service)
        yield running
    finally:
        for server in running.servers:
            await server.close()
        for instance in running.instances:
            await instance.close()


async def _add(running: Instances, store: MemoryStore, make_service: Callable[[MetaStore], MetaService]) -> None:
    address = ""

    def candidacy() -> Candidacy:
        return Candidacy(TestLeadership(running.election, address), SharedStore(store))

    instance = MetaInstance(candidacy, make_service, pause_s=0.001)
    server = MetaServer(instance, heartbeat_s=0.2)
    address = (await server.start("127.0.0.1", 0)).removeprefix("http://")
    running.instances.append(instance)
    running.servers.append(server)
    instance.start()
