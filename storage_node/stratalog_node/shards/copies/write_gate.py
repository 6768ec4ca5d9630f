"""Whether this node accepts new data at all, and how it handles failed writes.

Created before the shards, which query it, and before the space guard, which closes and opens it
(`shards/flush/space.py`). Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.shards.copies.stats import ShardStats
from stratalog_node.turn import Turn

log = logger(__name__)

_TOLD_EVERY_MS = 10_000
"""A failing disk fails every write: one line in so long, with the count."""


class WriteGate:
    def __init__(self, turn: Turn, stats: ShardStats) -> None:
        self.no_room: str | None = None
        """Why the whole node takes no writes, if so (disk full, hard limit)."""
        self.copies_room_bytes: int | None = None
        """How many bytes of sealed copies may be made again here without taking the room of new data; None: no bound is
        known."""
        self._turn = turn
        self._stats = stats
        self._told_ms = -_TOLD_EVERY_MS
        self._listeners: list[Callable[[StratalogError], None]] = []

    def on_write_failure(self, listener: Callable[[StratalogError], None]) -> None:
        self._listeners.append(listener)

    def write_failed(self, topic: str, shard: int, error: StratalogError) -> None:
        self._stats.write_failures += 1
        if self._turn.now_ms - self._told_ms >= _TOLD_EVERY_MS:
            self._told_ms = self._turn.now_ms
            log.error("write failed", topic=topic, shard=shard, error=str(error), failures=self._stats.write_failures)
        for listener in self._listeners:
            listener(error)
