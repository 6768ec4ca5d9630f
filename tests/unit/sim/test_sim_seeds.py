"""500 seeds of the simulator: whatever befalls a cluster, every promise of docs/replication.md section 9 holds."""

from __future__ import annotations

import pytest

from stratalog_sim.world import Shape, SimulatedWorld

_SEEDS = 500
_AT_ONCE = 25
ONE_NODE = Shape()


def play(seed: int, shape: Shape) -> None:
    world = SimulatedWorld(seed, shape)
    try:
        world.play()
    except AssertionError as failure:
        history = "\n".join(world.history(60))
        raise AssertionError(f"seed {seed}: {failure}\n{history}") from failure


@pytest.mark.parametrize("first", range(0, _SEEDS, _AT_ONCE))
def test_one_node_keeps_its_promises_whatever_befalls_it(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        play(seed, ONE_NODE)
