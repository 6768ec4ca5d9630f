"""What a batch of the group log says, without bytes, and the groups that a log of such entries leaves.

Snapshots are not simulated: the log goes back to its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from stratalog.model.group import CommittedOffset, GroupRecord, MemberRecord
from stratalog.model.ids import ShardKey


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    group_id: str
    shard: ShardKey
    committed: CommittedOffset


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
class NothingEntry:
    """A coordinator took the shard over, or wanted to know whether it still may write."""


LogEntry: TypeAlias = OffsetEntry | GroupEntry | MemberEntry | NothingEntry


@dataclass(slots=True)
class ReplayedGroup:
    record: GroupRecord | None = None
    offsets: dict[ShardKey, CommittedOffset] = field(default_factory=dict)


def apply(groups: dict[str, ReplayedGroup], entry: LogEntry) -> None:
    """The last word on a key holds."""
    match entry:
        case OffsetEntry(group_id, shard, committed):
            groups.setdefault(group_id, ReplayedGroup()).offsets[shard] = committed
        case GroupEntry(group_id, record):
            groups.setdefault(group_id, ReplayedGroup()).record = record
        case MemberEntry(group_id, generation, member):
            known = groups.get(group_id)
            if known is not None and known.record is not None and known.record.generation == generation:
                known.record = known.record.with_returned(member)
        case NothingEntry():
            pass
