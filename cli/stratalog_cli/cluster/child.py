"""One part of a cluster as a child process: started, ready, stopping, ended.

The child is in a session of its own, so that Ctrl-C in a terminal reaches only the process that runs the cluster. When
that process ends, however it ends, the kernel kills its children (Linux: PR_SET_PDEATHSIG), so none is ever left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.plan import Part

_PR_SET_PDEATHSIG: Final = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class End:
    """How a part ended."""

    code: int
    """Its exit code; minus the number of the signal that killed it."""
    was_asked: bool
    """Told to end, and not by itself."""
    at_ms: int
    log_tail: tuple[str, ...]

    @property
    def words(self) -> str:
        if self.was_asked and self.code in (0, -signal.SIGTERM):  # etcd ends in order, and then by the signal
            return "in order"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-self.code).name}"
            return f"killed by signal {-self.code}"
        return f"exit code {self.code}"


class Child:
    """One life of a part. Made by `start_child`."""

    def __init__(
        self, part: Part, process: asyncio.subprocess.Process, directory: ClusterDirectory, log_begin: int
    ) -> None:
        self.part = part
        self.started_ms = _now_ms()
        self.is_ready = False
        self._process = process
        self._directory = directory
        self._log_begin = log_begin
        self._was_asked = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    def has_printed(self, words: bytes) -> bool:
        """Whether it printed these words since it was started."""
        return words in self._directory.log_since(self.part, self._log_begin)

    async def ended(self) -> End:
        code = await self._process.wait()
        tail = self._directory.log_tail(self.part, self._log_begin)
        return End(code, self._was_asked, _now_ms(), tuple(tail))

    def ask_to_end(self) -> None:
        self._was_asked = True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that was stopped hears nothing else

    def kill(self) -> None:
        self._was_asked = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Not by the process object: it looks first whether the child has ended, and takes its exit code away from the
        # event loop, which then makes one up.
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


async def start_child(
    part: Part, command: Sequence[str], environment: Mapping[str, str], directory: ClusterDirectory
) -> Child:
    """Raises InvalidRequest when the program cannot be executed."""
    log, log_begin = directory.open_log(part)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            pass_fds=(directory.lock,),
            preexec_fn=_dies_with(os.getpid()),
        )
    except OSError as error:
        raise InvalidRequest(f"{part.name} cannot be started: {command[0]}: {error.strerror}: check it") from None
    finally:
        os.close(log)
    return Child(part, process, directory, log_begin)


def _dies_with(parent: int) -> Callable[[], None]:
    """Run in the child before it becomes the program. The request outlives the `exec`."""

    def ask_the_kernel() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # it died before the kernel was asked

    return ask_the_kernel


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
