"""Lets the event loop run while a disk thread works through many small batches in Python.

A thread that computes keeps the interpreter until the switch interval has passed, and the loop pays that after each of
its system calls. Giving the lock up every few dozen microseconds costs next to nothing and keeps the loop's waits that
short.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_ITEMS = 32
"""About 60 us of work at 2 us a batch."""


def yielding_gil(items: Iterable[T]) -> Iterator[T]:
    """The same items; for use on a thread, never on the loop."""
    for number, item in enumerate(items):
        if number % _ITEMS == _ITEMS - 1:
            time.sleep(0)
        yield item
