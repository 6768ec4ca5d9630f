"""An event loop whose time is virtual: nothing waits, and the same callbacks run in the same order at every run.

Callbacks run in the order in which they became due. When none is due, the time is set to that of the next timer. There
are no threads: work for an executor becomes callbacks of this loop. What belongs to a dead process never runs again.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, copy_context
from random import Random
from types import CoroutineType
from typing import Any, Protocol, TypeVar

from stratalog_sim.product.machine import PROCESS

T = TypeVar("T")
_EXECUTOR_S = 0.000_1
_CLOSES = 1_000
"""More coroutines, and `finally` blocks in them that await something, than a task has."""


class Connector(Protocol):
    """The network, as far as the loop needs it."""

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any: ...

    async def serve(self, factory: Callable[[], asyncio.BaseProtocol], sock: Any) -> Any: ...

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None: ...

    def remove_reader(self, fd: int) -> bool: ...


class Idle(AssertionError):
    """Nothing is due and nothing will be, while a task still waits."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    _number: int

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[Any]):
    _number: int

    def __hash__(self) -> int:
        return self._number


class Call:
    """A callback that is due, or will be: what `asyncio.Handle` is, with less work for each."""

    __slots__ = ("args", "callback", "context", "when_us")

    def __init__(self, callback: Callable[..., object], args: Any, context: Context, when_us: int) -> None:
        self.callback: Callable[..., object] | None = callback
        """None: it is cancelled."""
        self.args = args
        self.when_us = when_us
        self.context = context

    def cancel(self) -> None:
        self.callback = self.args = None

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.when_us / 1e6


class VirtualLoop(asyncio.BaseEventLoop):
    """Signatures of overridden methods are plainer than typeshed's, which tie arguments to callbacks."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.rng = rng
        self.now_us = 0
        self.steps = 0
        self.network: Connector
        self.faults: list[dict[str, Any]] = []
        """What reached the loop's exception handler, oldest first."""
        self.kept: list[Any] = []
        """Callbacks of dead processes: to drop one would run `finally` blocks."""
        self._tasks: list[NumberedTask] = []
        self._made = 0
        self._clock_resolution = 1e-9
        self._waiting: list[tuple[int, int, Call]] = []
        self._due: deque[Call] = deque()
        self.set_exception_handler(lambda _, context: self.faults.append(context))
        self.set_task_factory(self._make_task)

    # Time and order -------------------------------------------------------------------------------------------------
    @property
    def now_s(self) -> float:
        return self.now_us / 1e6

    def time(self) -> float:
        return self.now_us / 1e6

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """What is later than now by less than a microsecond is due after the next one: else a task that waits for the
        rest of a float would wait for nothing again and again."""
        when_us = math.ceil(when * 1e6 - 0.001)
        if when > self.time():
            when_us = max(when_us, self.now_us + 1)
        return self._call_at_us(when_us, callback, args, context)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """The time moves in whole microseconds: a delay that is lost in rounding would never pass."""
        return self._call_at_us(self.now_us + math.ceil(max(0.0, delay) * 1e6), callback, args, context)

    def _call_at_us(self, when_us: int, callback: Callable[..., object], args: Any, context: Any) -> Any:
        timer = Call(callback, args, copy_context() if context is None else context, when_us)
        self._made += 1
        heapq.heappush(self._waiting, (when_us, self._made, timer))
        return timer

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        call = Call(callback, args, copy_context() if context is None else context, self.now_us)
        self._due.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def _run_once(self) -> None:
        """Unlike the base class's: it runs all callbacks until the loop is stopped."""
        while not self._stopping:  # type: ignore[attr-defined]  # typeshed leaves it out
            self._await_next()
            self._run_due()

    def _await_next(self) -> None:
        """Set the time to that of the next timer when nothing is due."""
        due, waiting = self._due, self._waiting
        if not due:
            while waiting and waiting[0][2].callback is None:
                heapq.heappop(waiting)
            if not waiting:
                raise Idle("no timer is left, and a task still waits")
            self.now_us = max(self.now_us, waiting[0][0])
        while waiting and waiting[0][0] <= self.now_us:
            due.append(heapq.heappop(waiting)[2])

    def _run_due(self) -> None:
        """What is due now; what becomes due meanwhile waits."""
        due = self._due
        for _ in range(len(due)):
            call = due.popleft()
            callback, context = call.callback, call.context
            if callback is None:
                continue
            process = context.get(PROCESS)
            if process is not None and process.is_dead:
                self.kept.append(call)
                continue
            self.steps += 1
            try:
                context.run(callback, *call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"fault in {callback}", "exception": error})

    def drop(self) -> None:
        """Forget everything that is due or will be."""
        self.kept.clear()
        self._due.clear()
        self._waiting.clear()

    def _write_to_self(self) -> None:
        """There is no other thread that could wake it."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    # Tasks ----------------------------------------------------------------------------------------------------------
    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, context: Any = None) -> NumberedTask:
        self._made += 1
        NumberedTask._number = self._made  # the base class asks for the hash before this one can be set
        task = NumberedTask(coro, loop=loop, context=context)
        task._number = self._made
        self._tasks.append(task)
        if len(self._tasks) > 4096:
            self._tasks = [one for one in self._tasks if not one.done()]
        return task

    def create_future(self) -> asyncio.Future[Any]:
        future = NumberedFuture(loop=self)
        self._made += 1
        future._number = self._made
        return future

    def end_tasks(self) -> None:
        """Close what still runs, oldest first, when the world has ended. All processes are dead: nothing that a task
        does or raises now counts, as with a process that is killed."""
        for task in self._tasks:  # which a closing task may extend
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # typeshed leaves it out
                _close(task.get_coro())
        self._tasks.clear()

    # Executors ------------------------------------------------------------------------------------------------------
    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> Any:  # type: ignore[override]
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        future = self.create_future()
        self.call_later(_EXECUTOR_S * (1 + self.rng.random()), self._work, future, func, args)
        return future

    @staticmethod
    def _work(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    # Sockets --------------------------------------------------------------------------------------------------------
    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.serve(protocol_factory, options["sock"])

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.network.add_reader(fd, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        return self.network.remove_reader(fd)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        raise NotImplementedError("a simulated socket takes all that is sent")

    def remove_writer(self, fd: Any) -> bool:
        return False


def _close(coroutine: Any) -> None:
    """What it awaits first: a coroutine that is let go of by the one that awaits it would be closed by the collector,
    which prints what it raises."""
    for _ in range(_CLOSES):
        if coroutine.cr_frame is None:
            return
        with suppress(BaseException):  # a `finally` block that awaits something continues, and is closed there next
            _innermost(coroutine).close()


def _innermost(coroutine: Any) -> Any:
    awaited = coroutine.cr_await
    while isinstance(awaited, CoroutineType) and awaited.cr_frame is not None:
        coroutine, awaited = awaited, awaited.cr_await
    return coroutine
