"""Storage nodes as a real meta service knows them, for tests of the operator: each pod of a node that is ready is a
member, looks after those that leave, and takes the mounts that it is given. They hold no data.

Lives on the event loop of the service.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stratalog.model.commands.mount_commands import TakeMount
from stratalog.model.commands.retirement_commands import ReportInventory, ReportSighting
from stratalog.model.commands.table_commands import RegisterNode, RollSegment
from stratalog.model.errors import Rejected
from stratalog.model.metadata import Heartbeat, Life, Node, NodeInfo, Vitals
from stratalog.model.mounts import MountState
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog_meta.service import MetaService

_VITALS: Final = Vitals(50 << 30, 100 << 30, has_store=True)


class Members:
    def __init__(self, service: MetaService) -> None:
        self.service = service
        self._lives: dict[int, Life] = {}
        self.holds_up = False
        """No leader works on retirements here: they stay at their step."""

    async def round(self, ready: Iterable[int]) -> None:
        """`ready`: ids whose pods serve."""
        known = {node.node_id: node for node in (await self.service.snapshot()).nodes}
        for node_id in ready:
            if node_id not in known or (node_id not in self._lives and not known[node_id].is_retired):
                info = NodeInfo(node_id, f"disk-{node_id}", f"host-{node_id}", 9092)
                registered = await self.service.perform(RegisterNode(info))
                self._lives[node_id] = Life(node_id, registered.node_epoch)
            if node_id in self._lives and not (node_id in known and known[node_id].is_retired):
                await self.service.heartbeat(Heartbeat(self._lives[node_id], vitals=_VITALS))
        for node in known.values():
            if node.retirement is not None and not self.holds_up:
                await self._see_off(node, known)
        await self._take_mounts()
        await self._roll_what_is_asked()

    async def _roll_what_is_asked(self) -> None:
        """With a record in each."""
        for shard in (await self.service.snapshot()).shards:
            newest = shard.segments[-1]
            life = None if newest.leader is None else self._lives.get(newest.leader)
            if newest.handed.is_roll_asked and life is not None:
                await self.service.perform(RollSegment(newest.key, newest.base_offset + 1, caller=life))

    async def _see_off(self, node: Node, known: dict[int, Node]) -> None:
        record = node.retirement
        assert record is not None
        stay = [one for one in known.values() if one.retirement is None and one.node_id in self._lives]
        if not stay:
            return
        # What a volume has only its own node can see.
        looks = node if record.mode is RetireMode.VOLUME else stay[0]
        life = self._lives[looks.node_id]
        try:
            if record.step is RetireStep.VERIFY:
                seen = ReportSighting(
                    node.node_id, record.storage_id, record.begun_ms, 0, seen_ms=record.last_check_ms, caller=life
                )
                await self.service.perform(seen)
            elif record.step is RetireStep.SNAPSHOT and record.inventory_key is None:
                told = ReportInventory(node.node_id, record.storage_id, record.begun_ms, "inventory", caller=life)
                await self.service.perform(told)
        except Rejected:  # the record has moved on meanwhile
            return

    async def _take_mounts(self) -> None:
        for mount in (await self.service.snapshot()).mounts:
            if mount.state is MountState.TAKING and mount.holder in self._lives:
                try:
                    await self.service.perform(TakeMount(mount.name, mount.token, caller=self._lives[mount.holder]))
                except Rejected:
                    continue
