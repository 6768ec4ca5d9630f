"""The demo runs, leaves nothing behind, says what differs if anything does, and with --keep leaves a working node."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.topics import read
from support.waiting import eventually_sync

LIMIT = 20_000


@pytest.fixture
def flights_module(repository: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(repository / "tools")
    import flights

    return flights


def run_demo(repository: Path, *arguments: str, temporary: Path, nodes: int = 1) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/demo.py", "--nodes", str(nodes), "--limit", str(LIMIT)]
    return subprocess.run(
        [*command, "--segment-bytes", "200000", *arguments],
        cwd=repository,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_part_of_the_flights_makes_the_whole_way(repository: Path, tmp_path: Path) -> None:
    done = run_demo(repository, temporary=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    last_line = done.stdout.splitlines()[-1]
    assert last_line.startswith("20,000 flights, ") and last_line.endswith(": OK")
    assert "What is stored where" in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_three_nodes_live_through_the_kill_of_a_leader(repository: Path, tmp_path: Path) -> None:
    done = run_demo(repository, "--fixed", temporary=tmp_path, nodes=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(": OK")
    for words in (r"node-(\d) is killed \(kill -9\); it led", r"node-\d leads shard 0 \(before: node-\d\)"):
        assert re.search(words, done.stdout), done.stdout
    assert re.search(r"first flight acknowledged in shard \d again", done.stdout) and "is started again" in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("security", [[], ["--secure"]], ids=["plain", "secure"])
def test_nodes_come_and_go_and_everything_is_read_again(repository: Path, tmp_path: Path, security: list[str]) -> None:
    done = run_demo(repository, *security, temporary=tmp_path, nodes=3)
    failed = done.stdout.find("The demo failed")
    assert done.returncode == 0, f"{done.stdout[failed:][:2000]}\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1].endswith(": OK")
    for words in (
        r"node-4 is added",
        r"node-1 leaves \(offload\): done",
        r"node-2 leaves \(volume\): preflight: waits \(ReplicationFactor\): 2 nodes stay",
        r"node-2 leaves \(volume\): done",
        r"node-1 +│ retired, deleted +│ - +│ - ",
        r"node-2 +│ retired, read only +│ - +│ \d+, ",
        r"[1-9][\d,]* flights are nowhere but in the directory of node-2",
        r"50,000 records read again and equal to the input",
    ):
        assert re.search(words, done.stdout), f"{words}: {done.stdout}"
    assert ("it may not delete flights" in done.stdout) is bool(security)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.fixture
def kept(repository: Path, tmp_path: Path) -> Iterator[str]:
    done = run_demo(repository, "--keep", temporary=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ending = re.search(r"To end it: kill (\d+); to remove its data: (rm -r \S+)", done.stdout)
    assert ending is not None, done.stdout
    yield done.stdout
    os.kill(int(ending[1]), signal.SIGTERM)
    eventually_sync(lambda: not Path(f"/proc/{ending[1]}").exists() or _is_zombie(int(ending[1])), 20)
    subprocess.run(shlex.split(ending[2]), check=True)


def _is_zombie(pid: int) -> bool:
    return ") Z" in Path(f"/proc/{pid}/stat").read_text(encoding="ascii")


def test_with_keep_the_node_runs_on_and_the_commands_to_try_work(kept: str, repository: Path) -> None:
    address = re.search(r"Kafka clients at (\S+),", kept)
    assert address is not None
    assert read(address[1], "flights", 1)[0].value().startswith(b'{"row":')
    told = re.search(r'make demo-pipeline ARGS="--bucket (\S+) --limit (\d+)"', kept)
    assert told is not None and int(told[2]) == LIMIT
    assert any((repository / told[1]).rglob("*.manifest")), "a bucket with sealed segments"
    commands = [line.strip() for line in kept.partition("To try:")[2].splitlines() if line.startswith("  ")]
    assert len(commands) >= 6
    for command in commands:
        program = command.split()[0]
        if "kcat" in command and not _has("kcat"):
            continue
        # Offset 12345 exists only when all flights are in.
        command = command.replace("12345", "345")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=repository, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{program}: {command}\n{done.stdout}{done.stderr}"


def _has(program: str) -> bool:
    return subprocess.run(["which", program], capture_output=True, check=False).returncode == 0


# The comparison finds what it is there to find -----------------------------------------------------------------------
class Story:
    """Eight flights of two aircraft, written over two shards as a node would give them back."""

    def __init__(self, module: object) -> None:
        self.flights = object.__new__(module.Flights)  # type: ignore[attr-defined]
        self.flights.values = [b'{"row":%d,"x":1}' % row for row in range(8)]
        self.flights.keys = [b"A", b"B"] * 4
        self.comparison = module.Comparison(self.flights)  # type: ignore[attr-defined]
        self.records = [(row % 2, row // 2, self.flights.keys[row], self.flights.values[row]) for row in range(8)]

    def differences(self) -> str:
        for record in self.records:
            self.comparison.compare(*record)
        return "\n".join(self.comparison.finish({0: 4, 1: 4}))


def test_equal_records_make_no_difference_even_when_some_are_read_again(flights_module: object) -> None:
    story = Story(flights_module)
    story.records += story.records[2:5]
    assert story.differences() == ""
    assert story.comparison.read_again == 3


def test_every_kind_of_difference_is_found(flights_module: object) -> None:
    lost = Story(flights_module)
    del lost.records[-1]
    assert "shard 1 was read up to 3, it ends at 4" in lost.differences()
    assert "1 flights did not come back, the first is 7" in lost.differences()

    gap = Story(flights_module)
    del gap.records[2]
    assert "shard 0, offset 2: offsets 1 to 1 did not come" in gap.differences()

    changed = Story(flights_module)
    changed.records[3] = (1, 1, b"B", b'{"row":3,"x":2}')
    assert "flight 3 came back changed" in changed.differences()

    swapped = Story(flights_module)
    first, second = swapped.records[2], swapped.records[4]
    swapped.records[2], swapped.records[4] = first[:2] + second[2:], second[:2] + first[2:]
    assert "flight 2 of A after its flight 4" in swapped.differences()

    doubled = Story(flights_module)
    doubled.records.append((1, 4, b"B", doubled.flights.values[7]))
    assert "flight 7 for the second time" in doubled.differences()

    foreign = Story(flights_module)
    foreign.records.append((1, 4, None, b"something else"))
    assert "not a record of the input" in foreign.differences()

    moved = Story(flights_module)
    moved.records[-1] = (1, 3, b"A", moved.flights.values[6])
    del moved.records[-2]
    assert "A is in shard 0 as well" in moved.differences()
