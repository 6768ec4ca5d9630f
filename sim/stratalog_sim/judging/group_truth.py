"""What is true of groups, and which answers their members may get: part of the judge.

A commit has a number, and a place in the group log where the judge saw it decided. A member may only learn of commits
in that log, and of none older than the newest one that had been acknowledged when the member asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.model.groups.group import CommittedOffset
from stratalog.model.ids import ShardKey
from stratalog_sim.broken import Broken
from stratalog_sim.environment.disk import Batch
from stratalog_sim.environment.group_entries import OffsetEntry

GroupShard = tuple[str, ShardKey]
"""Of a group's offset."""


@dataclass(slots=True)
class GroupTruth:
    positions: dict[int, int] = field(default_factory=dict)
    """By number of a commit: where in the group log it is decided; -1: it was, and is owed no more."""
    floors: dict[GroupShard, int] = field(default_factory=dict)
    """The position of the newest commit that a member has learned of."""
    readers: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """By group, generation and shard: the member that reads the shard."""
    last_number: int = 0
    losses: int = 0
    checks: int = 0

    def next_number(self) -> int:
        self.last_number += 1
        return self.last_number

    # The log --------------------------------------------------------------------------------------------------------
    def decided(self, batch: Batch) -> None:
        for at, entry in enumerate(batch.entries):
            if isinstance(entry, OffsetEntry):
                number = int(entry.committed.metadata)
                if not entry.is_restated or number not in self.positions:
                    self.positions[number] = batch.base_offset + at

    def excused(self, batch: Batch) -> None:
        """The batch is owed no more, nor is any answer that rested on it."""
        self.losses += 1
        self.readers.clear()
        for entry in batch.entries:
            if isinstance(entry, OffsetEntry):
                self.positions[int(entry.committed.metadata)] = -1
                self.floors.pop((entry.group_id, entry.shard), None)
        for one, floor in list(self.floors.items()):
            if floor >= batch.base_offset:
                del self.floors[one]

    # Answers to members ---------------------------------------------------------------------------------------------
    def floor(self, one: GroupShard) -> int:
        """-1: no member has learned of a commit."""
        return self.floors.get(one, -1)

    def acknowledged(self, one: GroupShard, number: int) -> None:
        self.checks += 1
        if number not in self.positions:
            raise Broken("a commit is announced only once it is durable", f"commit {number} of {one[0]}")
        self._told(one, number)

    def shown(self, one: GroupShard, committed: CommittedOffset | None, floor: int, losses: int) -> None:
        """A coordinator says that this is committed. `floor`, `losses`: when it was asked."""
        self.checks += 1
        if losses != self.losses:
            return
        if committed is None:
            if floor >= 0:
                raise Broken("no committed offset is lost", f"{one[0]} has none of shard {one[1].shard}")
            return
        number = int(committed.metadata)
        if number not in self.positions:
            raise Broken("a coordinator shows only durable commits", f"commit {number} of {one[0]}")
        if self.positions[number] < floor:
            detail = f"{one[0]} is shown commit {number} at {self.positions[number]}, {floor} had been told"
            raise Broken("no committed offset is lost", detail)
        self._told(one, number)

    def _told(self, one: GroupShard, number: int) -> None:
        self.floors[one] = max(self.floor(one), self.positions[number])

    def assigned(self, group_id: str, generation: int, member_id: str, shards: tuple[int, ...]) -> None:
        self.checks += 1
        for shard in shards:
            reader = self.readers.setdefault((group_id, generation, shard), member_id)
            if reader != member_id:
                raise Broken(
                    "a shard has one reader in a generation",
                    f"{member_id} and {reader} read shard {shard} in generation {generation} of {group_id}",
                )
