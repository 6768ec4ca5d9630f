"""Who goes on behind the segments that this node leads: asked of the meta service before they are full.

A roll that the service could not confirm soon would hold up who writes behind it. So a name counts only while it is
fresh: the service gave it within the last lease. Asking again is a question to it, not a change, and finds another name
when one of those it gave is not alive any more. Where this node is all there is, nobody is asked.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio

from stratalog.machines.chain_events import SuccessorNamed, SuccessorUnknown
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.model.commands import PrepareSegment
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import NextReplicas
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.shards.context import ShardContext
from stratalog_node.task_set import TaskSet

log = logger(__name__)


class Successors:
    """Memory: an entry per segment that is at least half full and not rolled yet."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._prepared: dict[SegmentKey, tuple[NextReplicas, float]] = {}
        """With when the service said so."""
        self._asked: set[SegmentKey] = set()
        self._failing: dict[SegmentKey, Backoff] = {}
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.cancel()

    def name(self, leader: SegmentLeader) -> SuccessorNamed | SuccessorUnknown:
        """Who goes on behind a segment that is to end now."""
        if self._is_alone():
            return SuccessorNamed(self._context.node_id, leader.replicas)
        prepared, told_s = self._prepared.get(leader.key, (None, 0.0))
        if prepared is None or asyncio.get_running_loop().time() - told_s > self._context.settings.node_lease_ms / 1000:
            return SuccessorUnknown()
        return SuccessorNamed(prepared.leader, prepared.replicas)

    def prepare(self, key: SegmentKey) -> None:
        """See that it is known. Asked for once at a time."""
        if key not in self._asked and not self._is_alone():
            self._asked.add(key)
            self._tasks.start(self._prepare(key))

    def forget(self, key: SegmentKey) -> None:
        """It has ended."""
        self._prepared.pop(key, None)
        self._failing.pop(key, None)

    def _is_alone(self) -> bool:
        return all(node.node_id == self._context.node_id for node in self._context.catalog.nodes())

    async def _prepare(self, key: SegmentKey) -> None:
        try:
            segment = await self._context.meta.perform(PrepareSegment(key))
            if segment.handed.prepared is not None:
                self._prepared[key] = segment.handed.prepared, asyncio.get_running_loop().time()
            self._failing.pop(key, None)
        except StratalogError as error:
            log.warning("nobody is prepared to follow a segment yet", segment=str(key), error=str(error))
            # Whoever finds nobody asks again, at every turn perhaps.
            await self._failing.setdefault(key, Backoff()).pause()
        finally:
            self._asked.discard(key)
