"""`python -m stratalog_sim`: plays seeds, says how fast, and prints the history of the first that breaks a promise."""

from __future__ import annotations

import argparse
import sys
import time

from stratalog_sim.bugs.catalog import BUGS, find
from stratalog_sim.product.play import play_seeds
from stratalog_sim.small.explore import SMALL_WORLDS, explore


def main() -> int:
    options = argparse.ArgumentParser(prog="stratalog_sim", description=__doc__)
    options.add_argument("--seeds", type=int, default=1_000, help="how many")
    options.add_argument("--seed", type=int, help="this one alone, with its whole history")
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--leaving", action="store_true", help="nodes come and go in every seed")
    options.add_argument("--bugs", action="store_true", help="plant each deliberate bug, and say which seed finds it")
    options.add_argument("--bug", help="this one alone")
    options.add_argument(
        "--explore", type=int, metavar="STATES", help="try every history of small worlds, so many states of each"
    )
    chosen = options.parse_args()
    if chosen.explore:
        return _explore(chosen.explore)
    if chosen.bugs or chosen.bug:
        return _look_for_bugs(range(chosen.first, chosen.first + chosen.seeds), chosen.bug)
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    return play_seeds(seeds, is_told=chosen.seed is not None, is_leaving=chosen.leaving)


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
        print(f"{bug.name:40} {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
