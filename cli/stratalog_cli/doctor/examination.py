"""What `doctor` finds: findings, and how much was looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from stratalog.admin_api.models import Finding
from stratalog.machines.reading.bucket_reads import BucketReads
from stratalog.machines.table.records import NodeEntry, ShardRow, StoredRecord, TableHeader
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Lock
from stratalog.model.segment import Segment, SegmentIdentity
from stratalog.model.topic import Topic

Step = Callable[[str], None]
"""Called with what is looked at next."""


@dataclass(slots=True)
class Examination:
    place: str
    step: Step
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    objects: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    """What a bucket is set to do, or how a listener answers, in words."""
    is_listener: bool = False
    batch_bytes: int = 0
    """Bytes of batches that passed every check."""
    why_unchecked: str | None = None
    """Why nothing could be checked: there is no such bucket, or these credentials may not use it."""

    def error(self, place: str, what: str, next_step: str) -> None:
        self.findings.append(Finding(severity="error", place=place, what=what, next_step=next_step))

    def warn(self, place: str, what: str, next_step: str) -> None:
        self.findings.append(Finding(severity="warning", place=place, what=what, next_step=next_step))

    def hint(self, place: str, what: str, next_step: str) -> None:
        self.findings.append(Finding(severity="hint", place=place, what=what, next_step=next_step))

    @property
    def errors(self) -> int:
        return self._count("error")

    @property
    def warnings(self) -> int:
        return self._count("warning")

    @property
    def hints(self) -> int:
        return self._count("hint")

    def _count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


class Metadata:
    """The meta store's records by key, as doctor asks for them."""

    def __init__(self, records: Sequence[StoredRecord]) -> None:
        self.header: TableHeader | None = next((r for r in records if isinstance(r, TableHeader)), None)
        self.topics: dict[UUID, Topic] = {r.topic_id: r for r in records if isinstance(r, Topic)}
        self.segments: dict[SegmentKey, Segment] = {r.key: r for r in records if isinstance(r, Segment)}
        self.log_start: dict[ShardKey, int] = {r.key: r.log_start_offset for r in records if isinstance(r, ShardRow)}
        nodes = [r.node for r in records if isinstance(r, NodeEntry)]
        self.bucket = BucketReads(nodes)
        """Topics whose readers are served from the object store."""
        locks = [r for r in records if isinstance(r, Lock)]
        self.holders: frozenset[str] = frozenset(h for lock in locks for h in (lock.holder, *lock.earlier) if h)
        """Present and former holders of write locks."""
        self._last_epoch: dict[ShardKey, int] = {}
        for key in self.segments:
            self._last_epoch[key.shard_key] = max(key.epoch, self._last_epoch.get(key.shard_key, -1))

    def last_epoch(self, shard: ShardKey) -> int:
        """The epoch of the shard's newest segment; -1 for a shard that is unknown."""
        return self._last_epoch.get(shard, -1)

    def identity(self, key: SegmentKey) -> SegmentIdentity | None:
        """What the segment's file must say about itself; None when its topic is gone."""
        topic = self.topics.get(key.topic_id)
        if topic is None or self.header is None:
            return None
        return SegmentIdentity(
            self.header.cluster_id, key.topic_id, topic.name, key.shard, key.epoch, key.base_offset, 0
        )
