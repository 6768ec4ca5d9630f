"""Ends mounts that have expired: one task of the leading meta service. The next check repeats what failed. Time is the
service's wall clock, because a person chose it: a wrong clock ends a mount too early or too late, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import EndMount
from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_meta.writer import TableWriter

_log = logger(__name__)

_LONGEST_PAUSE_S: Final = 5.0


class MountExpiry:
    def __init__(self, clock_ms: Callable[[], int], writer: TableWriter) -> None:
        self._clock_ms = clock_ms
        self._writer = writer
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="meta-mount-expiry")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LONGEST_PAUSE_S)
            try:
                await self.end_expired()
            except StratalogError as error:
                _log.debug("expired mounts were not checked", error=str(error))
            except Exception:  # a bug in one check must not keep all mounts forever (F48)
                _log.exception("checking for expired mounts failed")

    async def end_expired(self) -> None:
        """End the mounts that have expired by now."""
        now_ms = self._clock_ms()
        for name in await self._writer.read(lambda table: _over(table, now_ms)):
            await self._writer.submit(EndMount(name))
            _log.info("mount expired", mount=name)


def _over(table: ShardTable, now_ms: int) -> list[str]:
    return [mount.name for mount in table.state.mounts.values() if 0 < mount.expires_ms <= now_ms]
