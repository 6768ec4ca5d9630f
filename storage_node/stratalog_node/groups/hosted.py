"""The groups of one shard of the group log, as this node holds them.

Each group has two states: the machine is what members see; `durable` and `offsets` are what the log holds, and change
only when an append was acknowledged. Snapshots are made of the second.
Thread: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import Enum

from stratalog.formats.groups.group_log import ConsumersEntry, GroupEntry, LogEntry, OffsetEntry
from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.group import Group
from stratalog.model.groups.consumer_group import ConsumerGroupRecord
from stratalog.model.groups.group import CommittedOffset, GroupError, GroupRecord
from stratalog.model.ids import ShardKey
from stratalog_node.groups.log import GroupLog
from stratalog_node.groups.snapshot import LiveKey
from stratalog_node.groups.stats import GroupStats


class HostedGroup:
    """One group: its machine, its offsets, and what of it is durable."""

    __slots__ = (
        "changed_ms",
        "counted_bytes",
        "durable",
        "is_doubtful",
        "is_leaving",
        "machine",
        "offset_bytes",
        "offsets",
        "shard",
        "timer",
        "writes",
        "writing",
    )

    def __init__(self, shard: GroupShard, machine: Group | ConsumerGroup) -> None:
        self.shard = shard
        self.machine = machine
        self.offsets: dict[ShardKey, CommittedOffset] = {}
        self.offset_bytes = 0
        """What they take in memory."""
        self.counted_bytes = 0
        """What the group's membership was last counted as taking."""
        self.writing: dict[ShardKey, int] = {}
        """Offsets with writes that are not answered yet, and how many: nothing else is decided about them."""
        self.durable: GroupRecord | ConsumerGroupRecord | None = None
        self.changed_ms = -1
        """Wall time of the last durable change; for an empty group since when it is empty."""
        self.is_leaving = False
        """Its deletion is being written, or the group itself after a failed deletion: other requests try again
        later."""
        self.is_doubtful = False
        """Its deletion failed and may be in the log nevertheless: the group is not used before it is rewritten."""
        self.writes = 0
        """Requests at work on it whose submissions to the log are not answered yet."""
        self.timer: int | None = None
        """Its place among the deadlines; only `deadlines` touches it."""

    @property
    def group_id(self) -> str:
        return self.machine.group_id

    @property
    def member_count(self) -> int:
        machine = self.machine
        members = machine.members_by_id if isinstance(machine, ConsumerGroup) else machine.members
        return sum(1 for _ in members)

    @property
    def is_present(self) -> bool:
        """It is the group of its name on this node."""
        return self.shard.groups.get(self.group_id) is self

    @property
    def absence(self) -> GroupError | None:
        """Why a request that found the group earlier must not continue with it; None if it may."""
        if self.shard.state is ShardState.CLOSED:
            return GroupError.NOT_COORDINATOR
        is_away = self.is_leaving or self.is_doubtful or not self.is_present
        return GroupError.COORDINATOR_LOAD_IN_PROGRESS if is_away else None

    @property
    def is_recorded(self) -> bool:
        """For an empty group: the log says so too. If not (an append failed), `changed_ms` is of an older state."""
        if self.durable is None:
            return self.machine.generation == 0
        return self.durable.generation == self.machine.generation and not self.durable.members

    @property
    def is_forgettable(self) -> bool:
        """Nothing is known of it but its name."""
        return self.machine.is_blank and not self.offsets and self.durable is None and self.writes == 0


class ShardState(Enum):
    LOADING = "loading"
    READY = "ready"
    CLOSED = "closed"


class GroupShard:
    """The groups whose log is one shard of the internal topic; the log's live state."""

    __slots__ = ("_stats", "groups", "index", "log", "news", "proven_ms", "proving", "state")

    def __init__(self, index: int, stats: GroupStats) -> None:
        self.index = index
        self._stats = stats
        self.state = ShardState.LOADING
        self.groups: dict[str, HostedGroup] = {}
        self.log: GroupLog | None = None
        self.news = asyncio.Event()
        """Something of the shard changed: what could not be read may be readable."""
        self.proven_ms = -(1 << 62)
        """When the newest append began that was made to see whether this node still leads (`standing`)."""
        self.proving: asyncio.Future[None] | None = None

    def add(self, hosted: HostedGroup) -> None:
        self.groups[hosted.group_id] = hosted
        self._stats.hosted += 1

    def forget(self, hosted: HostedGroup) -> None:
        """Drop the group; what of it is in the log the caller has seen to."""
        if self.groups.get(hosted.group_id) is hosted:
            del self.groups[hosted.group_id]
            self._stats.hosted -= 1

    def live_keys(self) -> Iterator[LiveKey]:
        """What is alive now, looked up as it is asked for: what comes meanwhile may be there or not."""
        for group_id in list(self.groups):
            hosted = self.groups.get(group_id)
            if hosted is None:
                continue
            if hosted.durable is not None:
                yield group_id, None
            for shard in list(hosted.offsets):
                yield group_id, shard

    def live_entry(self, key: LiveKey) -> LogEntry | None:
        group_id, shard = key
        hosted = self.groups.get(group_id)
        if hosted is None:
            return None
        if shard is not None:
            committed = hosted.offsets.get(shard)
            return None if committed is None else OffsetEntry(group_id, shard, committed)
        return None if hosted.durable is None else entry_of(group_id, hosted.durable, hosted.changed_ms)


def entry_of(group_id: str, record: GroupRecord | ConsumerGroupRecord, changed_ms: int) -> GroupEntry | ConsumersEntry:
    """The log entry that states the whole group."""
    if isinstance(record, ConsumerGroupRecord):
        return ConsumersEntry(group_id, record, changed_ms)
    return GroupEntry(group_id, record, changed_ms)
