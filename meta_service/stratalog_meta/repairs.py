"""Replaces missing copies and releases surplus ones: the shell around `copy_repair`. Lives on the service's event loop,
as one task beside the leases. A pass reads the durable metadata, plans in slices of the loop, and submits commands; the
next pass repeats what failed. So a failed pass, or a change of the leader, costs only time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from stratalog.machines.copies.copy_repair import Plan, Presence, plan_moves
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import MoveReplicas
from stratalog.model.errors import StratalogError
from stratalog.model.metadata import ChangeSet, Life, Node, NodeChanged, SegmentChanged, Snapshot, TopicChanged
from stratalog.model.topic import Topic
from stratalog.telemetry.logs import logger
from stratalog_meta.stats import RepairStats
from stratalog_meta.writer import TableWriter

_log = logger(__name__)

_LOOKS_PER_TIME: Final = 8
_MOST_BETWEEN_S: Final = 5.0
_BUSY_S: Final = 0.5
"""The pause between passes while copies are due: each copy that a node has completed leaves room for another."""
_SHARE: Final = 20
"""The pause after a pass is this many times its working time; waiting for the store does not count."""


class CopyRepairs:
    def __init__(
        self,
        replace_after_ms: int,
        nodes: Iterable[Node],
        monotonic_ms: Callable[[], int],
        writer: TableWriter,
        stats: RepairStats,
        is_tiered: Callable[[Topic], bool] = lambda _: True,
        started: Callable[[], frozenset[Life] | None] = lambda: None,
    ) -> None:
        """`nodes` are the durable records; later changes arrive through `follow`. `is_tiered`: the topics whose copies
        on a leaving node need no replacement, because the object store gets them. `started`: `plan_moves`."""
        self._is_tiered = is_tiered
        self._started = started
        self._monotonic_ms = monotonic_ms
        self._presence = Presence(replace_after_ms, nodes, monotonic_ms())
        self._between_s = min(replace_after_ms / 1_000 / _LOOKS_PER_TIME, _MOST_BETWEEN_S)
        self._writer = writer
        self._stats = stats
        self._is_due = True
        self._seen: tuple[frozenset[int], frozenset[int], frozenset[Life] | None] | None = None
        self._worked_ms = 0
        """In the present pass."""
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="meta-repairs")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def follow(self, change_set: ChangeSet) -> None:
        """A durable change."""
        for change in change_set.changes:
            if isinstance(change, NodeChanged):
                self._presence.node_changed(change.node, self._monotonic_ms())
                self._is_due = True
            elif isinstance(change, SegmentChanged | TopicChanged):
                self._is_due = True

    def reread(self) -> None:
        """Changes were not told one by one."""
        self._is_due = True
        self._seen = None

    async def _run(self) -> None:
        pause_s = self._between_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s, self._worked_ms = self._between_s, 0
            try:
                if await self._repair_once():
                    pause_s = min(pause_s, _BUSY_S)
            except StratalogError as error:
                self._is_due = True
                _log.debug("missing copies were not checked", error=str(error))
            except Exception:  # a bug in one pass must not leave copies missing forever (F48)
                self._is_due = True
                _log.exception("checking for missing copies failed")
            pause_s = max(pause_s, _SHARE * self._worked_ms / 1_000)

    async def _repair_once(self) -> bool:
        """Whether the next one should come soon."""
        now_ms = self._monotonic_ms()
        seen = self._presence.away(now_ms), self._presence.steady(now_ms), self._started()
        if not self._is_due and seen == self._seen:
            return False
        self._is_due, is_anew = False, self._seen is None
        self._seen = seen
        try:
            snapshot = await self._writer.read(self._snapshot)
        except BaseException:
            self._seen = None if is_anew else self._seen
            raise
        if is_anew:
            for node in snapshot.nodes:
                self._presence.node_changed(node, now_ms)
        if len(snapshot.nodes) < 2:
            return False
        began_ms = self._monotonic_ms()
        plan = await self._plan(snapshot, *seen)
        self._worked_ms += self._monotonic_ms() - began_ms
        self._stats.copies_waiting = plan.waiting
        if plan.moves:
            await self._writer.submit(MoveReplicas(tuple(plan.moves)))
            added, dropped = sum(len(move.added) for move in plan.moves), sum(len(move.dropped) for move in plan.moves)
            self._stats.copies_asked += added
            self._stats.copies_dropped += dropped
            _log.info("replicas moved", segments=len(plan.moves), added=added, dropped=dropped, waiting=plan.waiting)
        return bool(plan.moves) or plan.is_bounded

    def _snapshot(self, table: ShardTable) -> Snapshot:
        began_ms = self._monotonic_ms()
        snapshot = table.snapshot()
        self._worked_ms += self._monotonic_ms() - began_ms
        return snapshot

    async def _plan(
        self, snapshot: Snapshot, away: frozenset[int], steady: frozenset[int], started: frozenset[Life] | None
    ) -> Plan:
        steps = plan_moves(snapshot, away, steady, self._is_tiered, started)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                plan: Plan = done.value
                return plan
            await asyncio.sleep(0)
