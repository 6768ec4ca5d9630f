"""Commands that change thousands of records run in steps, and are still atomic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from stratalog.machines.table.records import TableHeader
from stratalog.machines.table.shard_table import Applied, ShardTable
from stratalog.machines.table.state import RECORDS_PER_STEP
from stratalog.model.commands import table_commands
from stratalog.model.errors import Conflict
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import NodeInfo, PartCommit, PartReplacement
from stratalog.model.segment import RemotePart, Segment
from support.table_stories import state_of

TOPIC, OTHER = UUID(int=1), UUID(int=2)
COUNT = 2_000


@pytest.fixture
def table() -> ShardTable:
    """A topic of one shard with `COUNT` segments that ended and an active one."""
    table = ShardTable.empty(TableHeader("cluster", 0, 1))
    table.apply(table_commands.RegisterNode(NodeInfo(1, "disk", "localhost", 1)), 1, TOPIC)
    table.apply(table_commands.CreateTopic("long", 1, 1, {}), 1, TOPIC)
    for epoch in range(COUNT):
        table.apply(table_commands.RollSegment(SegmentKey(TOPIC, 0, epoch, epoch), epoch + 1), 1, OTHER)
    return table


def steps_of(table: ShardTable, command: table_commands.TableCommand) -> tuple[int, Applied[Any]]:
    steps = table.apply_in_steps(command, 2, OTHER)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return count, done.value
        count += 1


@pytest.mark.fault("command-changes-thousands-records")
def test_large_commands_go_in_steps_and_small_ones_in_one(table: ShardTable) -> None:
    deletion = table_commands.AdvanceLogStart(ShardKey(TOPIC, 0), COUNT)
    gone = tuple(SegmentKey(TOPIC, 0, epoch, epoch) for epoch in range(COUNT))
    for command in (
        deletion,
        table_commands.PurgeSegments(gone),
        table_commands.CreateTopic("wide", COUNT, 1, {}),
        table_commands.AddShards(OTHER, 2 * COUNT),
        table_commands.DeleteTopic(OTHER),
    ):
        assert steps_of(table, command)[0] >= COUNT // RECORDS_PER_STEP, command
    for command in (deletion, table_commands.CreateTopic("small", 100, 1, {}), table_commands.DeleteTopic(OTHER)):
        assert steps_of(table, command)[0] == 0, command
    table.check_invariants()


def test_a_bundle_of_many_parts_is_one_command_in_steps(table: ShardTable) -> None:
    lock = table.apply(table_commands.AcquireLock("tier/1", "node-1/1", 1_000), 2, OTHER).result
    _, made = steps_of(table, table_commands.CreateTopic("wide", COUNT, 1, {}))
    commits = tuple(
        PartCommit(SegmentKey(made.result.topic_id, shard, 0, 0), -1, RemotePart(f"{shard}", 0, 1, 0, 5))
        for shard in range(COUNT)
    )
    count, applied = steps_of(table, table_commands.CommitParts(lock, commits))
    assert count >= COUNT // RECORDS_PER_STEP
    assert all(isinstance(outcome, Segment) for outcome in applied.result)
    assert len(applied.change_set.changes if applied.change_set else ()) == COUNT, "watchers see all of it, or nothing"
    moves = tuple(
        PartReplacement(commit.segment, (commit.part,), (replace(commit.part, object_key="new"),)) for commit in commits
    )
    assert steps_of(table, table_commands.ReplaceParts(lock, moves))[0] >= COUNT // RECORDS_PER_STEP
    table.check_invariants()


@pytest.mark.fault("command-changes-thousands-records")
def test_a_command_given_up_between_two_steps_leaves_no_trace(table: ShardTable) -> None:
    before = state_of(table)
    for command in (
        table_commands.AdvanceLogStart(ShardKey(TOPIC, 0), COUNT),
        table_commands.CreateTopic("wide", COUNT, 1, {}),
        table_commands.DeleteTopic(TOPIC),
    ):
        steps = table.apply_in_steps(command, 2, OTHER)
        for _ in range(3):
            next(steps)
        steps.close()
        assert state_of(table) == before, command
    table.check_invariants()


def test_a_command_refused_after_some_steps_leaves_no_trace(table: ShardTable) -> None:
    table.apply(table_commands.AdvanceLogStart(ShardKey(TOPIC, 0), COUNT - 1), 2, OTHER)
    before = state_of(table)
    keys = tuple(SegmentKey(TOPIC, 0, epoch, epoch) for epoch in range(COUNT))
    with pytest.raises(Conflict):
        steps_of(table, table_commands.PurgeSegments(keys))
    assert state_of(table) == before


def test_a_large_command_can_be_undone(table: ShardTable) -> None:
    before = state_of(table)
    _, applied = steps_of(table, table_commands.AdvanceLogStart(ShardKey(TOPIC, 0), COUNT))
    table.undo(applied)
    assert state_of(table) == before
