"""How the process of a server runs: little memory, the fast loop, a stop by signal, and an end that waits for nothing.

Imports what it needs and no more: start to ready is measured (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_M_MMAP_THRESHOLD, _M_ARENA_MAX, _M_TRIM_THRESHOLD = -3, -8, -1
_MALLOC_OPTIONS = ((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, 512 << 10), (_M_TRIM_THRESHOLD, 4 << 20))
_GC_THRESHOLD = (50_000, 20, 20)
_SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread (sealing, checking) may keep the event loop waiting for the interpreter; the default is ten
times it."""

_LEFT_TASKS_S = 2.0


def run_server(main: Coroutine[Any, Any, int]) -> NoReturn:
    """Run `main` to its end, then exit with its code. Threads that still work are not waited for, and tasks that `main`
    left are for `_LEFT_TASKS_S` at most: kopf has some that never end once all of them are cancelled together."""
    _keep_memory_small()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    code = runner.run(_with_a_bounded_end(main))  # the runner is not closed: that would wait for all tasks
    sys.stdout.flush()
    os._exit(code)


async def _with_a_bounded_end(main: Coroutine[Any, Any, int]) -> int:
    try:
        return await main
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_LEFT_TASKS_S)


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT from now on."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


class StoppedEarly(Exception):
    """The process was asked to stop before it had started."""


async def unless_stopped(work: Coroutine[Any, Any, T], stopping: asyncio.Event) -> T:
    """Runs a step of a start, and cancels it when the process is asked to stop: waiting for another process, or
    scanning a large disk, would outlast the time for a stop. Raises: StoppedEarly, and what the step raises."""
    doing, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((doing, stop), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))
            raise StoppedEarly
        return doing.result()
    finally:
        stop.cancel()


async def first_of(*events: asyncio.Event) -> asyncio.Event:
    """The one that is set first."""
    waiting = {asyncio.ensure_future(event.wait()): event for event in events}
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return waiting[done.pop()]


def _keep_memory_small() -> None:
    """glibc keeps an arena per thread and, once a large block was freed, ever larger blocks in it: with a dozen threads
    hundreds of MiB of nothing (measured: 367 against 137 MiB while 10 GiB pass). So few arenas, and large blocks go
    back at once. Elsewhere (musl, macOS) there is no such knob."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in _MALLOC_OPTIONS:
        mallopt(option, value)


def collect_less_often() -> None:
    """What start-up made stays; after that nearly everything dies by its reference count: the collector may look
    seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)
