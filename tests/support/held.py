"""What this process holds at a moment: `held() <= before` says that nothing was left behind in between."""

from __future__ import annotations

import asyncio
import os
import threading

from support.waiting import eventually


def held() -> set[str]:
    """Open files and sockets, threads, tasks. asyncio keeps its own threads for later use."""
    found = {f"task {task.get_name()}" for task in asyncio.all_tasks()}
    found |= {f"thread {thread.name}" for thread in threading.enumerate() if not thread.name.startswith("asyncio")}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"file {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


async def gives_all_back(before: set[str]) -> None:
    """Soon. Fails with what is still held."""
    try:
        await eventually(lambda: held() <= before)
    except AssertionError:
        raise AssertionError(f"still held: {sorted(held() - before)}") from None
