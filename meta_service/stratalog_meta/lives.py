"""Hears the heartbeats of nodes, and has noted in the metadata who lives: the shell around `NodeLeases`.

Lives on the service's event loop, as one task, and one for the write under way. A store that cannot be written changes
nothing: what is due stays due.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

from stratalog.machines.plans.node_leases import NodeLeases
from stratalog.machines.table.nodes import is_process_over
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import NoteLives, RegisterNode
from stratalog.model.errors import Fenced, LeaseHeld, StratalogError, Unavailable
from stratalog.model.metadata import ChangeSet, Heartbeat, Life, Node, NodeChanged, Vitals
from stratalog.telemetry.logs import logger
from stratalog_meta.stats import LifeStats
from stratalog_meta.writer import TableWriter

_log = logger(__name__)


class LifeKeeper:
    def __init__(
        self,
        lease_ms: int,
        nodes: Iterable[Node],
        monotonic_ms: Callable[[], int],
        writer: TableWriter,
        stats: LifeStats,
        is_asked: Callable[[], bool] = lambda: True,
    ) -> None:
        """`nodes` are the durable records; later changes arrive through `follow`. `is_asked`: whether heartbeats reach
        this service. A service that does not know whether it leads refuses them."""
        self.lease_ms = lease_ms
        self._monotonic_ms = monotonic_ms
        self._leases = NodeLeases(lease_ms, nodes, monotonic_ms())
        self._writer = writer
        self._stats = stats
        self._is_asked = is_asked
        self._registering = asyncio.Lock()
        self._must_read = False
        self._losing: tuple[Life, ...] = ()
        """Their loss is being written, or may have been."""
        self.vitals: dict[int, Vitals] = {}
        """As each node told them last."""
        self._is_connected: dict[int, Callable[[], bool]] = {}
        """Of each node: whether the connection of its last heartbeat is open."""
        self._task: asyncio.Task[Any] | None = None
        self._noting: asyncio.Task[None] | None = None
        """The last write. The service checks leases meanwhile: it receives heartbeats, and a slow store does not extend
        the lease of a dead node."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="meta-lives")

    async def close(self) -> None:
        for task in (self._task, self._noting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def heartbeat_received(self, heartbeat: Heartbeat, is_connected: Callable[[], bool] | None) -> None:
        """Raises Fenced for a life that is not the present one, Unavailable for one that is just being noted as lost:
        it counts, but the answer would be older than what was taken from it."""
        now_ms = self._monotonic_ms()
        reported = heartbeat
        try:
            self._leases.heartbeat_received(
                reported.life,
                now_ms,
                is_last=reported.is_last,
                has_room=reported.has_room,
                vitals=reported.vitals,
                can_write=reported.can_write,
            )
        except Fenced as refusal:
            self._stats.superseded += 1
            _log.error(
                "a process of an earlier life still ran: it was cut off, or two run on copies of one directory",
                node_id=reported.life.node_id,
                life=reported.life.epoch,
                why=str(refusal),
            )
            raise
        if is_connected is not None:
            self._is_connected[heartbeat.life.node_id] = is_connected
        if heartbeat.vitals is not None:
            self.vitals[heartbeat.life.node_id] = heartbeat.vitals
        self._stats.heartbeats += 1
        if reported.life in self._losing:
            raise Unavailable(f"node {reported.life.node_id} is just being noted as lost: send the next heartbeat")

    @contextlib.asynccontextmanager
    async def registering(self, command: RegisterNode) -> AsyncIterator[None]:
        """Only one registration at a time is checked and made durable. Raises LeaseHeld while an old life still holds
        its lease."""
        async with self._registering:
            node_id = command.node.node_id
            is_over = await self._writer.read(lambda table: is_process_over(table.state.nodes.get(node_id), command))
            try:
                self._leases.check_registration(command.node, self._monotonic_ms(), is_process_over=is_over)
            except LeaseHeld as refusal:
                self._stats.refused += 1
                _log.warning("registration refused: the node lives", node_id=node_id, why=str(refusal))
                raise
            yield

    def started(self) -> frozenset[Life]:
        """`NodeLeases.started`."""
        return self._leases.started()

    def follow(self, change_set: ChangeSet) -> None:
        """A durable change."""
        for change in change_set.changes:
            if isinstance(change, NodeChanged):
                self._leases.node_changed(change.node, self._monotonic_ms())

    def reread(self) -> None:
        """Some changes were not passed on one by one: read all nodes before the next check."""
        self._must_read = True

    async def _run(self) -> None:
        while True:
            leases = self._leases
            span_ms = leases.check_every_ms if self._is_noting else leases.next_check_ms(self._monotonic_ms())
            await asyncio.sleep(span_ms / 1_000)
            await self._guarded(self._check_leases())

    @property
    def _is_noting(self) -> bool:
        return self._noting is not None and not self._noting.done()

    @staticmethod
    async def _guarded(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StratalogError as error:
            _log.debug("leases of nodes were not checked", error=str(error))
        except Exception:  # a bug in one check must not leave dead nodes alive forever (F48)
            _log.exception("checking the leases of nodes failed")

    async def _check_leases(self) -> None:
        if self._must_read:
            self._must_read = False  # first: changes may be skipped while this waits
            try:
                read = await self._writer.read(ShardTable.snapshot)
            except BaseException:
                self._must_read = True
                raise
            for node in read.nodes:
                self._leases.node_changed(node, self._monotonic_ms())
        if not self._is_asked():
            self._leases.excuse_silence(self._monotonic_ms())
            return
        cut = [node_id for node_id, is_connected in self._is_connected.items() if not is_connected()]
        due = self._leases.due(self._monotonic_ms(), cut)
        if self._is_noting:  # what is due besides stays due
            if due is not None:
                self._leases.not_noted(due)
            return
        self._losing = () if due is None else due.lost
        if due is not None:
            self._noting = asyncio.get_running_loop().create_task(
                self._guarded(self._note(due)), name="meta-lives-note"
            )

    async def _note(self, due: NoteLives) -> None:
        try:
            await self._writer.submit(due)
        except BaseException:
            self._leases.not_noted(due)
            raise
        self._losing = ()
        self._stats.lost += len(due.lost)
        for life in due.lost:
            _log.warning("node is lost: its lease ended", node_id=life.node_id, life=life.epoch, lease_ms=self.lease_ms)
        for life in due.heard:
            _log.info("node is alive again", node_id=life.node_id, life=life.epoch)
        for life in due.full:
            _log.warning("disk of a node is nearly full", node_id=life.node_id, life=life.epoch)
        for life in due.roomy:
            _log.info("disk of a node has room again", node_id=life.node_id, life=life.epoch)
        for life in due.stuck:
            _log.error(
                "disk of a node makes no progress: others lead its shards", node_id=life.node_id, life=life.epoch
            )
        for life in due.working:
            _log.info("disk of a node works again", node_id=life.node_id, life=life.epoch)
        for one in due.scarce:
            _log.info(
                "free space on a node has changed", node_id=one.life.node_id, life=one.life.epoch, scarcity=one.scarcity
            )
