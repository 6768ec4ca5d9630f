"""Which objects of a topic must be restored before its records can be read again, and how much that is. Pure.

By the names of objects alone: metadata and manifests may be archived as well. Bundles have parts of many topics, and
are small: each that is archived belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from stratalog.formats.bucket.object_names import BundleName, ObjectNames, SegmentObjectName
from stratalog.objects.bucket_classes import ClassedObject, Restore

_GIB: Final = 1 << 30
_PER_REQUESTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class WantedRange:
    """What is to be read: offsets `[from_offset, to_offset)` of a topic, of some of its shards or of all."""

    topic_id: UUID
    shards: frozenset[int] = frozenset()
    """All of them when it is empty."""
    from_offset: int = 0
    to_offset: int | None = None

    def needs(self, names: ObjectNames, key: str) -> bool:
        match names.parse(key):
            case BundleName():
                return True
            case SegmentObjectName(segment=segment, from_offset=start, to_offset=end):
                is_shard = segment.topic_id == self.topic_id and (not self.shards or segment.shard in self.shards)
                is_below = self.to_offset is not None and start >= self.to_offset
                return is_shard and not is_below and end > self.from_offset
            case _:
                return False


@dataclass(slots=True)
class Amount:
    objects: int = 0
    bytes: int = 0

    def add(self, size_bytes: int) -> None:
        self.objects += 1
        self.bytes += size_bytes


@dataclass(slots=True)
class RestorePlan:
    to_ask: list[ClassedObject] = field(default_factory=list)
    """Archived, and no restore was asked for yet."""
    amounts: dict[tuple[str, str], Amount] = field(default_factory=dict)
    """By class, and `readable`, or how far its restore is."""

    @property
    def bytes_to_ask(self) -> int:
        return sum(one.size_bytes for one in self.to_ask)

    @property
    def is_readable(self) -> bool:
        """All of it, now. False where there is none: that is another bucket, or nothing was uploaded."""
        return bool(self.amounts) and all(state in (READABLE, Restore.DONE) for _, state in self.amounts)


READABLE: Final = "readable"


def plan_restore(names: ObjectNames, wanted: WantedRange, found: Iterable[ClassedObject]) -> RestorePlan:
    plan = RestorePlan()
    for one in found:
        if not wanted.needs(names, one.key):
            continue
        state = one.restore.value if one.is_archived else READABLE
        plan.amounts.setdefault((one.storage_class, state), Amount()).add(one.size_bytes)
        if one.is_archived and one.restore is Restore.NONE:
            plan.to_ask.append(one)
    return plan


def price_of(plan: RestorePlan, per_gib: float, per_1000: float) -> float:
    """Of the restores that are to be asked for, in the money of the prices."""
    return plan.bytes_to_ask / _GIB * per_gib + len(plan.to_ask) / _PER_REQUESTS * per_1000
