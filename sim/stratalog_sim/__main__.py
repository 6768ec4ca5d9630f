"""`python -m stratalog_sim`: plays seeds, says how fast, and prints the history of the first that breaks a promise."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from stratalog_sim.broken import Broken
from stratalog_sim.bugs.bugs import BUGS, find
from stratalog_sim.product.play import play_product
from stratalog_sim.product_bugs.catalog import PRODUCT_BUGS
from stratalog_sim.product_bugs.catalog import find as find_in_product
from stratalog_sim.small.explore import SMALL_WORLDS, explore
from stratalog_sim.worlds.simulated_machines import Shape, shape_of
from stratalog_sim.worlds.world import SimulatedWorld

_TELL_EVERY_S = 10.0


def main() -> int:
    options = argparse.ArgumentParser(prog="stratalog_sim", description=__doc__)
    options.add_argument("--seeds", type=int, default=1_000, help="how many")
    options.add_argument("--seed", type=int, help="this one alone, with its whole history")
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--nodes", type=int, help="so many in every seed, each segment on all; else the seed says")
    options.add_argument("--leaving", action="store_true", help="the product's own nodes come and go in every seed")
    options.add_argument("--product", action="store_true", help="the product's own nodes and meta service run")
    options.add_argument("--bugs", action="store_true", help="plant each deliberate bug, and say which seed finds it")
    options.add_argument("--bug", help="this one alone")
    options.add_argument(
        "--explore", type=int, metavar="STATES", help="try every history of small worlds, so many states of each"
    )
    chosen = options.parse_args()
    if chosen.explore:
        return _explore(chosen.explore)
    if chosen.product and (chosen.bugs or chosen.bug):
        return _look_for_product_bugs(range(chosen.first, chosen.first + chosen.seeds), chosen.bug)
    if chosen.bugs or chosen.bug:
        return _look_for_bugs(range(chosen.first, chosen.first + chosen.seeds), chosen.bug)
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    if chosen.product or chosen.leaving:
        return play_product(seeds, is_told=chosen.seed is not None, is_leaving=chosen.leaving)
    return play_seeds(seeds, chosen.nodes, is_told=chosen.seed is not None)


def play_seeds(seeds: Sequence[int], nodes: int | None, *, is_told: bool) -> int:
    """Until one breaks a promise; its history is printed. Returns the exit status."""
    begun, steps, checks = time.perf_counter(), 0, 0
    last_told = begun
    for played, seed in enumerate(seeds):
        if time.perf_counter() - last_told > _TELL_EVERY_S:
            last_told = time.perf_counter()
            print(f"{played} of {len(seeds)} seeds, {steps} steps, {last_told - begun:.0f} s", flush=True)
        world = SimulatedWorld(seed, shape_of(seed) if nodes is None else Shape(nodes=nodes, replicas=nodes))
        try:
            world.play()
        except AssertionError as failure:
            print("\n".join(world.history()))
            if not isinstance(failure, Broken):
                traceback.print_exc()
            wanted = "" if nodes is None else f"--nodes {nodes} "
            print(f'seed {seed} of {world.shape}: {failure}\nagain: make sim ARGS="{wanted}--seed {seed}"')
            return 1
        steps += world.scheduler.steps
        checks += world.judge.checks
        if is_told:
            print("\n".join(world.history()))
    spent = time.perf_counter() - begun
    print(f"{len(seeds)} seeds, {steps} steps, {checks} checks, {spent:.1f} s: {steps / spent:.0f} steps/s; all held")
    return 0


def _explore(most_states: int) -> int:
    for name, (nodes, budget) in SMALL_WORLDS.items():
        for is_quorum in (False, True)[: nodes - 1]:
            begun = time.perf_counter()
            try:
                explored = explore(nodes, budget, most_states, is_quorum=is_quorum)
            except AssertionError as failure:
                print(f"{name}: {failure}\n{' '.join(getattr(failure, '__notes__', ()))}")
                return 1
            spent = time.perf_counter() - begun
            whole = "all there are" if explored.is_whole else "and there are more"
            acks = ", acks by quorum" if is_quorum else ""
            print(
                f"{name}{acks}: {explored.states} states, {whole}, {explored.steps} steps, {spent:.1f} s; all held",
                flush=True,
            )
    return 0


def _look_for_bugs(seeds: range, only: str | None) -> int:
    missed = 0
    for bug in [BUGS[only]] if only else BUGS.values():
        found = find(bug, seeds)
        missed += found is None
        told = "NOT FOUND" if found is None else f"seed {found.seed}: {found.promise}"
        print(f"{bug.name:32} {told}", flush=True)
    return 1 if missed else 0


def _look_for_product_bugs(seeds: range, only: str | None) -> int:
    missed = 0
    for bug in [PRODUCT_BUGS[only]] if only else PRODUCT_BUGS.values():
        found = find_in_product(bug, seeds)
        missed += found is None
        told = "NOT FOUND" if found is None else f"seed {found.seed}: {found.promise}"
        print(f"{bug.name:40} {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
