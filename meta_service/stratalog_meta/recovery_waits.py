"""Decides recoveries without replicas that make no promise in time: the shell around `RecoveryPatience`. Lives on the
service's event loop, as one task. The next check repeats what failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from stratalog.machines.copies.recovery_patience import CHECKS_PER_PATIENCE, RecoveryPatience
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.errors import StratalogError
from stratalog.model.metadata import ChangeSet, NodeChanged, SegmentChanged, SegmentPurged
from stratalog.telemetry.logs import logger
from stratalog_meta.stats import LifeStats
from stratalog_meta.writer import TableWriter

_log = logger(__name__)

_NAMED: Final = 10


class RecoveryWaits:
    def __init__(
        self,
        patience_ms: int,
        table: ShardTable,
        monotonic_ms: Callable[[], int],
        writer: TableWriter,
        stats: LifeStats,
        is_asked: Callable[[], bool] = lambda: True,
    ) -> None:
        """`table` is what is durable now; what changes from here on comes through `follow`. `is_asked`: whether
        promises reach this service now."""
        self._is_asked = is_asked
        self._monotonic_ms = monotonic_ms
        self._writer = writer
        self._stats = stats
        self._must_read = False
        self._patience_ms = patience_ms
        self._patience = self._patience_of(table)
        self._task: asyncio.Task[Any] | None = None

    def _patience_of(self, table: ShardTable) -> RecoveryPatience:
        state = table.state
        nodes = [entry.node for entry in state.nodes.values()]
        return RecoveryPatience(self._patience_ms, nodes, map(state.segment, state.unsettled), self._monotonic_ms())

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="meta-recovery-waits")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def follow(self, change_set: ChangeSet) -> None:
        """A durable change."""
        now_ms, patience = self._monotonic_ms(), self._patience
        for change in change_set.changes:
            match change:
                case SegmentChanged(segment):
                    if segment.is_fenced or not patience.is_idle:
                        patience.segment_changed(segment, now_ms)
                case SegmentPurged(key):
                    patience.segment_gone(key)
                case NodeChanged(node):
                    patience.node_changed(node, now_ms)
                case _:
                    pass

    def reread(self) -> None:
        """Some changes were not passed on one by one: read all waiting recoveries before the next check."""
        self._must_read = True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._patience_ms / CHECKS_PER_PATIENCE / 1_000)
            try:
                await self._check_waits()
            except StratalogError as error:
                _log.debug("recoveries that wait were not checked", error=str(error))
            except Exception:  # a bug in one check must not leave a shard without a leader forever (F48)
                _log.exception("checking the recoveries that wait failed")

    async def _check_waits(self) -> None:
        if self._must_read:
            self._must_read = False  # first: changes may be skipped while this waits
            try:
                self._patience = await self._writer.read(self._patience_of)
            except BaseException:
                self._must_read = True
                raise
        if not self._is_asked():
            self._patience.excuse_silence(self._monotonic_ms())
            return
        due = self._patience.due(self._monotonic_ms())
        if due is None:
            return
        try:
            await self._writer.submit(due)
        except BaseException:
            self._patience.not_performed(due)
            raise
        self._stats.silent_replicas += sum(len(one.lives) for one in due.silent)
        for one in due.silent[:_NAMED]:
            _log.warning(
                "replicas do not promise; the recovery continues without them where it can",
                segment=str(one.segment),
                nodes=[life.node_id for life in one.lives],
                waited_ms=self._patience_ms,
            )
        if len(due.silent) > _NAMED:
            _log.warning("more recoveries wait for silent replicas", not_named=len(due.silent) - _NAMED)
