"""Nodes live, die and come back, mounts begin, move and end, in any order: a data set has at most one holder, and the
token that a holder has never goes back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.table.records import TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import BeginMount, EndMount, MoveMount, ReleaseMount, TakeMount
from stratalog.model.commands.table_commands import Command, NoteLives, RegisterNode
from stratalog.model.errors import StratalogError
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.mounts import MountMode, MountState
from support.table_stories import state_of

NODES = range(1, 5)
numbers = st.integers(1, 4)
tokens = st.integers(0, 6)
lives = st.builds(Life, numbers, st.integers(1, 3))
steps = st.one_of(
    st.builds(lambda node: RegisterNode(NodeInfo(node, f"storage-{node}", "host", 9092)), numbers),
    st.builds(lambda life: NoteLives(lost=(life,)), lives),
    st.builds(lambda life: NoteLives(heard=(life,)), lives),
    st.builds(lambda life: NoteLives(full=(life,)), lives),
    st.builds(lambda node: BeginMount(node, f"storage-{node}", MountMode.OFFLOAD), numbers),
    st.builds(lambda node, other: MoveMount(f"tier/{node}", other), numbers, st.none() | numbers),
    st.builds(lambda node: EndMount(f"tier/{node}"), numbers),
    st.builds(lambda node, token, life: TakeMount(f"tier/{node}", token, caller=life), numbers, tokens, lives),
    st.builds(lambda node, token, life: ReleaseMount(f"tier/{node}", token, caller=life), numbers, tokens, lives),
)


@pytest.mark.fault("holder-retired-node-data")
@given(st.lists(steps, max_size=40))
@settings(max_examples=150, deadline=None)
def test_a_data_set_has_one_holder_at_most_and_its_token_never_goes_back(commands: list[Command[Any]]) -> None:
    table = ShardTable.empty(TableHeader("cluster", 0, 1))
    for node in NODES:
        table.apply(RegisterNode(NodeInfo(node, f"storage-{node}", "host", 9092)), 1, UUID(int=node))
    highest: dict[str, int] = {}
    held: dict[tuple[str, int], Life] = {}
    for command in commands:
        before = state_of(table)
        try:
            applied = table.apply(command, 1, UUID(int=7))
        except StratalogError:
            assert state_of(table) == before
            continue
        table.undo(applied)
        assert state_of(table) == before
        applied = table.apply(command, 1, UUID(int=7))
        table.check_invariants()
        for mount in table.state.mounts.values():
            assert mount.token >= highest.get(mount.name, 0)
            highest[mount.name] = mount.token
            if mount.holder is not None:
                life = Life(mount.holder, mount.holder_epoch)
                assert held.setdefault((mount.name, mount.token), life) == life, "a token is one life's"
            else:
                able = [info.node_id for info in table.state.hosts(1) if info.node_id != mount.node_id]
                assert not able, "it waits only while nobody can hold it"
        if isinstance(command, TakeMount):
            taken = applied.result
            assert taken.state is MountState.SERVING and command.caller == Life(taken.holder, taken.holder_epoch)
