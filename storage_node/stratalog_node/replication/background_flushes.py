"""Flushes copies of other nodes' segments periodically and writes their checkpoints. With `flush.policy=replicated`
acknowledgements do not wait for the disk; these flushes bound what a power cut can take.

Lives on the event loop. Cost: a check of each copy that changed since it was last found idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from stratalog.telemetry.logs import logger

log = logger(__name__)

_TOGETHER: Final = 64
"""Copies flushed side by side, so that the file system's journal commits them together."""


class FlushedCopy(Protocol):
    @property
    def name(self) -> object: ...

    @property
    def owes_flush(self) -> bool:
        """Something of it is not on the disk, or is to be noted in a checkpoint some time."""
        ...

    async def flush_behind(self) -> None: ...

    async def flush_at_stop(self) -> bool:
        """Whether all of it is on the disk."""
        ...


class BackgroundFlushes:
    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1_000
        self._noted: dict[FlushedCopy, None] = {}

    def note(self, copy: FlushedCopy) -> None:
        """Something happened to it."""
        self._noted[copy] = None

    def forget(self, copy: FlushedCopy) -> None:
        self._noted.pop(copy, None)

    async def run(self) -> None:
        """Without an end."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.flush()

    async def flush(self) -> None:
        """One pass."""
        noted = list(self._noted)
        for start in range(0, len(noted), _TOGETHER):
            group = [copy for copy in noted[start : start + _TOGETHER] if self._is_due(copy)]
            await asyncio.gather(*map(_flush, group))

    def _is_due(self, copy: FlushedCopy) -> bool:
        if copy in self._noted and not copy.owes_flush:
            del self._noted[copy]
        return copy in self._noted


async def flush_at_stop(copies: Sequence[FlushedCopy]) -> bool:
    """Whether all of them are on the disk."""
    is_whole = True
    for start in range(0, len(copies), _TOGETHER):
        is_whole &= all(await asyncio.gather(*(copy.flush_at_stop() for copy in copies[start : start + _TOGETHER])))
    return is_whole


async def _flush(copy: FlushedCopy) -> None:
    try:
        await copy.flush_behind()
    except Exception:  # one copy's fault must not keep the others from the disk (F48)
        log.error("a copy cannot be flushed", segment=str(copy.name), exc_info=True)
