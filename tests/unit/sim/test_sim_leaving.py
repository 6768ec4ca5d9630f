"""The simulator plays what befalls nodes that come and go, and tells of it so that a person follows."""

from __future__ import annotations

import pytest

from stratalog.model.retirement import RetireStep
from stratalog_sim.worlds.leaving_world import DEATHS, LeavingWorld
from stratalog_sim.worlds.simulated_machines import leaving_shape_of

# What befalls them in few seeds.
ALL = {
    "a node is added",
    "a retirement is taken back",
    "released in offload mode",
    "released in volume mode",
    "two leave at once",
    "what a directory alone has is uploaded",
    "the store is away while a node leaves",
    "who was released is started again",
    "a holder dies before its taking a set",
    "a holder dies behind its taking a set",
    "a client reads a mount that a person made",
    "a node dies for good",
    "what a dead node alone had is given up",
}
LATEST = 150
"""Seeds in which all of it has to come."""


@pytest.mark.fault(
    "node-released-last-readable",
    "meta-service-leader-dies",
    "retirement-cancelled-retired-node",
    "node-takes-data-released",
)
def test_nodes_come_and_go_in_every_way_and_the_service_dies_behind_each_step() -> None:
    happened: dict[str, None] = {}
    wanted = ALL | {f"the service dies behind {step}" for step in DEATHS}
    for seed in range(LATEST):
        world = LeavingWorld(seed, leaving_shape_of(seed))
        world.play()
        happened.update(world.happened)
        if happened.keys() >= wanted:
            return
    raise AssertionError(f"{LATEST} seeds lack {wanted - happened.keys()}")


def test_every_step_of_a_retirement_is_one_behind_which_the_service_dies() -> None:
    noted = {step.value for step in RetireStep} - {RetireStep.RELEASE.value}  # that is ReleaseNode's alone
    assert noted <= set(DEATHS)
    assert {DEATHS[(seed // 5 + 3 * (seed % 5)) % len(DEATHS)] for seed in range(4, 5 * len(DEATHS), 5)} == set(DEATHS)


def test_a_retirement_is_reported_in_words() -> None:
    world = LeavingWorld(1, leaving_shape_of(1))
    world.play()
    told = "\n".join(world.history())
    assert "asks that node" in told and "notes that the retirement of node" in told
    assert "UUID(" not in told and "Retirement(" not in told, "a raw record in the history"
