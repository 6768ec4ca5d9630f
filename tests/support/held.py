"""What this process holds at a moment: `held() <= before` says that nothing was left behind in between."""

from __future__ import annotations

import asyncio
import os
import threading


def held() -> set[str]:
    """Open files and sockets, threads, tasks. asyncio keeps its own threads for the next who needs one."""
    found = {f"task {task.get_name()}" for task in asyncio.all_tasks()}
    found |= {f"thread {thread.name}" for thread in threading.enumerate() if not thread.name.startswith("asyncio")}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"file {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue  # the listing's own
    return found
