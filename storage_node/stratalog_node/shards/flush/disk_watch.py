"""Watches whether the node's disk makes progress: the shell around `DiskHealth`.

The next heartbeat reports the result to the meta service, which moves this node's shards to another replica in sync
whose disk works. A stuck disk also makes the node not ready. Nothing is refused here: a node that alone has a shard
keeps trying.
Lives on the event loop; the probe runs on a disk thread of its own, at most one at a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from stratalog.machines.leading.disk_health import CHECKS_PER_STALL, DiskCall, DiskHealth
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.disk.durable_files import read_from_disk, write_durably
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.copies.write_gate import WriteGate

log = logger(__name__)

_LONGEST_POLL_S: Final = 1.0
_PROBE: Final = b"written now and then, to find out whether this disk works\n"


@dataclass(slots=True)
class DiskHealthStats:
    is_stuck: int = gauge("1 while the data disk makes no progress.")
    stuck_times: int = counter("Times the data disk began to make no progress.")
    oldest_call_ms: int = gauge("For how long the oldest write, flush or read in progress has not returned.")


class DiskWatch:
    def __init__(self, gate: WriteGate, threads: DiskThreads, layout: NodeLayout, stall_ms: int) -> None:
        self.stats = DiskHealthStats()
        self._gate = gate
        self._threads = threads
        self._calls = threads.calls
        self._layout = layout
        self._health = DiskHealth(stall_ms)
        self._poll_s = min(stall_ms / CHECKS_PER_STALL / 1_000, _LONGEST_POLL_S)
        self._task: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._gate.on_write_failure(lambda error: self._calls.failed(DiskCall.WRITE, str(error)))
        self._task = asyncio.get_running_loop().create_task(self._run(), name="disk-watch")

    async def close(self) -> None:
        for task in (self._task, self._probing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def trouble(self) -> str | None:
        """Why the disk counts as stuck, and what to do; None while it works."""
        found = self._health.trouble
        if found is None:
            return None
        return (
            f"the data disk makes no progress: {found}; shards with another replica in sync are led by other nodes, "
            "shards that only this node has stay here: check the disk"
        )

    def unwritable(self) -> list[SegmentKey]:
        """Segments to whose files nothing could be appended for as long as a stuck disk is given."""
        found = map(self._layout.key_of, self._calls.unwritable(self._health.stall_ms))
        return [key for key in found if key is not None]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                self.poll()
            except Exception:  # a fault in one poll must not leave a broken disk in service (F48)
                log.exception("the disk cannot be checked")

    def poll(self) -> None:
        """Judge by what is known at this moment."""
        health, calls = self._health, self._calls
        now_ms = calls.clock_ms()
        before, oldest = health.trouble, calls.oldest(DiskCall.WRITE, DiskCall.FLUSH)
        oldest_read = calls.oldest(DiskCall.READ)
        calls.report_to(health, now_ms)
        health.check(oldest, self._gate.no_room, now_ms, oldest_read)
        self.stats.is_stuck = int(health.trouble is not None)
        self.stats.oldest_call_ms = max((now_ms - one.since_ms for one in (oldest, oldest_read) if one), default=0)
        if health.trouble is not None and before is None:
            self.stats.stuck_times += 1
            log.error("the data disk makes no progress", reason=health.trouble)
        elif health.trouble is None and before is not None:
            log.info("the data disk works again", was=before)
        if health.wants_probe and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe(), name="disk-probe")

    async def _probe(self) -> None:
        try:
            await self._threads.probe(self._use_disk)
        except StratalogError as error:  # it is counted where it was met
            log.debug("the data disk refuses a probe", error=str(error))

    def _use_disk(self) -> None:
        """Blocking."""
        write_durably(self._layout.probe, [_PROBE])
        read_from_disk(self._layout.probe)
