"""Reads the partitions of one fetch that are not in memory: in order, as many at a time as may be answered.

A read costs memory and requests to the object store, so no read begins that has no room in the answer: each reserves
its share, and what it leaves of that starts the next, while the client has less than it waits for. Partitions that were
not read in time are left for the next fetch, which clients begin with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratalog_node.serve.fetching.empty_batches import read_with_records
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import Read, ShardReader

_LEAST_SHARE_BYTES = 1 << 20
"""A request to the object store for less is not worth its cost: rather fewer partitions in one answer."""


class SlowReads:
    """`tasks` has one entry for each of `wants` that was begun, in order."""

    def __init__(
        self,
        reader: ShardReader,
        wants: Sequence[tuple[ShardLog, int, int, int]],
        left_bytes: int,
        min_bytes: int,
        client: str,
    ) -> None:
        """`wants`: of each shard the offset, the most bytes, and the high watermark that is answered. `left_bytes` may
        be answered, `min_bytes` are still waited for."""
        self.tasks: list[asyncio.Task[Read]] = []
        self._reader = reader
        self._wants = wants
        self._left_bytes = left_bytes
        self._min_bytes = min_bytes
        self._share_bytes = max(left_bytes // max(1, len(wants)), _LEAST_SHARE_BYTES)
        self._client = client
        self._promised: dict[asyncio.Task[Read], int] = {}

    async def run(self, timeout_s: float) -> None:
        """Returns when no more is to come, or time is up. The caller cancels what still runs, and releases reads."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._begin()
        while self._promised:
            left_s = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(self._promised, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return
            for task in done:
                size = 0 if task.cancelled() or task.exception() else task.result().size_bytes
                self._left_bytes += self._promised.pop(task) - size
                self._min_bytes -= size
            if self._min_bytes > 0:
                self._begin()

    def _begin(self) -> None:
        """Begin what there is room for; the first one always."""
        while len(self.tasks) < len(self._wants) and (self._left_bytes > 0 or not self.tasks):
            shard, offset, most_bytes, high_watermark = self._wants[len(self.tasks)]
            share = max(1, min(most_bytes, self._share_bytes, self._left_bytes))
            task = asyncio.ensure_future(
                read_with_records(self._reader, shard, offset, share, high_watermark, self._client)
            )
            self.tasks.append(task)
            self._promised[task] = share
            self._left_bytes -= share
