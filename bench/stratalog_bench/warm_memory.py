"""Touches the machine's free memory once, so that what follows measures servers and not the hypervisor.

A virtual machine is often given its memory page by page, when it first touches it: writing 64 KiB into new page cache then
costs ten times what it costs on a machine that has been up for a day (12 us became 117 us where this was found). The first
systems measured would pay for the later ones, and all of them would be equally slow.

    python -m stratalog_bench.warm_memory BYTES

The work is done in a child process that is the first to be killed should memory have a limit that it does not know of.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

STEP = 64 << 20
LEFT_FREE = 1 << 30
MADV_POPULATE_WRITE = 23
"""Not in Python's mmap module; Linux 5.14 and later."""


def available_bytes(meminfo: str) -> int:
    """MemAvailable of /proc/meminfo's text, in bytes."""
    line = next(line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10


def warm() -> int:
    """Bytes that were touched; fewer than are free where a limit ended it early. Cost: seconds to two minutes, once a boot."""
    wanted = max(0, available_bytes(Path("/proc/meminfo").read_text()) - LEFT_FREE) // STEP * STEP
    columns = (TextColumn("warming memory"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    done = 0
    with (
        Progress(*columns) as progress,
        subprocess.Popen(
            [sys.executable, "-m", "stratalog_bench.warm_memory", str(wanted)], stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        task = progress.add_task("", total=wanted)
        assert child.stdout is not None
        for line in child.stdout:
            done = int(line)
            progress.update(task, completed=done)
    return done


def touch(count: int) -> None:
    """Holds `count` bytes at once and writes to each page; prints how far it is."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    with mmap.mmap(-1, count) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, count, STEP):
            try:
                memory.madvise(MADV_POPULATE_WRITE, start, STEP)
            except OSError:
                for page in range(start, start + STEP, mmap.PAGESIZE):
                    memory[page] = 1
            print(start + STEP, flush=True)


if __name__ == "__main__":
    touch(int(sys.argv[1]))
