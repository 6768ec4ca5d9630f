"""Stopping a process for certain: the kernel stops its threads one by one, after `kill` has returned."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.waiting import eventually_sync


def freeze(pid: int) -> None:
    """SIGSTOP, and return once no thread of the process runs any more.

    One thread takes the signal and stops the others. On a busy machine it is scheduled late, and what the others
    do until then has happened before the freeze.

    Raises ProcessLookupError when there is no such process.
    """
    os.kill(pid, signal.SIGSTOP)
    eventually_sync(lambda: _states(pid) <= {"T", "Z", "X"}, timeout=30)


def _states(pid: int) -> set[str]:
    """The state letter of each thread, as in `man 5 proc_pid_stat`; of a thread that just ended, none."""
    states = set()
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.add(task.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return states
