"""Reports sealed copies that the metadata name on this node and that are gone or damaged.

Another node then uploads and serves these segments, and this node copies them again (`following.py`). The only holder
of a copy does not report it: there is no other copy, and a person may bring the file back. Copies are checked again
until the file is there or the metadata no longer name this node.
While a data directory is absent (it could not be opened at the start), nothing that is missing is reported: it may be
there. What a directory had that failed while the node ran is known, and is reported.
Lives on the event loop. Cost: a check of each sealed copy every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from stratalog.machines.following.copies_to_report import lost_untold
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import ReportLostCopies
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.replication.report_loop import report_repeatedly
from stratalog_node.replication.stats import ReplicationStats
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.directory import ShardDirectory

log = logger(__name__)

POLL_S = 5.0
_MOST_AT_ONCE = 1_000
_SHARDS_PER_STEP = 64


class LostCopyReports:
    def __init__(
        self, node_id: int, catalog: Catalog, shards: ShardDirectory, meta: MetaClient, stats: ReplicationStats
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._shards = shards
        self._meta = meta
        self._stats = stats

    async def run(self) -> None:
        """Without an end."""
        await report_repeatedly(self.check, lambda: POLL_S, "lost copies")

    async def check(self) -> None:
        """Raises: Unavailable, Fenced."""
        lost: list[Segment] = []
        for number, shard in enumerate(list(self._shards.all()), 1):
            if shard.missing and not shard.context.layout.absent:
                lost += self._told_of(shard.missing)
            if shard.copies:
                lost += self._told_of(copy.key for copy in list(shard.copies.values()) if copy.damage is not None)
            if number % _SHARDS_PER_STEP == 0:
                await asyncio.sleep(0)
        for start in range(0, len(lost), _MOST_AT_ONCE):
            keys = tuple(segment.key for segment in lost[start : start + _MOST_AT_ONCE])
            await self._meta.perform(ReportLostCopies(keys))
            self._stats.lost_copies += len(keys)
            log.warning("copies that are gone or damaged were reported to the meta service", segments=len(keys))

    def _told_of(self, keys: Iterable[SegmentKey]) -> Iterator[Segment]:
        found = (self._catalog.segment(key) for key in keys)
        return lost_untold((one for one in found if one is not None), self._node_id)
