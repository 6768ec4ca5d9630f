"""Lets the event loop run while a disk thread works through many small batches in Python.

A thread that computes keeps the interpreter until the switch interval has passed, and the loop pays that after each of
its system calls. Releasing the lock every few dozen microseconds costs very little and keeps the loop's waits that
short.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_HOLD_NS = 60_000


def yielding_gil(items: Iterable[T], *, item_ns: int = 2_000) -> Iterator[T]:
    """The same items; for use on a thread, never on the loop. `item_ns`: about what the work with one takes; each time
    that the lock is given up costs two changes of threads."""
    every = _HOLD_NS // item_ns
    for number, item in enumerate(items):
        if number % every == every - 1:
            time.sleep(0)
        yield item
