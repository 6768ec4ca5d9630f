"""What people ask of a cluster whose nodes join and leave: they ask until they get an answer.

They take the place of the command line, and ask the meta service as it does. A roll goes to the leader itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stratalog.machines.copies.rebalance import Plan, plan_rebalance
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import Rejected, StratalogError
from stratalog.model.metadata import Snapshot
from stratalog.model.retirement import RetireMode
from stratalog_sim.broken import Broken
from stratalog_sim.product.leaving_truth import LeavingTruth
from stratalog_sim.product.meta_host import MetaLink
from stratalog_sim.product.world import ProductWorld

_RETRY_S = 0.15
_ROUND_S = 0.9
MOST_ROUNDS = 16


class People:
    def __init__(self, world: ProductWorld, truth: LeavingTruth) -> None:
        self._world = world
        self._truth = truth
        self._link = MetaLink(world.meta, world.client_machine)

    def request(self, command: Command[Any]) -> None:
        self._world.spawn(self._world.clients, self._repeat(command))

    async def _repeat(self, command: Command[Any]) -> None:
        self._world.say(f"a person asks for {command}")
        while True:
            try:
                await self._link.perform(command)
                return
            except Rejected as refusal:
                self._world.say(f"a person is refused: {refusal}")
                if isinstance(command, CancelRetirement) and command.node_id not in self._truth.released:
                    self._truth.truth.fail("a retirement can be cancelled until the release", str(refusal))
                return
            except StratalogError:
                await asyncio.sleep(_RETRY_S)

    def force(self, node_id: int) -> None:
        """Give up what a dead node alone has: it is refused while the node counts as alive."""
        self._world.spawn(self._world.clients, self._force(node_id))

    async def _force(self, node_id: int) -> None:
        snapshot = await self._snapshot()
        storage_id = next(one.storage_id for one in snapshot.nodes if one.node_id == node_id)
        self._world.say(f"a person gives node {node_id} up by force")
        while True:
            try:
                await self._link.perform(RetireNode(node_id, RetireMode.OFFLOAD, storage_id))
                return
            except StratalogError:
                await asyncio.sleep(_RETRY_S)

    async def _snapshot(self) -> Snapshot:
        while True:
            try:
                return await self._link.snapshot()
            except StratalogError:
                await asyncio.sleep(_RETRY_S)

    async def rebalance(self) -> None:
        """As `stratalog rebalance --seal`: until all is even, or nothing moves. Raises: Broken."""
        plan: Plan | None = None
        for _ in range(MOST_ROUNDS):
            plan = plan_rebalance(await self._snapshot())
            if not plan.moves or plan.is_even:
                return
            for move in plan.moves:
                self._roll(move.segment)
            await asyncio.sleep(_ROUND_S)
        raise Broken("rounds of rebalancing end", f"after {MOST_ROUNDS} there is more to do: {plan}")

    def _roll(self, segment: Any) -> None:
        host = self._world.hosts.get(segment.leader or 0)
        if host is None or host.node is None or host.process is None:
            return
        node = host.node

        async def roll() -> None:
            node.roll_elsewhere(segment.key)

        self._world.spawn(host.process, roll())
