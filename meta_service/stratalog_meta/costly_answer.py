"""An answer that needs a pass over all segments, made rarely enough that requests for it cost little.

Lives on the service's event loop. Requests that come meanwhile get the same answer. It is made in slices, between other
work of the loop, and the pause before the next one is long enough that all of them take at most a twentieth of the
time, however many requests come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_SHARE: Final = 20
FRESH_MS: Final = 500


class CostlyAnswer(Generic[T]):
    def __init__(
        self, begin: Callable[[], Awaitable[Generator[None, None, T]]], monotonic_ms: Callable[[], int], name: str
    ) -> None:
        """`begin` reads what the answer is made of, and gives its steps."""
        self._begin = begin
        self._monotonic_ms = monotonic_ms
        self._name = name
        self._made: T | None = None
        self._fresh_until_ms = 0
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Raises what reading the metadata raises."""
        if self._made is not None and self._monotonic_ms() < self._fresh_until_ms:
            return self._made
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make(), name=self._name)
        return await asyncio.shield(self._making)  # a client that goes away does not cancel it for the others

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _make(self) -> T:
        made, spent_ms = await in_turns(await self._begin(), self._monotonic_ms)
        self._made, self._fresh_until_ms = made, self._monotonic_ms() + max(FRESH_MS, _SHARE * spent_ms)
        return made


async def in_turns(steps: Generator[None, None, T], monotonic_ms: Callable[[], int]) -> tuple[T, int]:
    """The result, and how long its steps took, without what others did between them."""
    spent_ms = 0
    while True:
        began_ms = monotonic_ms()
        try:
            next(steps)
        except StopIteration as done:
            made: T = done.value
            return made, spent_ms + monotonic_ms() - began_ms
        spent_ms += monotonic_ms() - began_ms
        await asyncio.sleep(0)
