"""Small files that are written whole, names and directories that survive a power cut, and reads that tell the end of a
file from an error.

All of it blocks: it is called at start, and on the disk threads.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stratalog.machines.leading.disk_health import DiskCall
from stratalog.model.errors import Corrupt, DiskFull, NotFound, Unavailable
from stratalog_node.disk.calls import disk_call


class NamesLost(Unavailable):
    """The flush of a directory failed: which names it holds after a power cut is not known."""


def read_exactly(fd: int, position: int, size_bytes: int, name: str) -> bytes:
    """Raises Corrupt when the file is shorter, Unavailable when the disk fails: an error is never an empty answer."""
    pieces = []
    missing = size_bytes
    while missing:
        try:
            piece = os.pread(fd, missing, position)
        except OSError as error:
            raise Unavailable(f"{name}: cannot read at {position}: {error.strerror}") from error
        if not piece:
            raise Corrupt(f"ends {missing} bytes early", source=name, position=position)
        pieces.append(piece)
        position += len(piece)
        missing -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_from_disk(path: Path) -> bytes:
    """Blocking: what a flushed file holds, and not what is in memory of it. Raises: Unavailable."""
    try:
        with disk_call(DiskCall.READ, path), open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return file.read()
    except OSError as error:
        raise Unavailable(f"{path}: cannot be read: {error.strerror}") from error


def write_error(path: Path, error: OSError) -> DiskFull | Unavailable:
    """What to raise for it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"{path}: no space left: free space, or wait for uploads and retention; a node that runs resumes writes by "
            "itself, one that did not start must be started again"
        )
    return Unavailable(f"{path}: cannot write: {error.strerror}")


def made_file(path: Path) -> int:
    """An empty file, open for reading and writing, in place of whatever lay there. Raises: DiskFull, Unavailable."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags, 0o640)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, flags, 0o640)
    except OSError as error:
        raise write_error(path, error) from error


def sync_directory(path: Path) -> None:
    """Make file names in a directory durable. Blocking; for disk threads. Raises: NotFound, Unavailable (NamesLost when
    it was tried)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"{path}: the directory is gone") from None
    except OSError as error:
        raise write_error(path, error) from error
    try:
        with disk_call(DiskCall.FLUSH, path):
            os.fsync(fd)
    except OSError as error:
        raise NamesLost(f"{path}: the directory cannot be flushed: {error.strerror}") from error
    finally:
        os.close(fd)


def sync_names_of(paths: Iterable[Path]) -> None:
    """Make the names of segment files durable, with those of their shard and topic. Blocking; for disk threads."""
    shards = dict.fromkeys(path.parent for path in paths)
    topics = dict.fromkeys(shard.parent for shard in shards)
    for directory in (*shards, *topics, *dict.fromkeys(topic.parent for topic in topics)):
        sync_directory(directory)


def make_directories(*paths: Path) -> None:
    """Make directories whose names survive a power cut. Blocking; at start. Raises: DiskFull, Unavailable."""
    for path in paths:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(path, error) from error
    for parent in dict.fromkeys(path.parent for path in paths):
        sync_directory(parent)


def read_front(path: Path, size_bytes: int) -> bytes | None:
    """At most the first `size_bytes` of a file, or None when there is none. Blocking. Raises: Unavailable."""
    try:
        with open(path, "rb") as file:
            return file.read(size_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{path}: cannot read: {error.strerror}") from error


_being_written: Final[set[Path]] = set()
_written: Final = threading.Condition()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Threads that write the same file take turns: they would write into the same temporary one."""
    with _written:
        _written.wait_for(lambda: path not in _being_written)
        _being_written.add(path)
    try:
        yield
    finally:
        with _written:
            _being_written.discard(path)
            _written.notify_all()


def write_durably(path: Path, pieces: Iterable[bytes]) -> None:
    """Create or replace a file atomically: temporary name, fsync, rename, fsync of the directory. Blocking.

    Raises: DiskFull, Unavailable; then the file is as it was before.
    """
    write_durably_of(path, lambda _: pieces)


def write_durably_of(path: Path, pieces_of: Callable[[int], Iterable[bytes]]) -> None:
    """As `write_durably`, with content that depends on the file itself, whose descriptor `pieces_of` gets."""
    with _alone(path):
        _replace(path, pieces_of)
    sync_directory(path.parent)


def write_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """As `write_durably`, without a flush: for a file that carries its own checksum and can be made again. Readers
    never see a part of it; after a power cut it may be missing or damaged. Blocking. Raises: as `write_durably`."""
    with _alone(path):
        _replace(path, lambda _: pieces, is_flushed=False)


def _replace(path: Path, pieces_of: Callable[[int], Iterable[bytes]], *, is_flushed: bool = True) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            with disk_call(DiskCall.WRITE, path):
                for piece in pieces_of(file.fileno()):
                    file.write(piece)
                file.flush()
            if is_flushed:
                with disk_call(DiskCall.FLUSH, path):
                    os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise write_error(path, error) from error
        raise


def read_file(path: Path) -> bytes | None:
    """The whole of a small file, or None when there is none. Blocking. Raises: Unavailable."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{path}: cannot read: {error.strerror}") from error
