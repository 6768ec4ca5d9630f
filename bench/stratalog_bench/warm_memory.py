"""Keeps the machine's free memory warm during a run, so that it measures servers and not the hypervisor.

A virtual machine may get its memory page by page, on first touch, and hand it back in blocks of 2 MiB soon after it is
free (a balloon with free page reporting). Writing 64 KiB into new page cache then costs 70 to 120 us instead of 15,
for every system alike, and nothing else shows in cells of 64 KiB and more. So all free memory is touched once, and one
page of each MiB is held until the end, with all blocks that are still whole: none is handed back.

    python -m stratalog_bench.warm_memory BYTES

is the child process that does it: it prints how far it is and lets go when its input ends. Should memory have a limit
that it does not know of, it is the first to be killed.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

STEP = 64 << 20
HELD_EACH = 1 << 20
LEFT_FREE = 512 << 20
HUGE_PAGE = 2 << 20
MADV_POPULATE_WRITE = 23
"""Not in Python's mmap module; Linux 5.14 and later."""


def available_bytes(meminfo: str) -> int:
    """MemAvailable of /proc/meminfo's text, in bytes."""
    line = next(line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10


@contextmanager
def kept_warm() -> Iterator[None]:
    """Warm while the block runs. Cost: about 2 s per GiB at first, and 1/64 of the memory to the end."""
    wanted = max(0, available_bytes(Path("/proc/meminfo").read_text()) - LEFT_FREE) // STEP * STEP
    columns = (TextColumn("warming memory"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    command = [sys.executable, "-m", "stratalog_bench.warm_memory", str(wanted)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with Progress(*columns) as progress:
            task = progress.add_task("", total=wanted)
            for line in child.stdout:
                if line.startswith("held"):
                    break
                progress.update(task, completed=int(line))
        try:
            yield
        finally:
            child.stdin.close()


def whole_blocks_bytes(buddyinfo: str) -> int:
    """What is free in blocks of 2 and 4 MiB, the last two columns of /proc/buddyinfo's text."""
    columns = [line.split()[-2:] for line in buddyinfo.splitlines()]
    return sum(int(two) * HUGE_PAGE + int(four) * 2 * HUGE_PAGE for two, four in columns)


def hold(count: int) -> None:
    """Writes to each page of `count` bytes, keeps one of each `HELD_EACH` bytes, and waits for the end of its input."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, count, flags=private) as memory:
        # Huge pages are given back whole: there is no part of one to hold.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for start in range(0, count, STEP):
            populate(memory, start, STEP)
            print(start + STEP, flush=True)
        for start in range(0, count, HELD_EACH):
            memory.madvise(mmap.MADV_DONTNEED, start + mmap.PAGESIZE, HELD_EACH - mmap.PAGESIZE)
        whole = whole_blocks_bytes(Path("/proc/buddyinfo").read_text())
        with mmap.mmap(-1, max(whole, HUGE_PAGE), flags=private) as blocks:
            blocks.madvise(mmap.MADV_HUGEPAGE)
            populate(blocks, 0, whole)
            print("held", flush=True)
            sys.stdin.read()


def populate(memory: mmap.mmap, start: int, count: int) -> None:
    try:
        memory.madvise(MADV_POPULATE_WRITE, start, count)
    except OSError:
        for page in range(start, start + count, mmap.PAGESIZE):
            memory[page] = 1


if __name__ == "__main__":
    hold(int(sys.argv[1]))
