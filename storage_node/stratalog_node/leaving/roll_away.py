"""Rolls the segments that this node leads away from nodes that leave: this node itself, or a replica of such a segment.
And it rolls those that people asked to end (`Handover.is_roll_asked`).

Level-triggered: each pass checks the shards that this node leads, and requests what is still missing. A segment rolls
like any other, to the successor that the service names, so producers continue. Empty segments roll, too, and an
unwritten one is opened for that. If no node stays, accepting writes is more important than leaving, and no node is
left.
Lives on the event loop. Cost: a check of each shard per pass while a node leaves, else of those that were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Change, SegmentChanged
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.shard_log import ShardLog

log = logger(__name__)

POLL_S: Final = 0.5
MOST_AT_ONCE: Final = 64
"""Rolls that one pass requests, so that thousands of shards do not roll at the same moment."""
_SHARDS_PER_STEP: Final = 256


class RollAway:
    def __init__(self, node_id: int, catalog: Catalog, led_shard: Callable[[ShardKey], ShardLog | None]) -> None:
        """`led_shard`: one that this node leads and that has not stopped."""
        self._node_id = node_id
        self._catalog = catalog
        self._led_shard = led_shard
        self._asked: dict[ShardKey, None] = {}
        """Shards with an active segment that was asked to end, and some that had one."""
        catalog.on_change(self._note)

    def _note(self, change: Change) -> None:
        if isinstance(change, SegmentChanged) and change.segment.handed.is_roll_asked:
            self._asked[change.segment.key.shard_key] = None

    async def run(self) -> None:
        """Without an end."""
        self._asked.update(dict.fromkeys(self._catalog.shard_keys()))  # what was asked before this start
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.check()
            except StratalogError as error:
                log.info("a segment was not handed to another node yet", error=str(error))
            except Exception:  # else a node could never leave (F48)
                log.error("segments cannot be handed to other nodes", exc_info=True)

    async def check(self) -> None:
        """One pass."""
        leaving = {node.node_id for node in self._catalog.nodes() if node.is_leaving}
        if not any(node.is_alive and not node.is_leaving for node in self._catalog.nodes()):
            leaving = set()
        rolled = 0
        for number, key in enumerate(list(self._catalog.shard_keys() if leaving else self._asked), 1):
            if number % _SHARDS_PER_STEP == 0:
                await asyncio.sleep(0)
            active = self._catalog.active_segment(key)
            is_led = active is not None and active.leader == self._node_id
            is_asked = active is not None and is_led and active.handed.is_roll_asked
            if not is_asked:
                self._asked.pop(key, None)
            if active is None or not is_led or (not is_asked and leaving.isdisjoint(active.replicas)):
                continue
            if rolled == MOST_AT_ONCE:
                return
            rolled += 1
            self._hand_on(key, active.key)

    def _hand_on(self, key: ShardKey, segment: SegmentKey) -> None:
        shard = self._led_shard(key)
        if shard is not None and shard.opens(segment):
            shard.workers.sealing.successors.roll_to_new_successor(shard, segment)


def roll_elsewhere(shard: ShardLog, active: Segment) -> bool:
    """End a segment that this node leads, even an empty one, with a newly chosen successor, which is prepared first.
    False if the leader no longer writes to it."""
    if not shard.opens(active.key):
        return False
    shard.workers.sealing.successors.replace_successor(shard, active.key, active.handed.prepared)
    return True
