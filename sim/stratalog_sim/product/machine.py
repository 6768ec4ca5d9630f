"""Machines and the processes on them. Whatever runs in the simulation runs in the context of one process.

The context variable goes with tasks and callbacks by itself, so a system call knows who makes it.
"""

from __future__ import annotations

from contextvars import ContextVar
from random import Random

from stratalog_sim.product.files import FileSystem

MEMORY = "/simulated/memory"


class ProcessDied(BaseException):
    """The process that made this system call is dead. Never caught: its callbacks do not run again."""


class Machine:
    """A host with a clock and a disk. Both outlive its processes."""

    def __init__(self, name: str, host: str, rng: Random) -> None:
        self.name = name
        self.host = host
        self._rng = rng
        self.files = self._new_file_system()
        self.memory = self._memory()
        """A file system in memory: it outlives processes, and no boot."""
        self.clock_offset_ms = 0
        """By how much its wall clock is off."""
        self.boots = 0
        self.dies_in = -1
        """So many changes of its disk later its process dies; negative: it does not."""

    def _new_file_system(self) -> FileSystem:
        files = FileSystem(self._rng)
        files.create("/simulated", is_directory=True)
        files.flush(files.root)
        return files

    def _memory(self) -> FileSystem:
        memory = self._new_file_system()
        memory.create(MEMORY, is_directory=True)
        return memory

    def files_of(self, path: str) -> FileSystem:
        return self.memory if path.startswith(MEMORY) else self.files

    def process_died(self) -> None:
        self.dies_in = -1
        for inode in self.memory.find(MEMORY).entries.values():
            inode.unmap()

    def lose_power(self) -> None:
        self.boots += 1
        self.files.cut_power()
        self.memory = self._memory()

    def forget_memory(self) -> None:
        """Its next process runs in another container."""
        self.memory = self._memory()

    def get_new_disk(self) -> None:
        self.boots += 1
        self.files = self._new_file_system()
        self.memory = self._memory()


class Process:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.is_dead = False


PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)
