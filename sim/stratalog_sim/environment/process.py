"""A process: it answers requests, asks others, waits, and may die or be paused at any moment.

Work that takes time is a generator (`Task`) that yields what it waits for: `Ask` (another process) or `Sleep`. The
yield returns the answer; a refusal is raised there, and so is `OutcomeUnknown` when no answer came in time. So shells
read as those of the product do.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from stratalog.model.errors import OutcomeUnknown, StratalogError
from stratalog_sim.environment.network import Network
from stratalog_sim.environment.scheduler import Owner, Scheduler

NEVER_MS = 1 << 62


@dataclass(slots=True)
class Ask:
    """A request, and how long its answer is waited for."""

    whom: str
    what: Any
    timeout_ms: int = 1_000
    may_repeat: bool = True
    is_in_order: bool = False
    """Over a connection that both ends keep: nothing comes twice, or before what was sent earlier."""


@dataclass(slots=True)
class Sleep:
    ms: int
    owner: Owner | None = None
    """Whose pauses and end it heeds: for work on a disk, those of the disk's thread. None: those of the process."""


Task = Generator[Ask | Sleep, Any, None]


@dataclass(slots=True)
class Request:
    number: int
    what: Any

    def __str__(self) -> str:
        return f"{self.what}"


@dataclass(slots=True)
class Answer:
    """`what` is the result, or the error."""

    number: int
    what: Any

    def __str__(self) -> str:
        return f"answer {self.what}"


@dataclass
class Process:
    """One life at a place of the network. State that must outlive it belongs to another object."""

    name: str
    scheduler: Scheduler
    network: Network
    is_alive: bool = True
    paused_until_ms: int = 0
    _waiting: dict[int, tuple[Task, Ask, int]] = field(default_factory=dict)
    """By number of the request: the task that waits, for what, and until when."""
    _looks_at_ms: int = NEVER_MS
    """When it looks next for what was not answered in time."""

    # Being asked ----------------------------------------------------------------------------------------------------
    def receive(self, sender: str, message: Any) -> None:
        if self.paused_until_ms > self.scheduler.now_ms:
            self.scheduler.after(0, self, self.receive, sender, message)
        elif isinstance(message, Answer):
            self._answered(message)
        else:
            self.asked(sender, message)

    def asked(self, sender: str, request: Request) -> None:
        """A request came."""
        raise NotImplementedError

    def reply(self, sender: str, request: Request, what: Any, *, is_in_order: bool = False) -> None:
        self.network.send(self.name, sender, Answer(request.number, what), is_in_order=is_in_order)

    # Tasks ----------------------------------------------------------------------------------------------------------
    def spawn(self, task: Task) -> None:
        self._advance(task, None, None)

    def _advance(self, task: Task, value: Any, error: Exception | None) -> None:
        if not self.is_alive:
            return
        try:
            wait = task.send(value) if error is None else task.throw(error)
        except StopIteration:
            return
        if isinstance(wait, Sleep):
            self.scheduler.after(wait.ms, wait.owner or self, self._advance, task, None, None)
            return
        number = self.network.next_number()
        due_ms = self.scheduler.now_ms + wait.timeout_ms
        self._waiting[number] = task, wait, due_ms
        self.network.send(
            self.name, wait.whom, Request(number, wait.what), may_repeat=wait.may_repeat, is_in_order=wait.is_in_order
        )
        self._look_by(due_ms)

    def _answered(self, answer: Answer) -> None:
        found = self._waiting.pop(answer.number, None)
        if found is None:
            return
        task = found[0]
        if isinstance(answer.what, StratalogError):
            self._advance(task, None, answer.what)
        else:
            self._advance(task, answer.what, None)

    def _look_by(self, due_ms: int) -> None:
        if due_ms < self._looks_at_ms:
            self._looks_at_ms = due_ms
            self.scheduler.after(due_ms - self.scheduler.now_ms, self, self._look_for_late, due_ms)

    def _look_for_late(self, due_ms: int) -> None:
        if due_ms != self._looks_at_ms:
            return  # one that was due earlier took its place
        self._looks_at_ms, now_ms = NEVER_MS, self.scheduler.now_ms
        late = [number for number, (_, _, due_ms) in self._waiting.items() if due_ms <= now_ms]
        self._look_by(min((due_ms for _, _, due_ms in self._waiting.values() if due_ms > now_ms), default=NEVER_MS))
        for number in late:
            task, wait, _ = self._waiting.pop(number)
            self._advance(task, None, OutcomeUnknown(f"no answer of {wait.whom} to {str(wait.what).partition('(')[0]}"))
