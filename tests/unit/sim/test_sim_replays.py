"""A seed is a history: the same one at every run, wherever it is played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog_sim.__main__ import play_seeds
from stratalog_sim.bugs.bugs import BUGS
from stratalog_sim.planting import planted
from stratalog_sim.worlds.simulated_machines import Shape
from stratalog_sim.worlds.world import SimulatedWorld

_PROGRAM = (
    "from stratalog_sim.worlds.world import SimulatedWorld; "
    "from stratalog_sim.worlds.simulated_machines import shape_of; "
    "w = SimulatedWorld({0}, shape_of({0})); w.play(); print('\\n'.join(w.history()))"
)


def history_of(repository: Path, hash_seed: str, seed: int) -> str:
    paths = os.pathsep.join([str(repository / "sim"), str(repository / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed}
    program = _PROGRAM.format(seed)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("seed", [20, 29])
def test_a_seed_plays_the_same_in_every_process(repository: Path, seed: int) -> None:
    first = history_of(repository, "1", seed)
    assert first.count("\n") > 100
    assert first == history_of(repository, "2", seed)


def test_two_seeds_play_differently() -> None:
    worlds = [SimulatedWorld(seed, Shape()) for seed in (1, 2)]
    for world in worlds:
        world.play()
    assert worlds[0].history() != worlds[1].history()


def test_a_history_is_reported_in_words() -> None:
    world = SimulatedWorld(11, Shape())
    world.play()
    told = "\n".join(world.history())
    assert "UUID(" not in told, "a raw record in the history"
    assert "registers node 1" in told and "s0/e0@0 at" in told


def test_a_seed_that_breaks_a_promise_reports_how_and_does_so_again(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        with planted(BUGS["HW past a member"].patches):
            assert play_seeds(range(20), 3, is_told=False) == 1
        told.append(capsys.readouterr().out)
    lines = told[0].splitlines()
    assert told[0] == told[1] and len(lines) > 10
    assert "HW is within" in lines[-2] and lines[-1].startswith('again: make sim ARGS="--nodes 3 --seed ')
