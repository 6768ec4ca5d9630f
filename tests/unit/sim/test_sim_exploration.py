"""Every history of a small world keeps the promises of one segment, as far as budget and states go."""

from __future__ import annotations

import pytest

from stratalog.machines.in_sync import InSync
from stratalog_sim.explore import Budget, SmallWorld, explore
from stratalog_sim.judge import Broken

QUIET = Budget(writes=1, losses=0, deaths=0, crashes=0, lags=0, rolls=1, waits=0)


def test_all_histories_of_a_roll_on_two_nodes_are_looked_at() -> None:
    explored = explore(2, QUIET, 10_000)
    assert explored.is_whole and explored.states > 50


@pytest.mark.parametrize("nodes", [2, 3])
def test_no_order_of_losses_crashes_and_recoveries_breaks_a_promise(nodes: int) -> None:
    explored = explore(nodes, Budget(), 2_500)
    assert explored.states >= 2_500


def test_a_state_is_the_same_whichever_way_it_was_reached() -> None:
    one, other = SmallWorld(3, Budget()), SmallWorld(3, Budget())
    for world, order in ((one, (2, 3)), (other, (3, 2))):
        for node_id in order:
            world.do(("fetch", node_id))
    assert one.fingerprint() == other.fingerprint()


def test_a_leader_that_forgets_a_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_none(self: InSync) -> None:
        self.holders = ()

    monkeypatch.setattr(InSync, "_count_holders", count_none)
    with pytest.raises(Broken, match="committed ISR") as failure:
        explore(2, Budget(), 2_000)
    assert "write" in "".join(failure.value.__notes__), "the way there is told"
