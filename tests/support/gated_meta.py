"""The meta service behind a gate: commands by kind, and reads by name, can be held, refused, or performed with their
answer lost."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import pytest

from stratalog.model.commands.table_commands import Command, NodeCommand
from stratalog.model.errors import OutcomeUnknown
from stratalog.model.metadata import Life
from stratalog_meta.service import MetaService

R = TypeVar("R")
Call: TypeAlias = "type[Command[Any]] | str"
"""A kind of command, or the name of a method that reads."""


class GatedMeta:
    """Use it as a `MetaClient`."""

    def __init__(self, service: MetaService) -> None:
        self.service = service
        self.life: Life | None = None
        """The node life that sends the commands, as in a node's own client; None: no life."""
        self.calls: Counter[Call] = Counter()
        self._held: dict[Call, asyncio.Event] = {}
        self._failures: dict[Call, deque[Exception]] = defaultdict(deque)
        self._lost: Counter[Call] = Counter()

    def hold(self, call: Call) -> None:
        """Calls of this kind wait before they are performed."""
        self._held[call] = asyncio.Event()

    def is_held(self, call: Call) -> bool:
        return call in self._held

    def release(self, call: Call) -> None:
        self._held.pop(call).set()

    def fail(self, call: Call, *errors: Exception) -> None:
        """The next calls raise these instead of being performed."""
        self._failures[call].extend(errors)

    def lose_answer(self, call: Call, count: int = 1) -> None:
        """The next calls are performed, but their caller never learns it."""
        self._lost[call] += count

    def open_all(self) -> None:
        for call in list(self._held):
            self.release(call)
        self._failures.clear()
        self._lost.clear()

    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        asked = command
        if isinstance(command, NodeCommand) and command.caller is None and self.life is not None:
            asked = replace(command, caller=self.life)
        return await self._pass(type(command), lambda: self.service.perform(asked, validate_only=validate_only))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.service, name)
        if name == "watch" or not callable(method):
            return method

        async def read(*args: Any, **options: Any) -> Any:
            return await self._pass(name, lambda: method(*args, **options))

        return read

    async def _pass(self, call: Call, perform: Callable[[], Awaitable[R]]) -> R:
        self.calls[call] += 1
        gate = self._held.get(call)
        if gate is not None:
            await gate.wait()
        failures = self._failures[call]
        if failures:
            raise failures.popleft()
        answer = await perform()
        if self._lost[call]:
            self._lost[call] -= 1
            raise OutcomeUnknown(f"the answer to {call} was lost: read before acting again")
        return answer


def perform_instead(
    patch: pytest.MonkeyPatch,
    meta: MetaService,
    kind: type[Command[Any]],
    perform: Callable[[Command[Any]], Awaitable[Any]],
) -> None:
    """Commands of one kind come to `perform`, all others to the service."""
    service = meta.perform

    async def sorted_by_kind(command: Command[Any], *, validate_only: bool = False) -> Any:
        if isinstance(command, kind):
            return await perform(command)
        return await service(command, validate_only=validate_only)

    patch.setattr(meta, "perform", sorted_by_kind)
