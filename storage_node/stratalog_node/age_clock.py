"""The node's clock for the age of data, kept in `clock.json` so that a restart does not bypass it.

`stratalog.machines.tiering.age_clock` decides. An update reads two clocks; about once a minute it also writes the file,
on a thread. A kill loses at most that minute of age time, which the credit makes up for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from stratalog.machines.tiering.age_clock import AgeClock, AgeState
from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import read_file, write_durably

log = logger(__name__)

_SAVE_MS = 60_000
_WORTH_TELLING_MS = 60_000


class NodeAgeClock:
    """Call it for the time, in ms since the epoch; on the event loop."""

    def __init__(self, path: Path, wall_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._path = path
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._clock = AgeClock(_read(path), wall_ms(), monotonic_ms())
        self._saved_ms: int | None = None
        self._saving: asyncio.Task[None] | None = None
        self._is_behind = False
        self._log_change()

    def __call__(self) -> int:
        monotonic_ms = self._monotonic_ms()
        now_ms = self._clock.advance(self._wall_ms(), monotonic_ms)
        self._log_change()
        is_due = self._saved_ms is None or monotonic_ms - self._saved_ms >= _SAVE_MS
        if is_due and (self._saving is None or self._saving.done()):
            self._saved_ms = monotonic_ms
            self._saving = asyncio.get_running_loop().create_task(self._save())
        return now_ms

    @property
    def behind_ms(self) -> int:
        """How far it is behind the wall clock."""
        return self._clock.behind_ms

    async def close(self) -> None:
        self._clock.advance(self._wall_ms(), self._monotonic_ms())
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)
        await self._save()

    def _log_change(self) -> None:
        behind_ms = self._clock.behind_ms
        if not self._is_behind and behind_ms >= _WORTH_TELLING_MS:
            self._is_behind = True
            log.warning(
                "the wall clock jumped ahead, or the node was away for long: until age has caught up, retention lets "
                "data age at most twice as fast as time passes. Check the clock; if it is right nothing need be done",
                behind_ms=behind_ms,
                file=str(self._path),
            )
        elif self._is_behind and behind_ms == 0:
            self._is_behind = False
            log.info("retention goes by the wall clock again", file=str(self._path))

    async def _save(self) -> None:
        """A file that cannot be written need not stop the node: the old one only makes data look younger."""
        data = json.dumps(asdict(self._clock.state)).encode() + b"\n"
        with suppress(StratalogError, OSError):
            await asyncio.to_thread(write_durably, self._path, [data])


def _read(path: Path) -> AgeState | None:
    data = read_file(path)
    if data is None:
        return None
    try:
        fields = json.loads(data)
        return AgeState(int(fields["now_ms"]), int(fields["credit_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        log.warning("clock.json cannot be used: going by the wall clock", file=str(path), error=str(error))
        return None
