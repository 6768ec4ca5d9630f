"""A node that leads thousands of shards dies: one command, in steps, that is durable by one redo record."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.machines.table.records import PutNode, PutSegmentHead, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import CreateTopic, NoteLives, RegisterNode
from stratalog.model.metadata import Life, NodeInfo, SegmentChanged
from stratalog.stored import encoding
from stratalog_meta.stores.etcd.layout import MAX_OPERATIONS
from stratalog_meta.stores.etcd.redo import write_down
from stratalog_meta.stores.etcd.split import Large, chunks, split

SHARDS = 10_000
NODES = 3


def a_cluster() -> ShardTable:
    table = ShardTable.empty(TableHeader("cluster", 0, 1))
    for number in range(1, NODES + 1):
        table.apply(RegisterNode(NodeInfo(number, f"disk-{number}", "localhost", number)), 1, UUID(int=number))
    table.apply(CreateTopic("wide", SHARDS, NODES, {}), 1, UUID(int=9))
    return table


@pytest.mark.fault("node-leads-thousands-shards")
def test_its_death_writes_what_it_led_and_nothing_else_and_others_are_served_meanwhile() -> None:
    table = a_cluster()
    led = sum(shard.segments[-1].leader == 1 for shard in table.snapshot().shards)
    assert SHARDS // NODES <= led <= SHARDS // NODES + 1
    steps, pauses = table.apply_in_steps(NoteLives(lost=(Life(1, 1),)), 2, UUID(int=10)), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            applied = done.value
            break
        pauses += 1
    heads = [write for write in applied.writes if isinstance(write, PutSegmentHead)]
    assert len(heads) == led and len([write for write in applied.writes if isinstance(write, PutNode)]) == 1
    assert len(applied.writes) <= led + 3
    assert pauses >= led // 256, "between two steps the loop is others'"
    assert applied.change_set is not None
    assert sum(isinstance(change, SegmentChanged) for change in applied.change_set.changes) == led
    (step,) = split([list(encoding.encode(applied.writes))], set())
    assert isinstance(step, Large)
    written = write_down(step.operations)
    assert len(written.parts) <= 2
    assert len(list(chunks(step.operations))) <= led // MAX_OPERATIONS + 2
    assert table.apply(NoteLives(lost=(Life(1, 1),)), 3, UUID(int=11)).writes == (), "said again it costs nothing"


@pytest.mark.fault("node-leads-thousands-shards")
def test_one_that_comes_back_and_is_lost_again_led_nothing_meanwhile() -> None:
    table = a_cluster()
    table.apply(NoteLives(lost=(Life(1, 1),)), 2, UUID(int=10))
    for now_ms in range(3, 9, 2):
        heard = table.apply(NoteLives(heard=(Life(1, 1),)), now_ms, UUID(int=now_ms))
        lost = table.apply(NoteLives(lost=(Life(1, 1),)), now_ms + 1, UUID(int=now_ms + 1))
        assert len(heard.writes) <= 3 and len(lost.writes) <= 3
