"""What a batch of the group log says, without bytes, and the groups that a log of such entries leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from stratalog.model.groups.group import CommittedOffset, GroupRecord, MemberRecord
from stratalog.model.ids import ShardKey


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    group_id: str
    shard: ShardKey
    committed: CommittedOffset
    is_restated: bool = False
    """By a snapshot."""


@dataclass(frozen=True, slots=True)
class GroupEntry:
    group_id: str
    record: GroupRecord


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """A static member came back under a new id, in this generation."""

    group_id: str
    generation: int
    member: MemberRecord


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """A coordinator took the shard over."""


@dataclass(frozen=True, slots=True)
class NothingEntry:
    """A coordinator wanted to know whether it still may write."""


@dataclass(frozen=True, slots=True)
class SnapshotBegunEntry:
    number: int


@dataclass(frozen=True, slots=True)
class SnapshotEndedEntry:
    """So many entries lie between the marks."""

    number: int
    count: int


LogEntry: TypeAlias = (
    OffsetEntry | GroupEntry | MemberEntry | NothingEntry | OpenedEntry | SnapshotBegunEntry | SnapshotEndedEntry
)


@dataclass(slots=True)
class ReplayedGroup:
    record: GroupRecord | None = None
    offsets: dict[ShardKey, CommittedOffset] = field(default_factory=dict)


class ReplayedLog:
    """What the log leaves. It begins complete at offset 0, or with a whole snapshot."""

    def __init__(self, log_start_offset: int) -> None:
        self.groups: dict[str, ReplayedGroup] = {}
        self.begins_complete = log_start_offset == 0
        self._begun: int | None = None
        self._counted = 0
        self._is_first = True

    def apply(self, entry: LogEntry) -> None:
        """The last word on a key holds."""
        self._counted += 1
        match entry:
            case OffsetEntry(group_id, shard, committed):
                self._group(group_id).offsets[shard] = committed
            case GroupEntry(group_id, record):
                self._group(group_id).record = record
            case MemberEntry(group_id, generation, member):
                known = self.groups.get(group_id)
                if known is not None and known.record is not None and known.record.generation == generation:
                    known.record = known.record.with_returned(member)
            case SnapshotBegunEntry(number):
                self._begun = number if self._is_first else None
                self._counted = 0
            case SnapshotEndedEntry(number, count):
                self.begins_complete |= number == self._begun and count == self._counted - 1
                self._begun = None
            case OpenedEntry():
                self._begun = None
            case NothingEntry():
                pass
        self._is_first = False

    def _group(self, group_id: str) -> ReplayedGroup:
        return self.groups.setdefault(group_id, ReplayedGroup())
