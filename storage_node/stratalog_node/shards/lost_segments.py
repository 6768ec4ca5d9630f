"""What nobody has any more of segments, so that groups go on without what lay in them, and shards without their tables
of producers.

What is passed over is let go of: a snapshot of the groups makes the log begin behind it, and a repetition of what a
producer wrote is new. So a replica that lives and is not listed as a holder gets time first: one that came back a
moment ago reads its copy before it tells of it.
Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_node.shards.catalog import Catalog

PATIENCE_MS: Final = 60_000


class LostSegments:
    """Asked again and again for as long as somebody waits for a segment."""

    def __init__(self, catalog: Catalog, seems_lost: Callable[[Segment], bool], steady_ms: Callable[[], int]) -> None:
        """`seems_lost`: by the catalog, whoever lives."""
        self._catalog = catalog
        self._seems_lost = seems_lost
        self._steady_ms = steady_ms
        self._since: dict[SegmentKey, int] = {}
        """Of each that seems to be lost while a replica lives that may tell of a copy."""

    def __call__(self, segment: Segment) -> bool:
        key = segment.key
        if not self._seems_lost(segment):
            self._since.pop(key, None)
            return False
        if not any(self._catalog.is_alive(one) for one in segment.replicas if one not in segment.local_nodes):
            return True
        now_ms = self._steady_ms()
        return now_ms - self._since.setdefault(key, now_ms) >= PATIENCE_MS
