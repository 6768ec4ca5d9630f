"""Whether a call gives the interpreter lock up while it waits, told without a clock."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MOST_CALLS = 2_000


@contextmanager
def threads_that_give_nothing_up_unasked() -> Iterator[None]:
    """A thread loses the interpreter only where a call gives it up."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def lets_others_run(work: Callable[[], None]) -> bool:
    """Whether another thread got anywhere while `work` was done, once or many times over."""
    steps = 0
    is_over = False

    def step() -> None:
        nonlocal steps
        while not is_over:
            steps += 1
            time.sleep(0)

    other = threading.Thread(target=step)
    with threads_that_give_nothing_up_unasked():
        other.start()
        try:
            for _ in range(_MOST_CALLS):
                before = steps
                work()
                if steps > before:
                    return True
            return False
        finally:
            is_over = True
            other.join()
