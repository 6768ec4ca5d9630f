"""Notifies listeners, such as the uploader, of what happens to this node's shards.

Lives on the event loop. Listeners are called there one after another; if one fails, the others are still called.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.shards.copies.shard_view import ShardView

log = logger(__name__)


class ShardEvents:
    def __init__(self) -> None:
        self._committed: list[Callable[[ShardView], None]] = []
        self._segment_changed: list[Callable[[ShardView, Segment], None]] = []

    def on_committed(self, listener: Callable[[ShardView], None]) -> None:
        """Call `listener` whenever a shard has more to upload: its min(HW, LSO) moved, or its Direct segment was
        written. At most twice per shard and turn."""
        self._committed.append(listener)

    def on_segment_changed(self, listener: Callable[[ShardView, Segment], None]) -> None:
        """Call `listener` when a segment of this node sealed, was deleted, changed its remote copy, or when its local
        copy came or went."""
        self._segment_changed.append(listener)

    def committed(self, shard: ShardView) -> None:
        for listener in self._committed:
            try:
                listener(shard)
            except Exception:  # the other listeners must still be called (F48)
                log.error("a listener failed", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)

    def segment_changed(self, shard: ShardView, segment: Segment) -> None:
        for listener in self._segment_changed:
            listener(shard, segment)
