"""What a node makes of a disk that fails, in a process of its own whose calls a preloaded library lets fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.disk_faults import EIO, ENOSPC, NO_COMPILER, OK, DiskFaults, has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason=NO_COMPILER)

CHECKPOINTS = """
from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.model.errors import Unavailable
from stratalog_node.disk.checkpoints import Checkpoints

store = Checkpoints(folder / "checkpoints")
key = SegmentKey(UUID(int=7), 0, 1, 0)

def put(end_offset):
    times = dict(first_timestamp_ms=0, max_timestamp_ms=0)
    store.put([Checkpoint(key=key, position=end_offset, next_offset=end_offset, points=IndexBuilder(0).freeze(),
                          producers=(), **times)])
    return store.load(key).next_offset

print(put(5))
wait_for("fails")
try:
    put(6)
except Unavailable:
    print("refused")
try:
    put(6)
except Unavailable:
    print("refused")
wait_for("works")
print(put(7))
store.revoke([key])
print(store.load(key))
print(put(8))
wait_for("is full")
store.close()
wait_for("has room")
store = Checkpoints(folder / "checkpoints")
print(store.load(key).next_offset)
"""
READS = """
from stratalog.model.errors import Unavailable
from stratalog_node.disk.calls import DiskCalls, watch_this_thread
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import read_from_disk, write_durably
from stratalog_node.disk.files import SegmentFile

calls = DiskCalls()
watch_this_thread(calls)
file = SegmentFile(folder / "one.seg", Descriptors(10, calls=calls), 0)
file.create(b"header")
health = DiskHealth(1_000)
probe = folder / "probe"

def look(now_ms):
    for read in (lambda: file.read(0, 6), lambda: (write_durably(probe, [b"probe"]), read_from_disk(probe))):
        try:
            read()
        except Unavailable:
            print("failed")
    calls.report_to(health, now_ms)
    health.check(None, None, now_ms)

look(0)
print(health.trouble)
wait_for("fails")
look(100)
look(2_000)
print(health.trouble)
"""
BEGIN = """
import sys
from pathlib import Path
from uuid import UUID
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.machines.leading.disk_health import DiskHealth
from stratalog.model.ids import SegmentKey

folder = Path(sys.argv[1])

def wait_for(what):
    print(what, flush=True)
    sys.stdin.readline()
"""


class Script:
    """A process that prints what it waits for, and continues when it is answered."""

    def __init__(self, text: str, folder: Path, faults: DiskFaults) -> None:
        environment = os.environ | faults.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", BEGIN + text, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def until(self, line: str) -> list[str]:
        """What it says before."""
        assert self._process.stdout is not None
        found: list[str] = []
        while (said := self._process.stdout.readline()) and said.strip() != line:
            found.append(said.strip())
        return [one for one in found if " [" not in one]  # without its log

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def rest(self) -> list[str]:
        found = self.until("")
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0
        return found


@pytest.mark.fault("disk-refuses-write-node", "metadata-store-room-start")
def test_checkpoints_are_written_again_once_the_disk_works(tmp_path: Path) -> None:
    """RocksDB refuses everything after an error, until it is opened again. It can be closed on a full disk."""
    folder = tmp_path / "data"
    folder.mkdir()
    faults = DiskFaults(tmp_path)
    script = Script(CHECKPOINTS, folder, faults)
    assert script.until("fails") == ["5"]
    faults.of(folder).write = EIO
    script.go_on()
    assert script.until("works") == ["refused"] * 2
    faults.of(folder).write = OK
    script.go_on()
    assert script.until("is full") == ["7", "None", "8"]
    faults.of(folder).write = ENOSPC
    script.go_on()
    assert script.until("has room") == []
    faults.of(folder).write = OK
    script.go_on()
    assert script.rest() == ["8"]


@pytest.mark.fault("disk-written-read-files")
@pytest.mark.parametrize("what", ["one file", "the disk"])
def test_failing_reads_count_where_the_disk_fails_and_not_where_one_file_does(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    faults = DiskFaults(tmp_path)
    script = Script(READS, folder, faults)
    assert script.until("fails") == ["None"]
    faults.of(folder if what == "the disk" else folder / "one.seg").read = EIO
    script.go_on()
    said = script.rest()
    if what == "one file":
        assert said == ["failed", "failed", "None"]
    else:
        assert said[:4] == ["failed"] * 4 and said[4].startswith("every read has failed for 1 s: ")
