"""Nodes of the product join and leave on simulated machines, and no promise is broken."""

from __future__ import annotations

import pytest

from stratalog.model.retirement import RetireStep
from stratalog_sim.product.leaving import DEATHS, LeavingNodes
from stratalog_sim.product.play import leaving_shape_of
from stratalog_sim.product.world import ProductWorld
from stratalog_sim.product_bugs.catalog import PRODUCT_BUGS, find

SEEDS = 8
QUICK = {
    "released after one check": (4, "a node is released after two checks"),
    "cancelled after the release": (20, "a released node never comes back"),
    "freed before it is stored": (10, "the last copy is never deleted"),
    "mount beyond the seal": (10, "a mount serves only sealed data"),
    "mount read as its topic": (10, "a mount serves only sealed data"),
    "released during an upload": (12, "the last readable copy is never given up"),
    "two holders under a token": (8, "one holder of a data set"),
    "holder is not replaced": (10, "the holder of a data set is alive"),
    "rolled segment never ended": (8, ""),  # a shard that takes no writes, or a retirement that never ends
    "given up silently": (8, ""),  # readers miss what was lost
    "unknown copies count as none": (12, "a node is released after two checks"),
}
"""The seeds that are played, and the promise that is broken."""


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


@pytest.mark.parametrize("name", QUICK)
def test_a_bug_of_leaving_nodes_is_found(name: str) -> None:
    seeds, promise = QUICK[name]
    found = find(PRODUCT_BUGS[name], range(seeds))
    assert found is not None, f"{seeds} seeds do not find: {name}"
    assert promise in found.promise
