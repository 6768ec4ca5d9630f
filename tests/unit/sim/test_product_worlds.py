"""The product's own nodes and meta service on simulated machines: a seed is a history, and no promise is broken."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog_sim.bugs.catalog import BUGS, find
from stratalog_sim.planting import planted
from stratalog_sim.product.loop import VirtualLoop
from stratalog_sim.product.play import shape_of, world_of

_PROGRAM = """
import gc, inspect
from stratalog_sim.product.play import shape_of, world_of
world = world_of({0}, shape_of({0}))
world.play()
print("\\n".join(world.history()))
print(world.loop.steps, world.loop.now_us, world.truth.checks, world.truth.decided)
suspended = [one for one in gc.get_objects() if inspect.iscoroutine(one) and one.cr_frame is not None]
assert not [one for one in suspended if "stratalog" in one.cr_code.co_filename], "something runs after the end"
"""


def history_of(repository: Path, hash_seed: str, seed: int) -> str:
    paths = os.pathsep.join([str(repository / "sim"), str(repository / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed}
    program = _PROGRAM.format(seed)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
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


# Those that few seeds find.
QUICK = {
    "seal without digest": "seal records are true",
    "acknowledged before the roll": "HW is within",
    "HW past a member": "HW is within the committed ISR",
    "quorum of one": "HW is within what most replicas hold",
    "quorum recovered from one": "no decided record changes",
    "tail not doubted": "an offset is given once",
    "commit of a refused put": "nothing referenced is missing",
    "copy proven from memory": "seal records are true",
    "a batch is skipped": "a consumer never goes back",
    "fence not persisted": "a promise is on the disk before it is reported",
    "commit announced before durable": "no committed offset is lost",
    "answers after it lost the shard": "no committed offset is lost",
    "coordinates before its log is read": "no committed offset is lost",
    "assignment announced before durable": "a shard has one reader in a generation",
    "trimmed before the snapshot is whole": "no committed offset is lost",
    "producers forgotten at the successor": "the log matches the answers to clients",
    "follower reports the end": "a consumer never goes back",
    "started again behind a hand-over": "no decided record changes",
    "seal taken for a fence": "",  # two batches at one offset: a client, a group or a disk shows it
    "report of silence noted late": "a shard has a leader that can work",
    "every member is waited for": "a shard has a leader that can work",
    "heartbeats taken for health": "a shard has a leader that can work",
    "unknown taken as refused": "the log matches the answers to clients",
    "end reported before it is flushed": "an end is on the disk before it is reported",
    "stale ISR accepted": "HW is within the committed ISR",
    "unknown proposal taken as refused": "HW is within the committed ISR",
    "decisions outlive a change of rules": "",  # a write that is acknowledged, or a node that never denies
    "shortened member votes": "",  # a record is lost, or given up; then a producer or a group may notice it first
}


@pytest.mark.parametrize("name", QUICK)
def test_a_bug_planted_in_the_product_is_found(name: str) -> None:
    found = find(BUGS[name], range(60))
    assert found is not None, f"60 seeds do not find: {name}"
    assert QUICK[name] in found.promise
    assert found.history


def test_a_bug_is_gone_once_it_was_looked_for() -> None:
    before = SegmentLeader._advance
    with planted(BUGS["acknowledged before the roll"].patches):
        assert SegmentLeader._advance is not before
    assert SegmentLeader._advance is before


def test_what_still_runs_when_a_world_ends_is_closed_from_the_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine that its caller lets go of is closed by the collector, and what it raises then is printed."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    closed: list[str] = []
    loop = VirtualLoop(Random(1))

    async def inner() -> None:
        try:
            await loop.create_future()
        finally:
            try:
                await loop.create_future()
            finally:
                closed.append("inner")
                asyncio.get_running_loop()

    async def outer() -> None:
        try:
            await inner()
        except BaseException:
            await loop.create_future()
            raise
        finally:
            closed.append("outer")

    loop.create_task(outer())
    loop.call_later(0.1, loop.stop)
    loop.run_forever()
    loop.end_tasks()
    gc.collect()
    loop.close()
    assert (closed, printed) == (["inner", "outer"], [])
