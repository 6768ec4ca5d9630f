"""Bugs of coordinators of groups."""

from __future__ import annotations

import asyncio
from typing import Any

from stratalog.machines.groups.group_events import GroupPersisted, PersistGroup
from stratalog.model.groups.group import GroupError
from stratalog_node.groups.coordinator_validity import CoordinatorValidity
from stratalog_node.groups.hosted import entry_of
from stratalog_node.groups.hosting import GroupHosting
from stratalog_node.groups.log import GroupLog
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.offsets import OffsetKeeper
from stratalog_node.groups.replay import Replay
from stratalog_node.groups.snapshot import SnapshotInProgress
from stratalog_sim.planting import Patch


def commit_announced_before_it_is_durable() -> list[Patch]:
    """A coordinator answers, and writes then."""

    async def in_time(self: OffsetKeeper, outcome: Any) -> GroupError:
        return GroupError.NONE

    return [(OffsetKeeper, "in_time", in_time), *committed_offset_shown_before_it_is_durable()]


def committed_offset_shown_before_it_is_durable() -> list[Patch]:
    """A coordinator shows a commit before its log has it."""
    write = OffsetKeeper.write

    def write_and_show(self: OffsetKeeper, hosted: Any, changes: Any, pairs: Any) -> Any:
        self._take_over(hosted, changes)
        return write(self, hosted, changes, pairs)

    return [(OffsetKeeper, "write", write_and_show)]


def answers_after_it_lost_the_shard() -> list[Patch]:
    """A node that once coordinated a group continues to do so, even after it lost the shard of the group."""

    def is_sure(self: CoordinatorValidity, shard: Any) -> bool:
        return True

    def unload(self: GroupHosting, index: int) -> None:
        return None

    return [(CoordinatorValidity, "is_sure", is_sure), (GroupHosting, "unload", unload)]


def coordinates_before_its_log_is_read() -> list[Patch]:
    """A coordinator begins with what it finds at once."""

    async def load(self: GroupLog, node_id: int) -> Replay:
        return Replay(self._view.log_start_offset)

    return [(GroupLog, "load", load)]


def assignment_announced_before_it_is_durable() -> list[Patch]:
    """Members hear what is theirs before the log has it, so a successor gives the same generation out again."""
    persist = Membership._persist

    def _persist(self: Membership, hosted: Any, effect: Any) -> None:
        if not isinstance(effect, PersistGroup):
            persist(self, hosted, effect)
            return
        record, ticket = effect.record, effect.ticket
        entry = entry_of(hosted.group_id, record, self._wall_ms())
        self._write(hosted, entry, lambda _: record, lambda _: None)
        asyncio.get_running_loop().call_soon(self.step, hosted, GroupPersisted(ticket))

    return [(Membership, "_persist", _persist)]


def trimmed_before_the_snapshot_is_whole() -> list[Patch]:
    """What lies below a snapshot goes as soon as it has begun."""
    appended = SnapshotInProgress.appended

    def appended_as_whole(self: SnapshotInProgress, base_offset: int, entry_count: int) -> None:
        appended(self, base_offset, entry_count)
        self.is_complete = True

    return [(SnapshotInProgress, "appended", appended_as_whole)]
