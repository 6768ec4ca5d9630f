"""Log lines about single shards, of which 10,000 may be in the same trouble at once: ten of them in ten seconds, and a
line that says so. `stratalog status` and the pages name each shard with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratalog.telemetry.logs import logger

_WINDOW_MS: Final = 10_000
_MOST_LINES: Final = 10

log = logger(__name__)


class ShardLines:
    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self._since_ms: int | None = None
        self._asked = 0
        """How many lines were asked for since then."""

    def warn(self, event: str, **fields: object) -> None:
        now_ms = self._steady_ms()
        if self._since_ms is None or now_ms - self._since_ms >= _WINDOW_MS:
            self._since_ms, self._asked = now_ms, 0
        self._asked += 1
        if self._asked <= _MOST_LINES:
            log.warning(event, **fields)
        elif self._asked == _MOST_LINES + 1:
            log.warning("further lines about shards are left out: `stratalog status` names each shard")
