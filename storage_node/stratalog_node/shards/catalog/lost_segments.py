"""Decides which sealed segments have no readable copy left, so that groups can skip what was in them, and shards can
continue without their producer tables.

Skipping is final: a snapshot of the groups moves the start of the log behind the segment, and a retry of a producer
counts as new. So a live replica that is not listed as a holder gets time first: after its start it checks its copy
before it reports it.
Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_node.shards.catalog.catalog import Catalog

PATIENCE_MS: Final = 60_000


class LostSegments:
    """Callers ask repeatedly while they wait for a segment."""

    def __init__(self, catalog: Catalog, seems_lost: Callable[[Segment], bool], steady_ms: Callable[[], int]) -> None:
        """`seems_lost`: by the catalog, whoever lives."""
        self._catalog = catalog
        self._seems_lost = seems_lost
        self._steady_ms = steady_ms
        self._since: dict[SegmentKey, tuple[int, frozenset[tuple[int, int]]]] = {}
        """For each segment that seems lost while live replicas may still report a copy: since when, and their lives. A
        replica with a new life gets the time again."""

    def __call__(self, segment: Segment) -> bool:
        key = segment.key
        if not self._seems_lost(segment):
            self._since.pop(key, None)
            return False
        living = frozenset(self._lives(segment))
        if not living:
            return True
        now_ms = self._steady_ms()
        since_ms, known = self._since.get(key, (now_ms, living))
        self._since[key] = since_ms, _ = (since_ms if living <= known else now_ms), living
        return now_ms - since_ms >= PATIENCE_MS

    def _lives(self, segment: Segment) -> Iterator[tuple[int, int]]:
        for node_id in segment.replicas:
            if node_id not in segment.local_nodes and self._catalog.is_alive(node_id):
                node = self._catalog.node(node_id)
                yield node_id, node.epoch if node is not None else 0
