"""`python -m stratalog_sim`: plays seeds, says how fast, and prints the history of the first that breaks a promise."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from stratalog_sim.bugs import BUGS, find
from stratalog_sim.explore import Budget, explore
from stratalog_sim.judge import Broken
from stratalog_sim.world import Shape, SimulatedWorld


def main() -> int:
    options = argparse.ArgumentParser(prog="stratalog_sim", description=__doc__)
    options.add_argument("--seeds", type=int, default=1_000, help="how many")
    options.add_argument("--seed", type=int, help="this one alone, with its whole history")
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--nodes", type=int, default=1)
    options.add_argument("--replicas", type=int)
    options.add_argument("--bugs", action="store_true", help="plant each deliberate bug, and say which seed finds it")
    options.add_argument("--bug", help="this one alone")
    options.add_argument("--explore", type=int, metavar="STATES", help="try every history of a small world")
    chosen = options.parse_args()
    if chosen.explore:
        return _explore(max(2, chosen.nodes), chosen.explore)
    if chosen.bugs or chosen.bug:
        return _look_for_bugs(range(chosen.first, chosen.first + chosen.seeds), chosen.bug)
    shape = Shape(nodes=chosen.nodes, replicas=chosen.replicas or chosen.nodes)
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    begun, steps, checks = time.perf_counter(), 0, 0
    for seed in seeds:
        world = SimulatedWorld(seed, shape)
        try:
            world.play()
        except AssertionError as failure:
            print("\n".join(world.history()))
            if not isinstance(failure, Broken):
                traceback.print_exc()
            print(f'seed {seed} of {shape}: {failure}\nagain: make sim ARGS="--nodes {shape.nodes} --seed {seed}"')
            return 1
        steps += world.scheduler.steps
        checks += world.judge.checks
    if chosen.seed is not None:
        print("\n".join(world.history()))
    spent = time.perf_counter() - begun
    print(f"{len(seeds)} seeds, {steps} steps, {checks} checks, {spent:.1f} s: {steps / spent:.0f} steps/s; all held")
    return 0


def _explore(nodes: int, most_states: int) -> int:
    begun = time.perf_counter()
    try:
        explored = explore(nodes, Budget(), most_states)
    except AssertionError as failure:
        print(f"{failure}\n{' '.join(getattr(failure, '__notes__', ()))}")
        return 1
    spent = time.perf_counter() - begun
    whole = "all there are" if explored.is_whole else "and there are more"
    print(f"{nodes} nodes: {explored.states} states, {whole}, {explored.steps} steps, {spent:.1f} s; all held")
    return 0


def _look_for_bugs(seeds: range, only: str | None) -> int:
    missed = 0
    for bug in [BUGS[only]] if only else BUGS.values():
        found = find(bug, seeds)
        missed += found is None
        told = "NOT FOUND" if found is None else f"seed {found.seed}: {found.promise}"
        print(f"{bug.name:32} {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
