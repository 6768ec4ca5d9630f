"""One node's part in a consistent cut: hold, report where the shards end, release, confirm.

While a node is held its leaders write nothing and acknowledge nothing, so its shards end above all that it
acknowledged. When all nodes are held at one moment their ends are a cut: what is below them was written before that
moment, and what was acknowledged before it lies below them (docs/backup.md section 4). A hold ends by itself.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from stratalog.admin_api.cuts import Confirmed, CutRequest, Held, HeldShard, HoldRequest, Released
from stratalog.model.errors import Conflict, NotFound, Unavailable
from stratalog.model.ids import ShardKey
from stratalog_node.admin.services import AdminServices
from stratalog_node.shards.log.shard_log import ShardLog

_CONFIRM_S: Final = 20.0
_POLL_S: Final = 0.02


@dataclass(slots=True)
class _Cut:
    ends: dict[ShardKey, int]
    epochs: dict[ShardKey, int]
    """The shards that this node led at that time, as far as the metadata were known."""
    is_held: bool = True
    alarm: asyncio.TimerHandle | None = None


class CutAdmin:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._turn = services.turn
        self._cuts: dict[UUID, _Cut] = {}
        """The last one: the next takes its place."""

    async def hold(self, request: HoldRequest) -> Held:
        """Raises: Conflict while another cut holds the node."""
        if any(cut.is_held for cut in self._cuts.values()):
            raise Conflict("another cut is being made on this node: try again in a moment")
        self._turn.hold()
        cut = _Cut({}, {})
        try:
            held = [self._held(shard) for shard in self._led()]
        except BaseException:
            self._turn.let_go()
            raise
        cut.ends = {ShardKey(one.topic_id, one.shard): one.end_offset for one in held}
        cut.epochs = {ShardKey(one.topic_id, one.shard): one.epoch for one in held}
        cut.alarm = asyncio.get_running_loop().call_later(request.max_ms / 1_000, self._let_go, cut)
        self._cuts = {request.cut_id: cut}
        return Held(node_id=self._services.node_id, cluster_id=self._services.cluster_id, shards=held)

    def release(self, request: CutRequest) -> Released:
        cut = self._cut(request.cut_id)
        was_held = cut.is_held
        self._let_go(cut)
        return Released(node_id=self._services.node_id, was_held=was_held)

    async def confirm(self, request: CutRequest) -> Confirmed:
        """Waits until what it named is committed. Asked once all nodes were held: the metadata are read after that."""
        cut, services = self._cut(request.cut_id), self._services
        try:
            async with asyncio.timeout(_CONFIRM_S):
                version = await services.meta.read_version()
                await _until(lambda: services.catalog.version >= version)
                for key, end_offset in cut.ends.items():
                    await _until(partial(self._is_decided, key, end_offset, cut.epochs[key]))
                    if (fault := self._fault(key, cut.epochs[key])) is not None:
                        return Confirmed(node_id=services.node_id, fault=fault)
        except TimeoutError:
            raise Unavailable(f"not all that was written is in sync after {_CONFIRM_S:.0f} s; see `status`") from None
        return Confirmed(node_id=services.node_id)

    def _led(self) -> list[ShardLog]:
        return [view for view in self._services.shards.all() if isinstance(view, ShardLog) and view.is_leader]

    def _held(self, shard: ShardLog) -> HeldShard:
        segments = self._services.catalog.segments(shard.key)
        return HeldShard(
            topic=shard.topic.name,
            topic_id=shard.key.topic_id,
            shard=shard.key.shard,
            epoch=segments[-1].epoch,
            log_start_offset=shard.log_start_offset,
            end_offset=shard.end_offset,
        )

    def _fault(self, key: ShardKey, epoch: int) -> str | None:
        """A recovery may have given up what was below the end, and other nodes may have written there since: then it is
        not enough that the node leads the shard again."""
        shard = self._services.shards.get(key)
        segments = self._services.catalog.segments(key)
        was_taken = any(segment.is_fenced for segment in segments if segment.epoch >= epoch)
        leads = isinstance(shard, ShardLog) and shard.is_leader and shard.stop is None and not was_taken
        if leads and segments and segments[-1].leader == self._services.node_id:
            return None
        return f"node {self._services.node_id} does not lead shard {key.shard} of topic {key.topic_id} as it did"

    def _is_decided(self, key: ShardKey, end_offset: int, epoch: int) -> bool:
        return self._fault(key, epoch) is not None or self._high_watermark(key) >= end_offset

    def _high_watermark(self, key: ShardKey) -> int:
        shard = self._services.shards.get(key)
        assert isinstance(shard, ShardLog), "it leads the shard"
        return shard.high_watermark

    def _cut(self, cut_id: UUID) -> _Cut:
        cut = self._cuts.get(cut_id)
        if cut is None:
            raise NotFound(f"cut {cut_id} is not being made on this node: it was held for another since, or never")
        return cut

    def _let_go(self, cut: _Cut) -> None:
        if cut.is_held:
            cut.is_held = False
            if cut.alarm is not None:
                cut.alarm.cancel()
            self._turn.let_go()


async def _until(predicate: Callable[[], bool]) -> None:
    while True:
        if predicate():
            return
        await asyncio.sleep(_POLL_S)
