"""The meta service behind a gate: calls by name can be held, refused, or performed with their answer lost."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from typing import Any

from stratalog.model.errors import OutcomeUnknown
from stratalog_meta.service import MetaService


class GatedMeta:
    """Use it as a `MetaClient`."""

    def __init__(self, service: MetaService) -> None:
        self.service = service
        self.calls: Counter[str] = Counter()
        self._held: dict[str, asyncio.Event] = {}
        self._failures: dict[str, deque[Exception]] = defaultdict(deque)
        self._lost: Counter[str] = Counter()

    def hold(self, name: str) -> None:
        """Calls of this name wait before they are performed."""
        self._held[name] = asyncio.Event()

    def release(self, name: str) -> None:
        self._held.pop(name).set()

    def fail(self, name: str, *errors: Exception) -> None:
        """The next calls raise these instead of being performed."""
        self._failures[name].extend(errors)

    def lose_answer(self, name: str, count: int = 1) -> None:
        """The next calls are performed, but their caller never learns it."""
        self._lost[name] += count

    def open_all(self) -> None:
        for name in list(self._held):
            self.release(name)
        self._failures.clear()
        self._lost.clear()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.service, name)
        if name == "watch" or not callable(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            gate = self._held.get(name)
            if gate is not None:
                await gate.wait()
            failures = self._failures[name]
            if failures:
                raise failures.popleft()
            answer = await method(*args, **options)
            if self._lost[name]:
                self._lost[name] -= 1
                raise OutcomeUnknown(f"the answer to {name} was lost: read before acting again")
            return answer

        return call
