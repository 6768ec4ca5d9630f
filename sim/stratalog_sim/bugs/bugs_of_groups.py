"""Deliberate bugs of the coordinators of groups: see `bugs.py`."""

from __future__ import annotations

from typing import Any

from stratalog.machines.groups.group_events import GroupPersisted
from stratalog.model.groups.group import CommittedOffset, GroupError
from stratalog_sim.environment.process import Sleep, Task
from stratalog_sim.node.coordinator import Coordinators, GroupShard
from stratalog_sim.node.group_snapshot import GroupSnapshot
from stratalog_sim.planting import Patch


def commit_announced_before_it_is_durable() -> list[Patch]:
    """A coordinator answers, and writes then."""
    commit = GroupShard._commit

    def _commit(self: GroupShard, sender: str, request: Any, hosted: Any, ask: Any) -> None:
        commit(self, sender, request, hosted, ask)
        committed = CommittedOffset(ask.offset, -1, str(ask.number), 0)
        if hosted.machine.commit_error(ask.member_id, None, ask.generation, 0) is GroupError.NONE:
            hosted.offsets[ask.shard] = committed
            self._node.reply(sender, request, GroupError.NONE)

    return [(GroupShard, "_commit", _commit)]


def answers_after_it_lost_the_shard() -> list[Patch]:
    """A node that once coordinated a group continues to do so, even after it lost the shard of the group."""
    look = Coordinators.look

    def look_once(self: Coordinators) -> None:
        if not self.shards:
            look(self)

    def is_sure(self: GroupShard) -> bool:
        return True

    return [(Coordinators, "look", look_once), (GroupShard, "is_sure", is_sure)]


def coordinates_before_it_has_read() -> list[Patch]:
    """A coordinator begins with what it finds at once."""

    def load(self: GroupShard) -> Task:
        self._take_over({})
        yield Sleep(1)

    return [(GroupShard, "load", load)]


def committed_offset_shown_before_it_is_durable() -> list[Patch]:
    """A coordinator remembers a commit before its log has it."""
    commit = GroupShard._commit

    def _commit(self: GroupShard, sender: str, request: Any, hosted: Any, ask: Any) -> None:
        commit(self, sender, request, hosted, ask)
        hosted.offsets[ask.shard] = CommittedOffset(ask.offset, -1, str(ask.number), 0)

    return [(GroupShard, "_commit", _commit)]


def assignment_announced_before_it_is_durable() -> list[Patch]:
    """Members hear what is theirs before the log has it, so a successor gives the same generation out again."""

    def _persist(self: GroupShard, hosted: Any, ticket: int, entry: Any) -> None:
        self._node.scheduler.after(0, self._node, self.step, hosted, GroupPersisted(ticket))
        self.submit(entry, lambda _: None)

    return [(GroupShard, "_persist", _persist)]


def trimmed_before_the_snapshot_is_whole() -> list[Patch]:
    """What lies below a snapshot goes as soon as it has begun."""

    def appended(self: GroupSnapshot, base_offset: int, entries: int) -> None:
        go_on(self, base_offset, entries)
        self.is_complete = True

    go_on = GroupSnapshot.appended
    return [(GroupSnapshot, "appended", appended)]
