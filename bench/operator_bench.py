"""What the operator costs: memory with many topics, writes while nothing changes, time of a pass.

    make bench-operator        writes bench/results/operator.md

A real API server and a real meta service on loopback, pretended machines and nodes (`tests/support`); the operator is a
process of its own, `stratalog operator start` but for where it asks the meta service.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

import psutil

from stratalog_operator.lease import DEFAULT_TIMES
from stratalog_operator.resources.definitions import definition
from stratalog_operator.resources.kinds import CLUSTER, KINDS, POOL, TOPIC
from support.api_server import api_server
from support.operator_place import Place, operator_place
from support.operator_process import OperatorProcess

TOPICS = 200
IDLE_SECONDS = 120
RESULT = Path(__file__).with_name("results") / "operator.md"


async def measure() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="operator-bench-") as folder,
        api_server(Path(folder) / "server") as server,
    ):
        for kind in KINDS:
            server.define(definition(kind))
        async with operator_place(server, "bench") as place:
            rows = await _run(place, Path(folder))
    write(rows)


async def _run(place: Place, folder: Path) -> dict[str, str]:
    place.make(CLUSTER)
    place.make(POOL, {"spec.zones": []})
    operator = OperatorProcess(place, folder, "one", DEFAULT_TIMES).start()
    began = time.monotonic()
    await place.until_ready(3)
    rows = {"three nodes, from nothing to `Ready`": f"{time.monotonic() - began:.1f} s"}
    began = time.monotonic()
    for number in range(TOPICS):
        spec = {"clusterRef": "main", "topicName": f"topic-{number}"}
        place.make(TOPIC, {"metadata.name": f"topic-{number}", "spec": spec})
    made = time.monotonic() - began

    def all_ready() -> bool:
        return all(
            any(
                one["type"] == "Ready" and one["status"] == "True"
                for one in topic.get("status", {}).get("conditions", [])
            )
            for topic in place.all("TopicStorage")
        )

    await place.until(all_ready)
    rows[f"{TOPICS} TopicStorages: made by a person in {made:.1f} s, all `Ready` after"] = (
        f"{time.monotonic() - began:.1f} s"
    )
    await _idle(operator, rows)
    began = time.monotonic()
    place.scale(5)
    await place.until_ready(5)
    rows["scale-out 3 -> 5, until the new nodes are members and `Ready`"] = f"{time.monotonic() - began:.1f} s"
    began = time.monotonic()
    place.scale(3)
    await place.until_ready(3)
    rows["scale-in 5 -> 3 of nodes without data, all steps (two looks 0.2 s apart)"] = (
        f"{time.monotonic() - began:.1f} s"
    )
    rows |= _passes(operator)
    operator.send(signal.SIGTERM)
    assert await asyncio.to_thread(operator.wait) == 0, operator.log()[-2_000:]
    return rows


async def _idle(operator: OperatorProcess, rows: dict[str, str]) -> None:
    """What it writes and needs while nothing changes."""
    await asyncio.sleep(20)
    process, before = psutil.Process(operator.pid), len(operator.writes())
    used = process.cpu_times()
    peak = 0
    for _ in range(IDLE_SECONDS):
        peak = max(peak, process.memory_info().rss)
        await asyncio.sleep(1)
    after = process.cpu_times()
    rows[f"memory with {TOPICS} TopicStorages (peak RSS in {IDLE_SECONDS} s)"] = f"{peak / (1 << 20):.0f} MiB"
    rows[f"writes to Kubernetes in {IDLE_SECONDS} s in which nothing changed, the Lease excepted"] = str(
        len(operator.writes()) - before
    )
    seconds = after.user + after.system - used.user - used.system
    rows["processor time while nothing changes"] = f"{100 * seconds / IDLE_SECONDS:.1f} % of a core"


def _passes(operator: OperatorProcess) -> dict[str, str]:
    """Of all passes of this run, from its own histogram."""
    count, bounds = operator.passes()
    found = {"passes in this run": str(count)}
    for share, name in ((0.5, "median"), (0.99, "p99")):
        bound = next(le for le, below in bounds if below >= share * count)
        found[f"time of a pass, {name} (upper bound of its bucket)"] = f"{bound} s"
    return found


def write(rows: dict[str, str]) -> None:
    machine = f"{os.cpu_count()} cores, shared with other work"
    lines = [
        "# The operator",
        "",
        f"Made by `bench/operator_bench.py` on {machine}; API server, etcd and meta service beside it. Machines and",
        "nodes are pretended: the times are the operator's and Kubernetes', not those of images and disks.",
        "",
        "| what | measured |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in rows.items()),
    ]
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    asyncio.run(measure())
