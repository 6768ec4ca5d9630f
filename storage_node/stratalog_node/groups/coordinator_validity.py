"""Whether this node may still answer for a shard of the group log from its memory.

A coordinator that cannot reach the meta service may have been replaced without knowing it. No node replaces it before
half of its lease is over. After that it answers only what its replicas confirm: they acknowledge an empty append, which
shows that no fence had been raised when they took it, so the memory was right at that time. The confirmation is valid
for the same time again. So groups keep working while the meta service is away, and a node that is also cut off from its
replicas stops answering.

Changes are in the log before they are answered, and do not need this check.
Thread: the event loop. Cost: two comparisons while heartbeats arrive; else one append per shard and lease, on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from stratalog.formats.groups.group_log import OffsetEntry, encode_entry
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog_node.groups.hosted import GroupShard, ShardState
from stratalog_node.groups.stats import GroupStats

NOTHING: Final = encode_entry(OffsetEntry("", ShardKey(UUID(int=0), 0), None))
"""No group has an empty name: a reader of this entry forgets something that does not exist."""
_PATIENCE_S: Final = 1.0
"""After that the client gets an error that makes it find the coordinator again."""


class CoordinatorValidity:
    def __init__(
        self,
        *,
        heard_ms: Callable[[], int],
        lease_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        stats: GroupStats,
    ) -> None:
        """`heard_ms`: up to when the meta service is known to have heard this node, without another node in its place;
        `lease_ms`: how long after that no node takes its place, 0 forever."""
        self._heard_ms = heard_ms
        self._lease_ms = lease_ms
        self._monotonic_ms = monotonic_ms
        self._stats = stats

    def is_sure(self, shard: GroupShard) -> bool:
        lease_ms = self._lease_ms()
        return not lease_ms or self._monotonic_ms() - max(self._heard_ms(), shard.proven_ms) < lease_ms

    async def refusal(self, shard: GroupShard) -> GroupError | None:
        """None when this node may answer; else what to answer."""
        if self.is_sure(shard):
            return None
        if shard.proving is None:
            self._prove(shard)
        proving = shard.proving
        if proving is not None:
            await asyncio.wait({proving}, timeout=_PATIENCE_S)
        if shard.state is ShardState.CLOSED:
            return GroupError.NOT_COORDINATOR
        return None if self.is_sure(shard) else GroupError.COORDINATOR_NOT_AVAILABLE

    def _prove(self, shard: GroupShard) -> None:
        begun_ms = self._monotonic_ms()
        self._stats.proofs += 1
        proving = shard.proving = asyncio.get_running_loop().create_future()

        def done(error: GroupError) -> None:
            shard.proving = None
            if error is GroupError.NONE:
                shard.proven_ms = begun_ms
            proving.set_result(None)

        assert shard.log is not None, "only a loaded shard answers"
        shard.log.submit([NOTHING], done)
