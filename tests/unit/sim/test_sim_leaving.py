"""The simulator plays what befalls nodes that come and go, and tells of it so that a person follows."""

from __future__ import annotations

from stratalog_sim.leaving_world import LeavingWorld
from stratalog_sim.world import leaving_shape_of

# What befalls them in few seeds; behind which step the service dies differs from seed to seed.
ALL = {
    "a node is added",
    "a retirement is taken back",
    "released in offload mode",
    "released in volume mode",
    "two leave at once",
    "the store is away while a node leaves",
    "who was released is started again",
    "a holder dies before its taking a set",
    "a holder dies behind its taking a set",
}
STEPS = (
    "preflight",
    "cordon",
    "seal",
    "offload",
    "verify",
    "snapshot",
    "ReleaseNode",
    "BeginMount",
    "mount",
    "TakeMount",
)


def test_nodes_come_and_go_in_every_way_and_the_service_dies_behind_many_steps() -> None:
    happened: dict[str, None] = {}
    worlds = 0
    while not (happened.keys() >= ALL and len(deaths(happened)) > 5):
        assert worlds < 60, f"60 seeds lack {ALL - happened.keys()}, the service died behind {deaths(happened)}"
        world = LeavingWorld(worlds, leaving_shape_of(worlds))
        world.play()
        happened.update(world.happened)
        worlds += 1


def deaths(happened: dict[str, None]) -> list[str]:
    return [step for step in STEPS if f"the service dies behind {step}" in happened]


def test_a_retirement_is_told_in_words() -> None:
    world = LeavingWorld(1, leaving_shape_of(1))
    world.play()
    told = "\n".join(world.history())
    assert "wishes that node" in told and "notes that the retirement of node" in told
    assert "UUID(" not in told and "Retirement(" not in told, "a raw record in the history"
