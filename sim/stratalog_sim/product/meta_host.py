"""The real meta service on its own machine, and each node's way to it, with the outcomes of the product's HTTP client.

A request may not arrive (`Unavailable`), and an answer may be lost (`OutcomeUnknown`). The service's store keeps what
was written; a restart in the middle of a write keeps the first commands of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import copy_context
from random import Random
from typing import Any, Protocol, TypeVar
from uuid import UUID

from stratalog.machines.table.records import StoredRecord, TableWrite
from stratalog.machines.table.shard_table import Applied, ShardTable
from stratalog.machines.table.state import Steps
from stratalog.meta_api.attempts import AttemptLog, Repeat
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.metadata import ChangeSet, Heard, Heartbeat, Snapshot
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_sim.product.loop import VirtualLoop
from stratalog_sim.product.machine import PROCESS, Machine, Process
from stratalog_sim.product.network import Network

R = TypeVar("R")
_ATTEMPT_S = 0.5
_SILENCE_S = 1.0


class MetaDisk(MemoryStore):
    """Survives its service. Where a flush takes long, commands that arrive meanwhile share the next write."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._rng = Random(loop.rng.random())
        self.flush_s = self._rng.choice((0.0, 0.02, 0.1))
        """What a write takes at most."""

    async def load(self) -> list[StoredRecord]:
        await asyncio.sleep(0.005)
        self._is_open = False  # whoever had it open is dead: the host says so before it starts another one
        return await super().load()

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        if self.flush_s:
            await asyncio.sleep(self.flush_s * self._rng.random())
        for command in commands:
            await asyncio.sleep(0.001 * self._loop.rng.random())
            await super().write([command])


class Witness(Protocol):
    """What learns of the service's work, before any other part of the world does."""

    def published(self, table: ShardTable, change_set: ChangeSet) -> None:
        """A change is durable; `table` is the whole state."""
        ...

    def loaded(self, version: int, published: int) -> None:
        """The service starts with this version of the table. It had published changes up to another one before."""
        ...

    def asked(self, command: Command[Any]) -> None: ...

    def performed(self, table: ShardTable, command: Command[Any], result: object) -> None:
        """The table, which is not durable yet, is as the command left it."""
        ...


