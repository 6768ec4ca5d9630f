"""What is known of the parts this node committed: digests at their edges, and the indexes of chunk parts.

It saves reading back what was just written. Everything in it can be read from the store's part headers, and is, after a
restart. Memory: a PartIndex per chunk (about 24 bytes per 64 KiB of data), three digests at most for the bundle parts
of a segment, one digest at the commit offset, and one at the end of each range in flight.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.formats.bucket.part import PartIndex
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.model.ids import SegmentKey


class SegmentLedger:
    """One segment's."""

    __slots__ = ("digests", "indexes")

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}
        self.indexes: dict[int, PartIndex] = {}


class PartLedger:
    """All unfinished segments' of this node."""

    def __init__(self) -> None:
        self._segments: dict[SegmentKey, SegmentLedger] = {}

    def digest_at(self, key: SegmentKey, offset: int) -> bytes | None:
        """The segment's digest at a part's edge; None when it must be read."""
        if offset == key.base_offset:
            return EMPTY_DIGEST
        known = self._segments.get(key)
        return known.digests.get(offset) if known else None

    def index_at(self, key: SegmentKey, base_offset: int, end_offset: int) -> PartIndex | None:
        """The index of the chunk part with these edges; None when it must be read."""
        known = self._segments.get(key)
        found = known.indexes.get(base_offset) if known else None
        return found if found is not None and found.header.end_offset == end_offset else None

    def note_digest(self, key: SegmentKey, offset: int, digest: bytes) -> None:
        self._of(key).digests[offset] = digest

    def note_index(self, key: SegmentKey, index: PartIndex) -> None:
        self._of(key).indexes[index.header.base_offset] = index

    def keep_digests(self, key: SegmentKey, offsets: Iterable[int], commit_offset: int) -> None:
        """Forget all digests of a segment but those at these offsets, and at and above the commit offset: ranges in
        flight end there."""
        known = self._segments.get(key)
        if known is not None:
            kept = set(offsets)
            known.digests = {at: digest for at, digest in known.digests.items() if at in kept or at >= commit_offset}

    def forget(self, key: SegmentKey) -> None:
        self._segments.pop(key, None)

    def clear(self) -> None:
        """Another writer may have moved parts: read again what is needed."""
        self._segments.clear()

    def _of(self, key: SegmentKey) -> SegmentLedger:
        known = self._segments.get(key)
        if known is None:
            known = self._segments[key] = SegmentLedger()
        return known
