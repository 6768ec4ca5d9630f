"""A seed is a history: the same one at every run, wherever it is played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stratalog_sim.world import Shape, SimulatedWorld

_PROGRAM = (
    "from stratalog_sim.world import Shape, SimulatedWorld; w = SimulatedWorld(11, Shape()); w.play(); "
    "print('\\n'.join(w.history()))"
)


def history_of(repository: Path, hash_seed: str) -> str:
    paths = os.pathsep.join([str(repository / "sim"), str(repository / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_seed_plays_the_same_in_every_process(repository: Path) -> None:
    first = history_of(repository, "1")
    assert first.count("\n") > 100
    assert first == history_of(repository, "2")


def test_two_seeds_play_differently() -> None:
    worlds = [SimulatedWorld(seed, Shape()) for seed in (1, 2)]
    for world in worlds:
        world.play()
    assert worlds[0].history() != worlds[1].history()


def test_a_history_is_told_in_words() -> None:
    world = SimulatedWorld(11, Shape())
    world.play()
    told = "\n".join(world.history())
    assert "UUID(" not in told, "a raw record in the history"
    assert "registers node 1" in told and "rolls s0/e0@0 at" in told
