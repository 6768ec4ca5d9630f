"""Thread pools without threads: each job runs as one callback of the loop, after the time that it waits for its turn,
and its result comes some time after that.

A job runs as a whole at one moment of virtual time: what happens meanwhile happens before it or after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import Context, copy_context
from itertools import count
from typing import Any

from stratalog.machines.leading.disk_health import CallInProgress, DiskCall
from stratalog_node.disk.calls import DiskCalls
from stratalog_sim.product.loop import VirtualLoop
from stratalog_sim.product.machine import PROCESS

SLOW_S: dict[str, float] = {}
"""By machine: how much longer each job takes while its disk is slow."""
HANGS_UNTIL_S: dict[str, float] = {}
"""By machine: until when its disk answers no call."""
_JOB_S = 0.000_3
_NUMBERS = count(1)
_POLL_S = 0.02
"""How soon a job notices that the disk works again."""


class Pool(Executor):
    """As many jobs at once as it would have threads."""

    loop: VirtualLoop
    """Of the world that runs."""

    def __init__(
        self,
        max_workers: int = 4,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._free = max_workers
        self._initializer = initializer
        self._initargs = initargs
        self._is_disk = thread_name_prefix.startswith("disk-")
        self._kind = DiskCall.READ if thread_name_prefix == "disk-read" else DiskCall.FLUSH
        self._line: deque[tuple[Context, Future[Any], Callable[[], Any]]] = deque()
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._line.append((copy_context(), future, lambda: fn(*args, **options)))
        self._start()
        return future

    def _start(self) -> None:
        while self._free and self._line:
            context, future, work = self._line.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            self._free -= 1
            self.loop.call_later(self._takes_s(context), self._run, future, work, context=context)

    def _takes_s(self, context: Context) -> float:
        process = context.get(PROCESS)
        slow_s = SLOW_S.get(process.machine.name, 0.0) if self._is_disk and process is not None else 0.0
        return _JOB_S * (0.2 + self.loop.rng.random() * 2) + slow_s

    def _run(self, future: Future[Any], work: Callable[[], Any]) -> None:
        process = PROCESS.get()
        until_s = HANGS_UNTIL_S.get(process.machine.name, 0.0) if self._is_disk and process is not None else 0.0
        if until_s > self.loop.now_s:
            self._hang(until_s, future, work)
            return
        if self._initializer is not None:
            self._initializer(*self._initargs)  # it says whose thread this is, for as long as the job runs
        try:
            result, failure = work(), None
        except Exception as error:
            result, failure = None, error
        finally:
            if self._initializer is not None:
                self._initializer(None)
        self.loop.call_later(_JOB_S * self.loop.rng.random(), self._ended, future, result, failure)

    def _hang(self, until_s: float, future: Future[Any], work: Callable[[], Any]) -> None:
        """Its thread is in the middle of a call until then."""
        calls: DiskCalls = self._initargs[0]
        thread = -next(_NUMBERS)
        calls._in_progress[thread] = CallInProgress(self._kind, "a file", calls.clock_ms())

        def go_on() -> None:
            if HANGS_UNTIL_S.get(PROCESS.get().machine.name, 0.0) <= self.loop.now_s:  # type: ignore[union-attr]
                calls._in_progress.pop(thread, None)
                self._run(future, work)
            else:
                self.loop.call_later(_POLL_S, go_on)

        self.loop.call_later(_POLL_S, go_on)

    def _ended(self, future: Future[Any], result: Any, failure: Exception | None) -> None:
        self._free += 1
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(result)
        self._start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Jobs under way end: the caller does not block until then, as nothing may."""
        self._is_closed = True
        if cancel_futures:
            for _, future, _ in self._line:
                future.cancel()
            self._line.clear()