class MetaHost:
    def __init__(
        self,
        machine: Machine,
        network: Network,
        settings: dict[str, Any],
        witness: Witness,
    ) -> None:
        self.machine = machine
        self.network = network
        self.loop = network.loop
        self._witness = witness
        self._published_version = -1
        self._settings = settings
        self.disk = MetaDisk(self.loop)
        self.process = Process(machine)
        self.service: MetaService | None = None
        self._table_at_death: ShardTable | None = None
        self.loses_answers = 0.01
        self.late_s: dict[str, float] = {}
        """By machine: how long a change is on its way there, at most."""
        self._held: dict[str, asyncio.Event] = {}
        """By machine to which changes are on their way until this is set."""

    def start(self) -> None:
        self.process = Process(self.machine)
        self.spawn(self._start())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(PROCESS.set, self.process)
        return self.loop.create_task(work, context=context)

    async def _start(self) -> None:
        service = MetaService(self.disk, lambda: time.time_ns() // 1_000_000, **self._settings)
        publish = service._publish

        def watched(change_sets: Sequence[ChangeSet]) -> None:
            for change_set in change_sets:
                self._published_version = change_set.version
                self._witness.published(service._parts()[0]._table, change_set)
            publish(change_sets)

        service._publish = watched  # type: ignore[method-assign]  # the writer is given this one
        await service.start()
        self._watch_commands(service._parts()[0]._table)
        self._witness.loaded(service._parts()[0]._table.version, self._published_version)
        self.service = service

    def _watch_commands(self, table: ShardTable) -> None:
        perform = table.apply_in_steps

        def watched(command: Any, now_ms: int, new_id: UUID) -> Steps[Applied[Any]]:
            applied = yield from perform(command, now_ms, new_id)
            self._witness.performed(table, command, applied.result)
            return applied

        table.apply_in_steps = watched  # type: ignore[method-assign]

    @property
    def table(self) -> ShardTable | None:
        """As it is in memory; None while no service runs."""
        return None if self.service is None else self.service._parts()[0]._table

    @property
    def last_table(self) -> ShardTable | None:
        """And the one of the service that died last, while none runs."""
        return self._table_at_death if self.service is None else self.table

    def kill(self) -> None:
        self._table_at_death = self.table
        self.process.is_dead = True
        self.service = None

    def hold(self, name: str) -> None:
        """No change arrives at this machine."""
        self._held.setdefault(name, asyncio.Event())

    def release(self) -> None:
        for held in self._held.values():
            held.set()
        self._held.clear()

    async def until_released(self, machine: Machine) -> None:
        held = self._held.get(machine.name)
        if held is not None:
            await held.wait()

    def asked(self, command: Command[Any]) -> None:
        self._witness.asked(command)

    def running(self) -> MetaService:
        if self.service is None:
            raise Unavailable("no meta service answers")
        return self.service


class MetaLink:
    """Implements `MetaForNodes` for one node, or a client of the cluster."""

    def __init__(self, host: MetaHost, machine: Machine) -> None:
        self._host = host
        self._machine = machine

    async def _ask(
        self, ask: Callable[[MetaService], Coroutine[Any, Any, R]], repeat: Repeat = Repeat.READ, attempts: int = 3
    ) -> R:
        """As many attempts as the product's client makes of a request of this kind."""
        log = AttemptLog(repeat, attempts)
        while True:
            try:
                return await self._once(ask)
            except StratalogError as error:
                final = log.failed(error)
                if final is not None:
                    raise final from None
            await asyncio.sleep(0.05)

    async def _once(self, ask: Callable[[MetaService], Coroutine[Any, Any, R]]) -> R:
        host, network = self._host, self._host.network
        await asyncio.sleep(network.latency_s())
        if network.is_cut(self._machine, host.machine):
            await asyncio.sleep(_ATTEMPT_S)
            raise OutcomeUnknown("no answer of the meta service")
        answer = host.loop.create_future()
        host.spawn(self._answer(ask, host.running(), answer))
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                result, failure = await answer
        except TimeoutError:
            raise OutcomeUnknown("no answer of the meta service") from None
        if failure is not None:
            raise failure
        found: R = result
        return found

    async def _answer(self, ask: Callable[[MetaService], Coroutine[Any, Any, Any]], service: Any, answer: Any) -> None:
        """In the process of the service."""
        network = self._host.network
        try:
            result, failure = await ask(service), None
        except StratalogError as error:
            result, failure = None, error
        if network.is_cut(self._host.machine, self._machine) or network.loop.rng.random() < self._host.loses_answers:
            return
        network.loop.call_later(network.latency_s(), _settle, answer, (result, failure))

    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        def ask(service: MetaService) -> Coroutine[Any, Any, R]:
            self._host.asked(command)
            return service.perform(command, validate_only=validate_only)

        return await self._ask(ask, Repeat.IDEMPOTENT if command.is_idempotent else Repeat.NEVER)

    async def heartbeat(self, heartbeat: Heartbeat) -> Heard:
        return await self._ask(lambda service: service.heartbeat(heartbeat), attempts=1)

    async def read_cluster_id(self) -> str:
        return await self._ask(lambda service: service.read_cluster_id())

    async def snapshot(self) -> Snapshot:
        return await self._ask(lambda service: service.snapshot())

    async def read_version(self) -> int:
        return await self._ask(lambda service: service.read_version())

    async def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        """Asks again after the last version it gave; broken off while nothing is heard."""
        host, network, version, silent_s = self._host, self._host.network, after_version, 0.0
        while True:
            service = host.service
            is_cut = network.is_cut(host.machine, self._machine)
            if service is None or is_cut:
                silent_s += 0.05
                if silent_s > _SILENCE_S:
                    raise Unavailable("the watch broke off")
                await asyncio.sleep(0.05)
                continue
            silent_s = 0.0
            changes = service.watch(version)
            while service is host.service:
                try:
                    async with asyncio.timeout(0.1):
                        change_set = await anext(changes)
                except TimeoutError:
                    break
                except StopAsyncIteration:
                    break
                late_s = host.late_s.get(self._machine.name, 0.0) * network.loop.rng.random()
                await asyncio.sleep(network.latency_s() + late_s)
                await host.until_released(self._machine)
                if network.is_cut(host.machine, self._machine) or service is not host.service:
                    break
                version = change_set.version
                yield change_set

    async def topic(self, topic_id: UUID) -> Topic:
        return await self._ask(lambda service: service.topic(topic_id))

    async def deleted_segments(self) -> list[Segment]:
        return await self._ask(lambda service: service.deleted_segments())

    async def purged_topics(self) -> frozenset[UUID]:
        return await self._ask(lambda service: service.purged_topics())


def _settle(answer: Any, outcome: tuple[Any, Any]) -> None:
    if not answer.done():
        answer.set_result(outcome)
