"""Every history of a small world keeps the promises of a shard, as far as states go. `make explore` goes further."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.machines.leading.in_sync import InSync
from stratalog.model.segment import SegmentState
from stratalog_sim.broken import Broken
from stratalog_sim.small.explore import SMALL_WORLDS, dump, explore, load
from stratalog_sim.small.small_world import Budget, SmallWorld

FEW_STATES = 2_500
"""Worlds with more are left to `make explore`."""


def page_table(repository: Path) -> dict[str, str]:
    """By world: its number of states, as the page has it."""
    page = (repository / "docs" / "simulator.md").read_text()
    rows = page.partition("\n| world |")[2].partition("\n\n")[0].splitlines()[2:]
    return {name.strip(): states.strip() for name, states in (row.strip("|").split("|") for row in rows)}


def test_the_page_lists_the_small_worlds(repository: Path) -> None:
    assert [*page_table(repository)] == [*SMALL_WORLDS]


def test_small_worlds_have_as_many_states_as_the_page_says(repository: Path) -> None:
    told = {name: int(cell.replace(",", "")) for name, cell in page_table(repository).items() if cell[0].isdigit()}
    small = {name: states for name, states in told.items() if states < FEW_STATES and SMALL_WORLDS[name][0] == 2}
    assert len(small) == 2
    for name, states in small.items():
        explored = explore(*SMALL_WORLDS[name], FEW_STATES)
        assert (explored.is_whole, explored.states) == (True, states), name


@pytest.mark.parametrize(("nodes", "is_quorum"), [(2, False), (3, False), (3, True)])
def test_no_order_of_losses_crashes_and_recoveries_breaks_a_promise(nodes: int, is_quorum: bool) -> None:
    explored = explore(nodes, Budget(), 1_500, is_quorum=is_quorum)
    assert explored.states >= 1_500


def test_a_state_is_the_same_whichever_way_it_was_reached() -> None:
    worlds = SmallWorld(3, Budget()), SmallWorld(3, Budget())
    for world, order in zip(worlds, ((2, 3), (3, 2)), strict=True):
        world.do(("lease ends", 1, 0))
        for node_id in order:
            world.do(("see", node_id, 0))
    assert dump(worlds[0]) == dump(worlds[1])


def test_a_state_that_is_gone_back_to_is_the_same_state() -> None:
    world = SmallWorld(2, Budget())
    world.do(("write", 1, 0))
    before = dump(world)
    again = load(before)
    again.do(("fetch", 2, 0))
    assert dump(again) != before and dump(load(before)) == before


def test_a_shard_goes_over_two_rolls_to_sealed_segments() -> None:
    world = SmallWorld(2, Budget(writes=2, rolls=2))
    for epoch in (0, 1):
        for choice in ("write", "fetch", "fetch", "roll"):
            world.do((choice, 2 if choice == "fetch" else 1, epoch))
        for _ in range(2):
            for node_id in (1, 2):
                world.do(("see", node_id, 0))
                if world.nodes[node_id].parts[epoch].words:
                    world.do(("tell", node_id, epoch))
    states = [segment.state for segment in world.segments]
    assert states == [SegmentState.SEALED, SegmentState.SEALED, SegmentState.ACTIVE]


def test_a_leader_that_forgets_a_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_none(self: InSync) -> None:
        self.holders = ()

    monkeypatch.setattr(InSync, "_count_holders", count_none)
    with pytest.raises(Broken, match="committed ISR") as failure:
        explore(2, Budget(), 2_000)
    assert "write" in "".join(failure.value.__notes__), "the way there is told"
