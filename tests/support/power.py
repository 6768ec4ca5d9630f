"""A power cut: puts files back to what was flushed, as a disk does whose cache is lost.

`PowerRecord` listens to `os.fsync` and `os.fdatasync` while it is open (the calls still happen) and remembers, for each
file, how long it was when it was last flushed and where the zeros at its end began, and for each directory, which names
it had. `cut` then shortens files, makes zeros again of what was written over such zeros, and removes names that no
flush covers. RocksDB's files, written by its own code, are left alone.
Fits files that only grow, also into room ahead, which is what data files here are; a removal that no flush covers is
left done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_SPARED = "checkpoints"


class PowerRecord:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.fail_next: Callable[[Path], OSError | None] = lambda _: None
        """Asked before each flush: an error to raise instead of flushing."""
        self.flushes = 0
        self._sizes: dict[tuple[int, int], tuple[int, int]] = {}
        """Of each file: where its zeros begin, and where it ends."""
        self._names: dict[Path, set[str]] = {root: set(os.listdir(root))} if root.exists() else {}
        self._lock = threading.Lock()
        self._real = (os.fsync, os.fdatasync)

    def __enter__(self) -> Self:
        os.fsync, os.fdatasync = self._flush(os.fsync), self._flush(os.fdatasync)  # type: ignore[assignment]
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.fsync, os.fdatasync = self._real  # type: ignore[assignment]

    def _flush(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def flush(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if self.root not in (path, *path.parents) or _SPARED in path.parts:
                real(fd)
                return
            error = self.fail_next(path)
            if error is not None:
                raise error
            # What is there when the flush begins is what it covers.
            status = os.fstat(fd)
            names = set(os.listdir(fd)) if path.is_dir() else None
            zeros_begin = 0 if names is not None else _zeros_begin(fd, status.st_size)
            with self._lock:
                self.flushes += 1
                if names is not None:
                    self._names[path] = names
                else:
                    self._sizes[status.st_dev, status.st_ino] = zeros_begin, status.st_size

        return flush

    def cut(self) -> None:
        """Lose what was not flushed. The process that wrote it must be gone."""
        self._cut(self.root)

    def _cut(self, directory: Path) -> None:
        known = self._names.get(directory, set())
        for entry in sorted(directory.iterdir()):
            if entry.name == _SPARED or entry.name == "lock":
                continue
            if entry.is_dir():
                self._cut(entry)
                if entry.name not in known and not any(entry.iterdir()):
                    entry.rmdir()
                elif entry.name not in known:
                    _remove_tree(entry)
            elif entry.name not in known:
                entry.unlink()
            else:
                status = entry.stat()
                zeros_begin, flushed = self._sizes.get((status.st_dev, status.st_ino), (0, 0))
                os.truncate(entry, min(zeros_begin, status.st_size))
                os.truncate(entry, min(flushed, status.st_size))


def _zeros_begin(fd: int, size_bytes: int) -> int:
    with open(f"/proc/self/fd/{fd}", "rb") as file:  # it may be open for writing only
        return len(file.read(size_bytes).rstrip(b"\0"))


def _remove_tree(directory: Path) -> None:
    for entry in list(directory.iterdir()):
        if entry.is_dir():
            _remove_tree(entry)
        else:
            entry.unlink()
    directory.rmdir()
