"""Nodes live, die and come back, directories are mounted, moved, opened and given up, in any order: one node at most
may commit what only directories have, it lives, and there is one whenever a mount that counts is held."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import BeginMount, EndMount, MoveMount, OpenVolume, ReleaseMount
from stratalog.model.commands.table_commands import AcquireLock, Command, CommitParts, NoteLives, RegisterNode
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, NodeInfo, PartCommit
from stratalog.model.mounts import MountMode
from stratalog.model.segment import RemotePart, Segment, SegmentState
from support.table_stories import TableStory, state_of

NODES = range(1, 6)
HOLDERS = (1, 2)
"""The nodes that have the segment."""
numbers = st.integers(1, 5)
lives = st.builds(Life, numbers, st.integers(1, 3))
modes = st.sampled_from([MountMode.VOLUME, MountMode.VOLUME, MountMode.OFFLOAD])
steps = st.one_of(
    st.builds(lambda node: RegisterNode(NodeInfo(node, f"storage-{node}", "host", 9092)), numbers),
    st.builds(lambda life: NoteLives(lost=(life,)), lives),
    st.builds(lambda node: NoteLives(lost=(Life(node, 1),)), st.sampled_from(HOLDERS)),
    st.builds(lambda life: NoteLives(heard=(life,)), lives),
    st.builds(lambda node, mode: BeginMount(node, f"storage-{node}", mode), st.sampled_from(HOLDERS), modes),
    st.builds(lambda node: OpenVolume(node, f"storage-{node}", "host", 9, "start"), st.sampled_from(HOLDERS)),
    st.builds(lambda node, other: MoveMount(f"tier/{node}", other), st.sampled_from(HOLDERS), st.none() | numbers),
    st.builds(lambda node: EndMount(f"tier/{node}"), st.sampled_from(HOLDERS)),
    st.builds(
        lambda node, token, life: ReleaseMount(f"tier/{node}", token, caller=life),
        st.sampled_from(HOLDERS), st.integers(0, 6), lives,
    ),
)  # fmt: skip


def with_a_sealed_segment() -> tuple[ShardTable, SegmentKey]:
    story = TableStory(len(NODES))
    for number in range(30):
        key = story.active(story.topic(f"t{number}", replicas=2)).key
        if story.segment(key).replicas == HOLDERS:
            break
    else:
        raise AssertionError("no segment lies on these two")
    story.roll(key, 5)
    for node_id in HOLDERS:
        story.report(key, node_id)
    assert story.segment(key).state is SegmentState.SEALED and story.segment(key).local_nodes == HOLDERS
    return story.table, key


def may_commit(table: ShardTable, key: SegmentKey) -> set[int]:
    """Whose commit the table takes now, tried and taken back."""
    found: set[int] = set()
    for node_id in NODES:
        before = state_of(table)
        try:
            lock = table.apply(AcquireLock(f"tier/{node_id}", f"node-{node_id}", 10), 1, UUID(int=1))
        except StratalogError:
            continue  # its set is another's by now
        piece = RemotePart(f"chunk-{node_id}", 0, 10, 0, 5)
        command = CommitParts(lock.result, (PartCommit(key, 0, piece),), caller=table.state.nodes[node_id].life)
        try:
            applied = table.apply(command, 1, UUID(int=1))
        except StratalogError:
            pass
        else:
            if isinstance(applied.result[0], Segment):
                found.add(node_id)
            table.undo(applied)
        table.undo(lock)
        assert state_of(table) == before
    return found


GONE: list[Command[Any]] = [
    NoteLives(lost=tuple(Life(node, 1) for node in HOLDERS)),
    *(BeginMount(node, f"storage-{node}", MountMode.VOLUME) for node in HOLDERS),
]


@pytest.mark.fault("holder-dies-middle-upload")
@given(st.sampled_from([[], GONE[:1], GONE[:2], GONE]), st.lists(steps, max_size=30))
@settings(max_examples=150, deadline=None)
def test_one_node_at_most_may_commit_it_lives_and_there_is_one_while_a_directory_is_held(
    before: list[Command[Any]], commands: list[Command[Any]]
) -> None:
    table, key = with_a_sealed_segment()
    for command in [*before, *commands]:
        try:
            table.apply(command, 1, UUID(int=7))
        except StratalogError:
            continue
        state, segment = table.state, table.segment(key)
        able = may_commit(table, key)
        living = [one for one in segment.local_nodes if state.is_alive(one) and state.mount_of(one) is None]
        held = [
            mount.holder
            for mount in map(state.mount_of, segment.local_nodes)
            if mount is not None and mount.mode is MountMode.VOLUME and mount.holder is not None
        ]
        assert len(able) <= 1, "one uploader"
        assert all(map(state.is_alive, able)), "that lives"
        if living:
            assert able == {living[0]}, "who has it on its disk goes first"
        elif held:
            assert able == {held[0]}, "who holds the mount of the first directory"
            event("by a holder")
        else:
            assert not able, "nobody can read it"
