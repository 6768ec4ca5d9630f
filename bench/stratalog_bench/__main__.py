"""Runs the cells and writes `bench/results/latest.json` and `latest.md`.

    python -m stratalog_bench [--only PATTERN] [--seconds S] [--rounds N] [--quick] [--list] [--output DIR]

BENCH_ONLY selects like --only: a regular expression, searched for in the names of the cells; such a run is written to
`partial.*`, and so is each cell as soon as it is done, so that a run that is ended early keeps its rows. A cell that
fails or cannot run here is listed at the end and does not stop the others.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from stratalog_bench import (
    cells_client,
    cells_cluster,
    cells_cold,
    cells_direct,
    cells_fsync,
    cells_memory,
    cells_meta,
    cells_requests,
    cells_resources,
    cells_scaling,
    cells_secure,
    cells_tiered,
    warm_memory,
)
from stratalog_bench.context import REPOSITORY, Bench, Skipped, machine
from stratalog_bench.report import Outcome, as_table, write
from stratalog_bench.rows import Row

KIB = 1 << 10

CELLS: dict[str, Callable[[Bench], list[Row]]] = {
    "start": cells_resources.start_and_memory,
    "idle-shards": cells_resources.idle_shards,
    **{
        f"produce-{cells_requests.named(size).replace(' ', '')}": partial(cells_requests.produce, size=size)
        for size in cells_requests.SHAPES
    },
    "produce-pipelined": cells_requests.produce_pipelined,
    **{
        f"fetch-{cells_requests.named(size).replace(' ', '')}": partial(cells_requests.fetch, size=size)
        for size in cells_requests.SHAPES
    },
    "client-16KiB": partial(cells_client.produce, batch=16 * KIB, linger="5ms"),
    "client-64KiB": partial(cells_client.produce, batch=64 * KIB, linger="20ms"),
    "client-consume": cells_client.consume_hot,
    "client-e2e": cells_client.end_to_end,
    **{f"fsync-{shards}": partial(cells_fsync.flushed, shards=shards) for shards in (1, 8, 64)},
    "memory": cells_memory.acknowledge,
    "tls-produce": cells_secure.produce,
    "tls-fetch": cells_secure.fetch,
    "tls-connect": cells_secure.connect,
    "rules": cells_secure.rules,
    "through-10GiB": cells_resources.pass_through,
    **{f"meta-{kind}": partial(cells_meta.large_state, kind=kind) for kind in ("rocksdb", "etcd")},
    "cold-scan": cells_cold.scans,
    "cold-beside-hot": cells_cold.hot_beside_cold,
    **{f"tiered-{size >> 10}KiB": partial(cells_tiered.produce, batch=size) for size in cells_tiered.LINGERS},
    **{f"tiered-s3-{size >> 10}KiB": partial(cells_tiered.produce_s3, batch=size) for size in cells_tiered.LINGERS},
    "tiered-calm": cells_tiered.calm_after_load,
    "tiered-scan": cells_tiered.scan,
    **{
        name: partial(cell, batch=size)
        for size in cells_cluster.LINGERS
        for name, cell in (
            (f"cluster-{size >> 10}KiB", cells_cluster.produce),
            (f"cluster-librdkafka-{size >> 10}KiB", cells_cluster.produce_librdkafka),
        )
    },
    "cluster-raw": cells_cluster.produce_raw,
    "cluster-half-load": cells_cluster.half_load,
    "cluster-rolls": cells_cluster.rolls,
    **{f"direct-{delay}ms": partial(cells_direct.acknowledge, delay_ms=delay) for delay in cells_direct.DELAYS_MS},
    "direct-20ms-fast": partial(cells_direct.acknowledge, delay_ms=20, rate=cells_direct.FAST_RATE),
    "direct-10000-shards": cells_direct.many_shards,
    "cluster-failover": cells_cluster.failover,
    "cluster-1000-shards": cells_cluster.many_shards,
    "scale-out": cells_scaling.scale_out,
    "retire-10GiB": cells_scaling.retire,
    "10000-shards": cells_scaling.ten_thousand_shards,
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only", default=os.environ.get("BENCH_ONLY", ""), help="cells whose name matches this pattern"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system in each cell")
    parser.add_argument(
        "--quick", action="store_true", help="one short round: does it work at all? no figures to believe"
    )
    parser.add_argument("--no-warm", action="store_true", help="do not keep the machine's free memory warm")
    parser.add_argument("--list", action="store_true", help="names of the cells")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "bench" / "results")
    return parser.parse_args()


def measure(bench: Bench, names: list[str], console: Console, keep: Callable[[Outcome], object]) -> Outcome:
    """`keep` gets what there is after each cell."""
    outcome = Outcome(machine(), bench.seconds, bench.rounds)
    for name in names:
        began = time.monotonic()
        console.print(f"[bold]{name}[/bold] …")
        try:
            rows = CELLS[name](bench)
        except Skipped as reason:
            outcome.skipped[name] = str(reason)
            console.print(f"  skipped: {reason}")
        except Exception as error:  # whatever it was, the other cells are still worth their time
            outcome.failed[name] = f"{type(error).__name__}: {error}"
            console.print(f"  [red]failed[/red]: {outcome.failed[name]}", markup=True, highlight=False)
            (bench.cache / f"failed-{name}.log").write_text(traceback.format_exc(), encoding="utf-8")
        else:
            outcome.rows += rows
            console.print(as_table(rows))
            console.print(f"  {time.monotonic() - began:.0f} s")
        keep(outcome)
    if not bench.has_kafka():
        outcome.skipped["kafka"] = "no Java 17 and Maven here: every row beside Kafka is missing"
    return outcome


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end the ending
    sys.exit(143)


def main() -> int:
    chosen = options()
    console = Console(width=140 if not sys.stdout.isatty() else None)
    names = [name for name in CELLS if re.search(chosen.only, name)]
    if chosen.list or not names:
        console.print("\n".join(names or CELLS))
        return 0 if names else 2
    seconds, rounds, scale = (1.0, 1, 0.05) if chosen.quick else (chosen.seconds, chosen.rounds, 1.0)
    # Ended from outside, the servers that were started must end too: leave by SystemExit.
    signal.signal(signal.SIGTERM, _leave)
    began = time.monotonic()
    warm = nullcontext() if chosen.quick or chosen.no_warm else warm_memory.kept_warm()
    with warm, Bench(seconds=seconds, rounds=rounds, scale=scale) as bench:
        outcome = measure(bench, names, console, lambda so_far: write(so_far, chosen.output, is_whole=False))
    page = write(outcome, chosen.output, is_whole=len(names) == len(CELLS) and not chosen.quick)
    console.print(f"{len(outcome.rows)} rows in {time.monotonic() - began:.0f} s: {page}")
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
