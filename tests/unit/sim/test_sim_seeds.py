"""500 seeds of the simulator: whatever befalls a cluster, every promise of docs/replication.md section 9 holds."""

from __future__ import annotations

import pytest

from stratalog_sim.world import Shape, SimulatedWorld

_AT_ONCE = 10
ONE_NODE = Shape()
TWO_NODES = Shape(nodes=2, replicas=2)
THREE_NODES = Shape(nodes=3, replicas=3)


def play(seed: int, shape: Shape) -> None:
    world = SimulatedWorld(seed, shape)
    try:
        world.play()
    except AssertionError as failure:
        history = "\n".join(world.history(60))
        raise AssertionError(f"seed {seed}: {failure}\n{history}") from failure


def play_some(first: int, shape: Shape) -> None:
    for seed in range(first, first + _AT_ONCE):
        play(seed, shape)


@pytest.mark.parametrize("first", range(0, 200, _AT_ONCE))
def test_one_node_keeps_its_promises_whatever_befalls_it(first: int) -> None:
    play_some(first, ONE_NODE)


@pytest.mark.parametrize("first", range(0, 100, _AT_ONCE))
def test_two_nodes_keep_their_promises_whatever_befalls_them(first: int) -> None:
    play_some(first, TWO_NODES)


@pytest.mark.parametrize("first", range(0, 200, _AT_ONCE))
def test_three_nodes_keep_their_promises_whatever_befalls_them(first: int) -> None:
    play_some(first, THREE_NODES)
