"""Nodes of a `NodeCluster` leave. Each pass over the retirements could be that of a new leader, because it keeps
nothing from the pass before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.commands.table_commands import MoveReplicas
from stratalog.model.metadata import Node, Vitals
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog_meta.clocks import monotonic_ms
from stratalog_meta.retirements import Retirements
from stratalog_meta.stats import RetirementStats
from stratalog_node.node import wall_ms
from support.node_cluster import NodeCluster

INTERVAL_MS = 100
_LONGEST_S = 20.0
QUICK = {"retire_verify_interval_ms": INTERVAL_MS, "remote_upload_interval_ms": 50}


class Leaving:
    def __init__(self, cluster: NodeCluster, *, has_store: bool) -> None:
        self.cluster = cluster
        gib = 1 << 30
        self.vitals: Mapping[int, Vitals] = {n: Vitals(50 * gib, 100 * gib, has_store) for n in range(1, 9)}
        self.steps: list[tuple[int, RetireStep]] = []
        self.copied_bytes = 0

    def leader(self) -> Retirements:
        """One that has just begun to lead."""
        writer = self.cluster.meta.service._parts()[0]
        return Retirements(
            writer, wall_ms, monotonic_ms, lambda: self.vitals, RetirementStats(), verify_interval_ms=INTERVAL_MS
        )

    async def retire(self, node_id: int, mode: RetireMode = RetireMode.OFFLOAD, force: str | None = None) -> None:
        await self.cluster.meta.service.perform(RetireNode(node_id, mode, force))

    async def cancel(self, node_id: int) -> None:
        await self.cluster.meta.service.perform(CancelRetirement(node_id))

    async def node(self, node_id: int) -> Node:
        nodes = (await self.cluster.meta.service.snapshot()).nodes
        return next(node for node in nodes if node.node_id == node_id)

    async def record(self, node_id: int) -> Retirement:
        record = (await self.node(node_id)).retirement
        assert record is not None
        return record

    async def run_checks(self) -> None:
        leader = self.leader()
        await leader.run_pass()
        await self._repair(leader)
        for node in (await self.cluster.meta.service.snapshot()).nodes:
            if node.retirement is not None and (node.node_id, node.retirement.step) not in self.steps:
                self.steps.append((node.node_id, node.retirement.step))

    async def _repair(self, leader: Retirements) -> None:
        snapshot = await self.cluster.meta.service.snapshot()
        alive = frozenset(node.node_id for node in snapshot.nodes if node.is_alive)
        steps = plan_moves(snapshot, frozenset(), alive, leader.is_tiered)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                await self.cluster.meta.service.perform(MoveReplicas(tuple(done.value.moves)))
                return

    async def until(
        self, predicate: Callable[[], object] | None = None, *, step: RetireStep | None = None, of: int = 1
    ) -> None:
        """Look until so; released nodes end as their processes do."""
        end = asyncio.get_running_loop().time() + _LONGEST_S
        while asyncio.get_running_loop().time() < end:
            await self.run_checks()
            await self.end_the_released()
            if step is not None and (await self.record(of)).step is step:
                return
            if predicate is not None and predicate():
                return
            await asyncio.sleep(0.02)
        snapshot = await self.cluster.meta.service.snapshot()
        records = [node.retirement for node in snapshot.nodes if node.retirement is not None]
        open_ones = [segment for shard in snapshot.shards for segment in shard.segments if segment.seal is None]
        raise AssertionError(f"it does not come to that: {records}, open: {open_ones}")

    async def end_the_released(self) -> None:
        """A released node hears with its next heartbeat that its life is over, and ends."""
        for node in (await self.cluster.meta.service.snapshot()).nodes:
            if node.is_retired and node.node_id in self.cluster.nodes:
                await self.cluster.stop(node.node_id)
