"""What this process holds at a moment: `open_resources() <= before` says that nothing was left behind in between."""

from __future__ import annotations

import asyncio
import os
import threading

from support.waiting import eventually


def open_resources() -> set[str]:
    """Open files and sockets, threads, tasks. asyncio keeps its own threads for later use."""
    found = {f"task {task.get_name()}" for task in asyncio.all_tasks()}
    found |= {f"thread {thread.name}" for thread in threading.enumerate() if not thread.name.startswith("asyncio")}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"file {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


async def wait_until_closed(before: set[str]) -> None:
    """Soon. Fails with what is still held."""
    try:
        await eventually(lambda: open_resources() <= before)
    except AssertionError:
        raise AssertionError(f"still held: {sorted(open_resources() - before)}") from None
