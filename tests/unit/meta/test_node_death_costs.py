"""A node that leads thousands of shards dies: one command, in steps, that is durable by one redo record."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest

from stratalog.machines.table.records import PutNode, PutSegmentHead, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import (
    BeginRecovery,
    CreateTopic,
    NoteLives,
    PromiseFence,
    RegisterNode,
    ReportReplica,
)
from stratalog.model.metadata import Life, NodeChanged, NodeInfo, SegmentChanged
from stratalog.model.segment import SegmentState
from stratalog.stored import encoding
from stratalog_meta.stores.etcd.layout import MAX_OPERATIONS
from stratalog_meta.stores.etcd.redo import write_down
from stratalog_meta.stores.etcd.split import Large, chunks, split
from support.meta_worlds import seal_record

SHARDS = 10_000
NODES = 3


def a_cluster(shards: int = SHARDS) -> ShardTable:
    table = ShardTable.empty(TableHeader("cluster", 0, 1))
    for number in range(1, NODES + 1):
        table.apply(RegisterNode(NodeInfo(number, f"disk-{number}", "localhost", number)), 1, UUID(int=number))
    table.apply(CreateTopic("wide", shards, NODES, {}), 1, UUID(int=9))
    return table


@pytest.mark.fault("node-leads-thousands-shards")
def test_its_death_writes_each_shard_once_and_others_are_served_meanwhile() -> None:
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
    assert len(heads) == SHARDS and len([write for write in applied.writes if isinstance(write, PutNode)]) == 1
    assert sum(write.segment.is_fenced for write in heads) == led
    assert all(write.segment.is_fenced or 1 not in write.segment.isr for write in heads), "its leader asks for nothing"
    assert len(applied.writes) <= SHARDS + 3
    assert pauses >= SHARDS // 256, "between two steps the loop is others'"
    assert applied.change_set is not None
    assert sum(isinstance(change, SegmentChanged) for change in applied.change_set.changes) == SHARDS
    assert isinstance(applied.change_set.changes[-1], NodeChanged), "behind the ISRs that it left"
    (step,) = split([list(encoding.encode(applied.writes))], set())
    assert isinstance(step, Large)
    written = write_down(step.operations)
    assert len(written.parts) <= 2
    assert len(list(chunks(step.operations))) <= SHARDS // MAX_OPERATIONS + 2
    assert table.apply(NoteLives(lost=(Life(1, 1),)), 3, UUID(int=11)).writes == (), "said again it costs nothing"


@pytest.mark.fault("node-leads-thousands-shards")
def test_one_that_comes_back_and_is_lost_again_led_nothing_meanwhile() -> None:
    table = a_cluster()
    table.apply(NoteLives(lost=(Life(1, 1),)), 2, UUID(int=10))
    for now_ms in range(3, 9, 2):
        heard = table.apply(NoteLives(heard=(Life(1, 1),)), now_ms, UUID(int=now_ms))
        lost = table.apply(NoteLives(lost=(Life(1, 1),)), now_ms + 1, UUID(int=now_ms + 1))
        assert len(heard.writes) <= 3 and len(lost.writes) <= 3


@pytest.mark.fault("node-leads-thousands-shards")
def test_each_step_of_a_recovery_writes_and_tells_each_segment_once() -> None:
    """As the step leaves it: the voice that decides is one with the decision, and the report that seals with the
    seal."""
    table, now = a_cluster(shards=1), itertools.count(2)
    (first,) = table.snapshot().shards[0].segments
    table.apply(NoteLives(lost=(Life(1, 1),)), next(now), UUID(int=10))
    assert table.segment(first.key).is_fenced
    proof = seal_record(first.key, 0, (2, 3), bytes(16))
    promises = [PromiseFence(first.key, 1, 0, 0, is_tail_whole=True, seen_offset=0, caller=Life(n, 1)) for n in (2, 3)]
    reports = [ReportReplica(first.key, proof, 0, caller=Life(n, 1)) for n in (2, 3)]
    told = []
    for step in (*promises, *reports):
        applied = table.apply(step, next(now), UUID(int=11))
        assert applied.change_set is not None
        heads = [write.segment for write in applied.writes if isinstance(write, PutSegmentHead)]
        changed = [change.segment for change in applied.change_set.changes if isinstance(change, SegmentChanged)]
        assert changed == heads and len({segment.key for segment in changed}) == len(changed)
        told.append([segment.state for segment in changed])
    assert told == [
        [SegmentState.ACTIVE],
        [SegmentState.SEALING, SegmentState.ACTIVE],
        [SegmentState.SEALING],
        [SegmentState.SEALED],
    ]
    assert table.apply(BeginRecovery(first.key), next(now), UUID(int=12)).change_set is None
