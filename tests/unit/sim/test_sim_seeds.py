"""500 seeds of the simulator: whatever befalls a cluster, every promise of docs/replication.md section 9 holds."""

from __future__ import annotations

import pytest

from stratalog_sim.worlds.simulated_machines import shape_of
from stratalog_sim.worlds.world import SimulatedWorld

_AT_ONCE = 10


@pytest.mark.parametrize("first", range(0, 500, _AT_ONCE))
def test_nodes_keep_their_promises_whatever_befalls_them(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        world = SimulatedWorld(seed, shape_of(seed))
        try:
            world.play()
        except AssertionError as failure:
            history = "\n".join(world.history(60))
            raise AssertionError(f"seed {seed}: {failure}\n{history}") from failure
