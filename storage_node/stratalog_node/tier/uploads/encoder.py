"""One thread for the tier's byte work, so that a part of ten thousand batches does not stall the event loop.

Small work is done at once: the way to a thread and back costs more (about 50 us).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_AT_ONCE = 64 << 10


class Encoder:
    """Call `close` when it is no longer used."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "tier-encoder")

    async def run(self, weight: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do `work`; `weight` is about the bytes it looks at."""
        if weight <= _AT_ONCE:
            return work(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._worker, lambda: work(*args, **kwargs))

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)
