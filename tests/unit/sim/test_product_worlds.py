"""The product's own nodes and meta service on simulated machines: a seed is a history, and no promise is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog_sim.bugs.bugs import BUGS, planted
from stratalog_sim.product.play import shape_of, world_of
from stratalog_sim.product.world import Shape

_PROGRAM = (
    "from stratalog_sim.product.play import shape_of, world_of; "
    "w = world_of({0}, shape_of({0})); w.play(); "
    "print('\\n'.join(w.history())); print(w.loop.steps, w.loop.now_us, w.truth.checks, w.truth.decided)"
)


def history_of(repository: Path, hash_seed: str, seed: int) -> str:
    paths = os.pathsep.join([str(repository / "sim"), str(repository / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed}
    program = _PROGRAM.format(seed)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_seed_plays_the_same_in_every_process(repository: Path) -> None:
    first = history_of(repository, "1", 7)
    assert "runs, life 1" in first and "all faults end" in first
    assert first == history_of(repository, "2", 7)


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_the_product_keeps_its_promises_whatever_befalls_its_machines(first: int) -> None:
    for seed in range(first, first + 5):
        world = world_of(seed, shape_of(seed))
        try:
            world.play()
        except AssertionError as failure:
            history = "\n".join(world.history(60))
            raise AssertionError(f"seed {seed}: {failure}\n{history}") from failure
        assert world.truth.checks > 100


@pytest.mark.parametrize(
    ("name", "shape", "promise"),
    [
        ("HW past a member", Shape(is_quorum=False), "HW is within the committed ISR"),
        ("quorum of one", Shape(is_quorum=True), "HW is within what most replicas hold"),
    ],
)
def test_a_planted_bug_is_found(name: str, shape: Shape, promise: str) -> None:
    with planted(BUGS[name]):
        for seed in range(20):
            try:
                world_of(seed, shape).play()
            except AssertionError as failure:
                assert promise in str(failure)
                return
    raise AssertionError(f"20 seeds do not see: {name}")
