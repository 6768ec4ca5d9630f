"""Nodes of the product join and leave on simulated machines, and no promise is broken."""

from __future__ import annotations

from itertools import product

import pytest

from stratalog.model.retirement import RetireStep
from stratalog_sim.bugs.catalog import BUGS, find
from stratalog_sim.product.leaving import DEATHS, LeavingNodes, death_of
from stratalog_sim.product.play import leaving_shape_of, shape_of
from stratalog_sim.product.world import ProductWorld
from support import sim_bugs

SEEDS = 8
QUICK = {
    "released after one check": "a node is released after two checks",
    "cancelled after the release": "a released node never comes back",
    "freed before it is stored": "the last copy is never deleted",
    "mount beyond the seal": "a mount serves only sealed data",
    "mount read as its topic": "a mount serves only sealed data",
    "released during an upload": "the last readable copy is never given up",
    "two holders under a token": "one holder of a data set",
    "holder is not replaced": "the holder of a data set is alive",
    "rolled segment never ended": "",  # a shard that takes no writes, or a retirement that never ends
    "given up silently": "",  # readers miss what was lost
    "unknown copies count as none": "a node is released after two checks",
}
"""The promise that is broken. Most bugs are found within few of the seeds."""
SEEDS_FOR_BUGS = 60


def played(seed: int) -> LeavingNodes:
    world = ProductWorld(seed, leaving_shape_of(seed))
    leaving = LeavingNodes(world)
    world.cause_faults = lambda _: leaving.run()
    try:
        world.play()
    except AssertionError as failure:
        history = "\n".join(world.history(60))
        raise AssertionError(f"seed {seed}: {failure}\n{history}") from failure
    return leaving


@pytest.mark.fault(
    "node-released-last-readable",
    "meta-service-leader-dies",
    "retirement-cancelled-retired-node",
    "node-takes-data-released",
)
def test_the_product_keeps_its_promises_while_nodes_come_and_go() -> None:
    happened: dict[str, None] = {}
    for seed in range(SEEDS):
        happened.update(played(seed).happened)
    wanted = {"a node is added", "released in offload mode", "released in volume mode", "a retirement is taken back"}
    assert wanted <= happened.keys()
    assert any(one.startswith("the service dies behind") for one in happened)


def test_every_step_of_a_retirement_is_one_behind_which_the_service_dies() -> None:
    assert {step.value for step in RetireStep} - {RetireStep.PREFLIGHT.value} <= set(DEATHS)


@pytest.mark.parametrize("seeds", [range(64), range(9, 1_300, 20)], ids=["all leave", "usual"])
def test_the_service_dies_after_each_change_with_one_copy_and_with_two(seeds: range) -> None:
    shapes = {seed: leaving_shape_of(seed) if seeds.step == 1 else shape_of(seed) for seed in seeds}
    assert {one.spares for one in shapes.values()} == {1}
    assert {(one.replicas, death_of(seed)) for seed, one in shapes.items()} == {*product((1, 2), DEATHS)}
    assert {(one.replicas, one.seconds) for one in shapes.values()} == {*product((1, 2), (3.0, 4.0, 6.0))}


@pytest.mark.parametrize("name", sim_bugs.names(QUICK))
def test_a_bug_of_leaving_nodes_is_found(name: str) -> None:
    found = find(BUGS[name], range(SEEDS_FOR_BUGS))
    assert found is not None, f"{SEEDS_FOR_BUGS} seeds do not find: {name}"
    assert QUICK[name] in found.promise
