"""Waiting for something to become true, with a deadline: the tests' only way to wait."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE = 3
"""What deadlines are multiplied by: they are meant for a quiet machine, and a test that passes loses nothing by it."""
NOT_TRUE = "not true within"
_STEP_S = 0.005
_LONGEST_STEP_S = 0.05
"""Looks at processes cost these processes their time, too."""


async def eventually(predicate: Callable[[], object | Awaitable[object]], timeout: float = 10.0) -> None:
    """Return once `predicate()` (or what it awaits) is true; fail with its words after `timeout` seconds
    of a quiet machine."""
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{NOT_TRUE} {timeout} s: {_words(predicate)}")
        await asyncio.sleep(_STEP_S)


def eventually_sync(predicate: Callable[[], object], timeout: float = 10.0) -> None:
    """The same without an event loop, for tests of processes."""
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    step_s = _STEP_S
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"{NOT_TRUE} {timeout} s: {_words(predicate)}")
        time.sleep(step_s)
        step_s = min(step_s * 1.25, _LONGEST_STEP_S)


def _words(predicate: Callable[..., object]) -> str:
    try:
        return inspect.getsource(predicate).strip()
    except (OSError, TypeError):
        return repr(predicate)
