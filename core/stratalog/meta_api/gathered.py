"""Sends commands about segments together, in one request, if they are submitted while other commands are in flight.

A node that takes over a thousand shards sends five commands for each within a second. One by one, the requests cost
both sides more than the commands (3 ms of CPU each, and a fresh connection for a command that must not be repeated). A
hundred in one request cost a tenth of that, and the service writes them in one turn anyway.

Each command has its own answer or error, and its own attempts. If the request as a whole fails, each command in it
fails that way. If the service refuses the request's content, each command is sent once more, in a request of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from stratalog.event_loop.task_set import TaskSet
from stratalog.meta_api import wire
from stratalog.meta_api.attempts import Repeat
from stratalog.meta_api.json_shape import NotOfShape
from stratalog.meta_api.wire import SegmentCommand
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger

_log = logger(__name__)
MOST_TOGETHER: Final = 128
_UNDER_WAY: Final = 2
"""Requests at once: while the service writes what one asks, the next is read."""
_CLOSED: Final = "this client of the meta service has been closed: make another one"

Send = Callable[[str, bytes, Repeat], Awaitable[bytes]]
"""One attempt of a request with a path and a body; raises StratalogError."""


class _Waiting(NamedTuple):
    command: SegmentCommand
    answer: asyncio.Future[Segment]


class GatheredCommands:
    """Commands of one kind of repetition to one service. Lives on one event loop."""

    def __init__(self, repeat: Repeat, send: Send) -> None:
        self._repeat = repeat
        self._send = send
        self._line: deque[_Waiting] = deque()
        self._senders = TaskSet()
        self._taking = 0
        """Senders that look into the line again. A task that is at its end stays in `_senders` for a moment longer."""
        self._is_closed = False

    async def attempt(self, command: SegmentCommand) -> Segment:
        """Ask once. Raises what the service says; Unavailable when it was surely not done, OutcomeUnknown when it may
        have been."""
        if self._is_closed:
            raise Unavailable(_CLOSED)
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        if self._taking < _UNDER_WAY:
            self._taking += 1
            self._senders.start(self._send_all())
        return await waiting.answer

    async def close(self) -> None:
        self._is_closed = True
        await self._senders.cancel()
        while self._line:
            _refuse([self._line.popleft()], Unavailable(_CLOSED))

    async def _send_all(self) -> None:
        """A task begins behind what else this turn asks for."""
        try:
            while self._line:
                together = [self._line.popleft() for _ in range(min(len(self._line), MOST_TOGETHER))]
                # Whose caller has gone is left out.
                await self._send_some([one for one in together if not one.answer.done()])
        finally:
            self._taking -= 1

    async def _send_some(self, together: list[_Waiting]) -> None:
        if not together:
            return
        try:
            answers = await self._ask([one.command for one in together])
        except InvalidRequest as error:
            if len(together) == 1:
                _refuse(together, error)
            else:  # one command cannot be read, or the service does not know such requests: nothing was done
                await self._send_each(together)
        except StratalogError as error:
            _refuse(together, error)
        except asyncio.CancelledError:
            _refuse(together, OutcomeUnknown("the request was given up: read before acting"))
            raise
        except Exception as fault:  # the commands queued behind it must not wait forever (F48)
            _log.error(
                "a request to the meta service failed on a fault in this process", commands=len(together), exc_info=True
            )
            _refuse(
                together,
                OutcomeUnknown(f"the request failed on a fault in this process: {fault!r}: read before acting"),
            )
        else:
            for one, answer in zip(together, answers, strict=True):
                if isinstance(answer, StratalogError):
                    _refuse([one], answer)
                elif not one.answer.done():
                    one.answer.set_result(answer)

    async def _send_each(self, together: list[_Waiting]) -> None:
        try:
            for one in together:
                await self._send_some([one])
        finally:  # of all that are left when this is cancelled
            _refuse(together, OutcomeUnknown("the request was given up: read before acting"))

    async def _ask(self, commands: list[SegmentCommand]) -> tuple[Segment | StratalogError, ...]:
        if len(commands) == 1:
            known = wire.wire_of(commands[0])
            path, body = known.path, known.body.write(commands[0])
        else:
            path, body = wire.SEGMENT_COMMANDS_PATH, wire.SEGMENT_COMMANDS.write(wire.SegmentCommands(tuple(commands)))
        answer = await self._send(path, body, self._repeat)
        try:
            answers = (known.answer.read(answer),) if len(commands) == 1 else wire.SEGMENT_ANSWERS.read(answer)
        except NotOfShape as error:
            raise OutcomeUnknown(f"POST {path}: the answer cannot be read ({error}): read before acting") from error
        if len(answers) != len(commands):
            raise OutcomeUnknown(
                f"POST {path}: {counted(len(answers), 'answer')} to {counted(len(commands), 'command')}: read before "
                "acting"
            )
        return answers


def _refuse(together: list[_Waiting], error: StratalogError) -> None:
    for one in together:
        if not one.answer.done():
            one.answer.set_exception(error)
