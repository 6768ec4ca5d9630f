"""Machines and the processes on them. Whatever runs in the simulation runs in the context of one process.

The context variable goes with tasks and callbacks by itself, so a system call knows who makes it.
"""

from __future__ import annotations

from contextvars import ContextVar
from random import Random

from stratalog_sim.product.files import FileSystem


class ProcessDied(BaseException):
    """The process that made this system call is dead. Never caught: its callbacks do not run again."""


class Machine:
    """A host with a clock and a disk. Both outlive its processes."""

    def __init__(self, name: str, host: str, rng: Random) -> None:
        self.name = name
        self.host = host
        self.files = FileSystem(rng)
        self.files.create("/simulated", is_directory=True)
        self.files.flush(self.files.root)
        self.clock_offset_ms = 0
        """By how much its wall clock is off."""
        self.boots = 0
        self.dies_in = -1
        """So many changes of its disk later its process dies; negative: it does not."""


class Process:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.is_dead = False


PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)
