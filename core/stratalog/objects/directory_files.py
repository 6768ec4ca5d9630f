"""The file work of a directory store: blocking, done in the store's own threads.

Durability: an object is written under a temporary name, flushed, linked to its own name (which fails when that name is
taken) and its folder is flushed, so that a name is only ever seen with its whole body, also after a crash (F50).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from stratalog.model.errors import Corrupt
from stratalog.model.write_steps import in_steps
from stratalog.objects.direct_write import DirectRefused, in_blocks, write_direct

TEMPORARY_FOLDER = ".incoming"
_STALE_TEMPORARY_S = 24 * 3_600
_MAX_BUFFERS = 1_000
_WRITE_BYTES = 512 << 10
"""One write takes at most so much: 8 MiB in one write cost seven times the CPU (`model/write_steps.py`). Not as little
as an append: each write is one more moment in which the event loop and this thread change places."""
_DIRECT_BYTES = 1 << 20
"""Smaller objects, and those whose bytes lie at no block's boundary, go through the page cache."""
_MKDIR_ATTEMPTS = 16


class LinkedNotFlushed(OSError):
    """The object has its name, but the folder could not be flushed: a crash may take it away again."""


class AnotherFileSystem(Exception):
    """The root is gone together with the file system that held it, as when that is unmounted."""


class DirectoryFiles:
    """Writes and removes whole objects below one root, which is made when it is missing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / TEMPORARY_FOLDER
        self._is_prepared = False
        self._device: int | None = None
        """Of the file system that held the root when something was written last."""
        self._devices_above: set[int] = set()
        """Of other file systems, which held the folders above it then: one of them does where nothing is mounted."""
        self._is_cache_needed = False
        """This disk refused a write past the page cache: the next one would cost a call in vain."""

    def write(self, path: Path, buffers: list[memoryview]) -> None:
        self._prepare()
        self.check_place()
        temporary = self._incoming / uuid4().hex
        try:
            try:
                self._write_flushed(temporary, buffers)
            except FileNotFoundError:
                # A person removed the whole directory while the node ran: the store is empty, not broken.
                self._is_prepared = False
                self._prepare()
                self._write_flushed(temporary, buffers)
            self._link(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        try:
            _flush_folder(path.parent)
        except OSError as error:
            raise LinkedNotFlushed(*error.args) from error

    def _write_flushed(self, path: Path, buffers: list[memoryview]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            if not self._has_gone_direct(descriptor, buffers):
                for group in in_steps(buffers, _WRITE_BYTES, _MAX_BUFFERS):
                    _write_all(descriptor, group)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _has_gone_direct(self, descriptor: int, buffers: list[memoryview]) -> bool:
        size_bytes = sum(buffer.nbytes for buffer in buffers)
        if size_bytes < _DIRECT_BYTES or self._is_cache_needed or (blocks := in_blocks(buffers)) is None:
            return False
        try:
            write_direct(descriptor, blocks, size_bytes)
        except DirectRefused:
            self._is_cache_needed = True
            return False
        return True

    def _link(self, temporary: Path, path: Path) -> None:
        for _ in range(_MKDIR_ATTEMPTS):
            try:
                os.link(temporary, path)
            except FileNotFoundError:
                # The folder is new, or a deletion has just taken the empty folder away.
                self.check_place()
                self._make_folder(path.parent)
            else:
                return
        raise OSError(errno.EAGAIN, f"folder of {path} was removed again and again while it was made")

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and flush the names of all that are new."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                new.mkdir(0o750 if new == self._root else 0o777)
            with contextlib.suppress(FileNotFoundError):
                _flush_folder(new.parent)

    def _prepare(self) -> None:
        """Make the root and sweep what dead writers left half written. A file that cannot be swept does no harm."""
        if self._is_prepared:
            return
        self.check_place()
        self._make_folder(self._root)
        self._make_folder(self._incoming)
        oldest = time.time() - _STALE_TEMPORARY_S
        for entry in os.scandir(self._incoming):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)
        self._note_place(os.stat(self._root).st_dev)
        self._is_prepared = True

    def check_place(self) -> None:
        """Raises: AnotherFileSystem. What is written below a place where nothing is mounted is out of sight afterwards,
        and what is looked for there is not gone. A root that was removed is empty, and is made again."""
        if self._device is None or (device := _device_at(self._root)) == self._device:
            return
        if device in self._devices_above or not self._incoming.is_dir():
            raise AnotherFileSystem(f"{self._root} is on another file system than before: is it mounted?")
        self._note_place(device)  # mounted again, or late

    def _note_place(self, device: int) -> None:
        self._devices_above = {_device_at(folder) for folder in self._root.absolute().parents} - {device}
        self._device = device

    def remove(self, paths: Iterable[Path]) -> None:
        folders = set()
        for path in paths:
            folders.add(path.parent)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        for folder in folders:
            self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = folder.parent


def _write_all(descriptor: int, buffers: list[memoryview]) -> None:
    while buffers:
        written = os.writev(descriptor, buffers)
        while buffers and written >= buffers[0].nbytes:
            written -= buffers.pop(0).nbytes
        if written:
            buffers[0] = buffers[0][written:]


def _device_at(folder: Path) -> int:
    """Of the file system that holds the folder, or would hold it."""
    while True:
        try:
            return os.stat(folder).st_dev
        except FileNotFoundError:
            folder = folder.parent


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_range(path: str, start: int, end: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        body = os.pread(descriptor, end - start, start)
        if len(body) == end - start:
            return body
        buffers = [body]
        position = start + len(body)
        while position < end and (buffer := os.pread(descriptor, end - position, position)):
            buffers.append(buffer)
            position += len(buffer)
        if position < end:
            raise Corrupt(f"range [{start}, {end}) ends after the object", source=path, position=position)
        return b"".join(buffers)
    finally:
        os.close(descriptor)


def read_range_into(buffer: memoryview, path: str, start: int) -> None:
    """Fill `buffer` from `start` on. Raises: Corrupt when the object ends before that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position, missing = start, buffer
        while missing and (count := os.preadv(descriptor, [missing], position)):
            missing, position = missing[count:], position + count
        if missing:
            end = start + len(buffer)
            raise Corrupt(f"range [{start}, {end}) ends after the object", source=path, position=position)
    finally:
        os.close(descriptor)
