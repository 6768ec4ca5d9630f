"""Watches the room for new data: refuses writes before the disk is full, takes them again when there is room.

Reads, uploads and retention continue meanwhile, because uploads and retention make room (F52).
Lives on the event loop; polls once a second, oftener as the reserve comes near, and at once after a failed write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.tiering.retention import DiskPressure
from stratalog.model.errors import DiskFull, StratalogError
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.shards.copies.write_gate import WriteGate
from stratalog_node.shards.flush.shard_lookup import DiskUsage

log = logger(__name__)

_POLL_S = 1.0
_SHORTEST_POLL_S = 0.005
_FASTEST_BYTES_PER_S = 1 << 30
"""No node writes faster: what is above the reserve lasts at least so long, and the next poll may wait so long."""
_HEALED_SHARE = 1.1
"""Free space must exceed the reserve by this much before writes resume, or they would flap."""


@dataclass(slots=True)
class SpaceStats:
    free_bytes: int = gauge("Free bytes on the data disk.")
    local_bytes: int = gauge("Bytes of segments on this node.")
    is_refusing_writes: int = gauge("1 while new data is refused for lack of room.")
    refusals: int = counter("Times writes began to be refused for lack of room.")


class DiskWatched(Protocol):
    """What `disk_usage.LocalDisk` says."""

    @property
    def root(self) -> Path: ...

    def usage(self) -> DiskUsage: ...

    async def local_bytes(self) -> int: ...


class SpaceGuard:
    def __init__(
        self,
        gate: WriteGate,
        disk: DiskWatched,
        *,
        reserve_bytes: int,
        why_short: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`why_short`: why others who share this disk need what is free, if so."""
        self.stats = SpaceStats()
        self._why_short = why_short
        self._gate = gate
        self._disk = disk
        self._reserve_bytes = reserve_bytes
        self._pressure: DiskPressure | None = None
        self._tasks = TaskSet()
        self._has_failed = False
        self._spare_bytes = reserve_bytes + 1

    def start(self) -> None:
        self.poll()
        self._gate.on_write_failure(self.write_failed)
        self._tasks.start(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.pause_s)
            self.poll()

    async def count(self) -> None:
        """What the segments take, for the metric alone: when it is asked for."""
        self.stats.local_bytes = await self._disk.local_bytes()

    @property
    def pause_s(self) -> float:
        """Until the next poll: nothing can be written beyond the reserve in between."""
        if self._gate.no_room is not None:
            return _POLL_S
        return min(max(self._spare_bytes / _FASTEST_BYTES_PER_S, _SHORTEST_POLL_S), _POLL_S)

    @property
    def has_room(self) -> bool:
        """For segments that would be new here: more than a second reserve is free."""
        return self._gate.no_room is None and self._spare_bytes > self._reserve_bytes

    def write_failed(self, error: StratalogError) -> None:
        """A write found no room: do not wait for the next poll."""
        if isinstance(error, DiskFull):
            self._has_failed = True
            self.poll()

    def set_pressure(self, pressure: DiskPressure | None) -> None:
        """Local data waits for its upload above the hard limit (or no more)."""
        if pressure != self._pressure:
            self._pressure = pressure
            self.poll()

    def poll(self) -> None:
        """Decide by the numbers of this moment."""
        free_bytes = self._disk.usage().usable_bytes
        self._spare_bytes = free_bytes - self._reserve_bytes
        self.stats.free_bytes = free_bytes
        self._gate.copies_room_bytes = self._spare_bytes - self._reserve_bytes  # as for segments that would be new here
        reason = self._reason(free_bytes)
        self._has_failed = False
        was_refusing = self._gate.no_room is not None
        self._gate.no_room = reason
        if reason is None:
            if was_refusing:
                log.info("writes resume", free_bytes=free_bytes)
        elif not was_refusing:
            self.stats.refusals += 1
            log.error("writes are refused", reason=reason)
        self.stats.is_refusing_writes = int(reason is not None)

    def _reason(self, free_bytes: int) -> str | None:
        needed = self._reserve_bytes
        if self._gate.no_room is not None:
            needed = int(needed * _HEALED_SHARE)
        if self._has_failed or free_bytes < needed:
            return (
                f"{free_bytes} bytes are free on {self._disk.root}, {needed} are kept in reserve "
                "(disk.reserve.bytes): free space or wait for uploads and retention; writes resume by themselves"
            )
        if self._pressure is not None:
            return self._pressure.message
        return self._why_short()
