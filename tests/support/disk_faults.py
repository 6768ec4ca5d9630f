"""Disks of real processes that fail, fill up, hang or are slow: for each directory, and for each kind of call.

A small library (`disk_faults.c`) is compiled with the system's C compiler and preloaded into the processes. It looks at
`write`, `pwrite`, `writev`, `pwritev`, `fallocate` (of Python, RocksDB and all others in the process), at `fsync` and
`fdatasync`, and at `read` and `pread` (not at reads that take only what is in memory), of files below the directories
that a test names. What is wrong may change at any moment:

    faults = DiskFaults(tmp_path)
    node = NodeProcess(data, environment=faults.environment)
    faults.of(data).flush = HANG
    faults.of(data).flush = OK         # hanging calls continue
"""

from __future__ import annotations

import atexit
import errno
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

OK: Final = 0
HANG: Final = -1
EIO: Final = errno.EIO
ENOSPC: Final = errno.ENOSPC

_SLOTS: Final = 16
_SLOT_BYTES: Final = 1_032
_HEAD: Final = struct.Struct("=iiiii")
_SOURCE: Final = Path(__file__).with_suffix(".c")
NO_COMPILER: Final = "disks that fail are made with a C compiler, and there is none (install gcc)"


def has_compiler() -> bool:
    return _compiler() is not None


def _compiler() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name)) is not None), None)


@functools.cache
def _library() -> Path:
    """Compiled once for each process of the tests."""
    compiler = _compiler()
    assert compiler is not None, NO_COMPILER
    folder = tempfile.mkdtemp(prefix="stratalog-disk-faults-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder) / "disk_faults.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(made), str(_SOURCE), "-ldl"], check=True
    )
    return made


class FaultyDirectory:
    """What is wrong with the files below one directory: `OK`, `HANG`, or a number of an error."""

    def __init__(self, shared: mmap.mmap, slot: int) -> None:
        self._shared = shared
        self._at = slot * _SLOT_BYTES

    def _set(self, index: int, value: int) -> None:
        struct.pack_into("=i", self._shared, self._at + 4 * index, value)

    def _get(self, index: int) -> int:
        return int(struct.unpack_from("=i", self._shared, self._at + 4 * index)[0])

    @property
    def write(self) -> int:
        return self._get(0)

    @write.setter
    def write(self, fault: int) -> None:
        self._set(0, fault)

    @property
    def flush(self) -> int:
        return self._get(1)

    @flush.setter
    def flush(self, fault: int) -> None:
        self._set(1, fault)

    @property
    def slow_ms(self) -> int:
        """Each flush takes so long."""
        return self._get(2)

    @slow_ms.setter
    def slow_ms(self, lasting_ms: int) -> None:
        self._set(2, lasting_ms)

    @property
    def read(self) -> int:
        return self._get(3)

    @read.setter
    def read(self, fault: int) -> None:
        self._set(3, fault)

    @property
    def hanging(self) -> int:
        """How many calls hang now, of all processes that run."""
        return self._get(4)

    def heal(self) -> None:
        self.write, self.flush, self.slow_ms, self.read = OK, OK, 0, OK


class DiskFaults:
    """Faults of up to sixteen directories. `environment` is for the processes that are to have them."""

    def __init__(self, folder: Path) -> None:
        table = folder / "disk-faults"
        table.write_bytes(bytes(_SLOTS * _SLOT_BYTES))
        with table.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)
        self._directories: dict[Path, FaultyDirectory] = {}
        self.environment = {"LD_PRELOAD": str(_library()), "DISK_FAULTS": str(table)}

    def of(self, directory: Path) -> FaultyDirectory:
        """That one's, which need not exist yet."""
        path = Path(os.path.realpath(directory))
        if path not in self._directories:
            slot = len(self._directories)
            assert slot < _SLOTS, "no more directories"
            name = os.fsencode(path)
            assert len(name) < _SLOT_BYTES - _HEAD.size, "a shorter path"
            at = slot * _SLOT_BYTES + _HEAD.size
            self._shared[at : at + len(name)] = name
            self._directories[path] = FaultyDirectory(self._shared, slot)
        return self._directories[path]

    def heal(self) -> None:
        for directory in self._directories.values():
            directory.heal()
