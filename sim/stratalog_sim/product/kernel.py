"""The system calls of simulated machines, in place of those of `os`, `time` and `open` while a world runs.

The product's code runs as it is: what it asks of its kernel is answered here. Paths below `ROOT` and descriptors from
`FIRST_FD` on belong to simulated machines; everything else reaches the real kernel.
Random numbers come from the seed.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from stratalog_sim.product.files import Inode
from stratalog_sim.product.loop import VirtualLoop
from stratalog_sim.product.machine import PROCESS, Machine, Process, ProcessDied

ROOT: Final = "/simulated/"
FIRST_FD: Final = 1_000_000
EPOCH_MS: Final = 1_700_000_000_000
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_BLOCK_BYTES: Final = 4096
_BLOCKS: Final = 1 << 24


class Opened:
    """One open file description."""

    __slots__ = ("inode", "machine", "path", "position")

    def __init__(self, machine: Machine, path: str, inode: Inode) -> None:
        self.machine = machine
        self.path = path
        self.inode = inode
        self.position = 0


class Kernel:
    """Of all machines of one world."""

    def __init__(self, loop: VirtualLoop, machines: dict[str, Machine]) -> None:
        self.loop = loop
        self.machines = machines
        self.opened: dict[int, Opened] = {}
        self.sockets: dict[int, Any] = {}
        self._last_fd = FIRST_FD
        self.on_remove: Callable[[Machine, str, Inode], None] = lambda *_: None
        self.on_write: Callable[[Machine, str, Inode, Any, int], None] = lambda *_: None
        self.on_death: Callable[[Process], None] = lambda _: None
        """A process dies in the middle of its disk operations."""
        self.locks: dict[Inode, int] = {}
        """Inodes that are locked, and by which descriptor."""

    # The calling process --------------------------------------------------------------------------------------------
    def _enter(self) -> Process:
        process = PROCESS.get()
        assert process is not None, "a system call outside of every process"
        if process.is_dead:
            raise ProcessDied
        return process

    def _change(self) -> Process:
        """Before a change of a disk: a process may die between any two of them."""
        process = self._enter()
        machine = process.machine
        if machine.dies_in >= 0:
            machine.dies_in -= 1
            if machine.dies_in < 0:
                self.on_death(process)
                raise ProcessDied
        return process

    def new_fd(self) -> int:
        self._last_fd += 1
        return self._last_fd

    def _of(self, fd: int) -> Opened:
        found = self.opened.get(fd)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    def now_ns(self) -> int:
        return self.loop.now_us * 1_000

    # Clocks ---------------------------------------------------------------------------------------------------------
    def monotonic_ns(self) -> int:
        return 1_000_000_000_000 + self.now_ns()

    def wall_ns(self) -> int:
        process = PROCESS.get()
        offset_ms = process.machine.clock_offset_ms if process is not None else 0
        return (EPOCH_MS + offset_ms) * 1_000_000 + self.now_ns()

    # Files ----------------------------------------------------------------------------------------------------------
    def open(self, path: str, flags: int) -> int:
        process = self._enter()
        files = process.machine.files_of(path)
        try:
            inode = files.find(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            self._change()
            inode = files.create(path)
        else:
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if flags & os.O_TRUNC:
                self._change()
                files.truncate(inode, 0)
        fd = self.new_fd()
        self.opened[fd] = opened = Opened(process.machine, path, inode)
        if flags & os.O_APPEND:
            opened.position = len(inode.data)
        return fd

    def close(self, fd: int) -> None:
        found = self.opened.pop(fd, None)
        if found is not None and self.locks.get(found.inode) == fd:
            del self.locks[found.inode]

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._enter()
        return bytes(self._of(fd).inode.data[position : position + size])

    def preadv(self, fd: int, buffers: Sequence[Any], position: int, flags: int = 0) -> int:
        self._enter()
        data, count = self._of(fd).inode.data, 0
        for buffer in buffers:
            piece = data[position + count : position + count + len(buffer)]
            memoryview(buffer).cast("B")[: len(piece)] = piece
            count += len(piece)
        return count

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int, flags: int = 0) -> int:
        self._change()
        return self._write(fd, b"".join(buffers), position)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        self._change()
        return self._write(fd, data, position)

    def _write(self, fd: int, data: Any, position: int) -> int:
        opened = self._of(fd)
        written = opened.machine.files.write(opened.inode, data, position, self.wall_ns())
        self.on_write(opened.machine, opened.path, opened.inode, data, position)
        return written

    def read(self, fd: int, size: int) -> bytes:
        opened = self._of(fd)
        piece = self.pread(fd, size, opened.position)
        opened.position += len(piece)
        return piece

    def write(self, fd: int, data: Any) -> int:
        opened = self._of(fd)
        written = self.pwrite(fd, data, opened.position)
        opened.position += written
        return written

    def lseek(self, fd: int, position: int, how: int) -> int:
        opened = self._of(fd)
        size = len(opened.inode.data)
        if how == os.SEEK_DATA:
            if position >= size:
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
            return position
        opened.position = {os.SEEK_SET: 0, os.SEEK_CUR: opened.position, os.SEEK_END: size}[how] + position
        return opened.position

    def ftruncate(self, fd: int, size: int) -> None:
        self._change()
        opened = self._of(fd)
        opened.machine.files.truncate(opened.inode, size)

    def fsync(self, fd: int) -> None:
        self._change()
        opened = self._of(fd)
        opened.machine.files.flush(opened.inode)

    def fstat(self, fd: int) -> os.stat_result:
        opened = self._of(fd)
        return opened.machine.files.status(opened.inode)

    def sendfile(self, out_fd: int, in_fd: int, offset: int, count: int) -> int:
        self._enter()
        piece = bytes(self._of(in_fd).inode.data[offset : offset + count])
        return int(self.sockets[out_fd].sendmsg([piece])) if piece else 0

    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        opened = self._of(fd)
        if offset + size > len(opened.inode.data):
            self.ftruncate(fd, offset + size)

    @property
    def mmap_module(self) -> Any:
        """In place of `mmap`, for files in memory."""
        return SimpleNamespace(mmap=self._map, ALLOCATIONGRANULARITY=_BLOCK_BYTES)

    def _map(self, fd: int, size: int, *, offset: int = 0) -> bytearray:
        self._enter()
        return self._of(fd).inode.map(offset, size)

    # Names ----------------------------------------------------------------------------------------------------------
    def stat(self, path: str) -> os.stat_result:
        files = self._enter().machine.files_of(path)
        return files.status(files.find(path))

    def mkdir(self, path: str) -> None:
        self._change().machine.files.create(path, is_directory=True)

    def unlink(self, path: str) -> None:
        process = self._change()
        inode = process.machine.files_of(path).remove(path)
        self.on_remove(process.machine, path, inode)

    def rmdir(self, path: str) -> None:
        self._change().machine.files.remove(path, is_directory=True)

    def rename(self, source: str, target: str) -> None:
        self._change().machine.files_of(source).rename(source, target)

    def listdir(self, path: str) -> list[str]:
        inode = self._enter().machine.files_of(path).find(path)
        if not inode.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        names = list(inode.entries)
        self.loop.rng.shuffle(names)  # a file system has no order
        return names

    def scandir(self, path: str) -> Any:
        return _Scanned(self, path, self.listdir(path))

    def statvfs(self, path: str) -> Any:
        free = 0 if self._enter().machine.files.is_full else _BLOCKS // 2
        return SimpleNamespace(f_bfree=free, f_bavail=free, f_blocks=_BLOCKS, f_frsize=_BLOCK_BYTES)

    def flock(self, fd: int, how: int) -> None:
        inode = self._of(fd).inode
        holder = self.locks.get(inode)
        if holder is not None and holder in self.opened:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self.locks[inode] = fd

    # Processes ------------------------------------------------------------------------------------------------------
    def forget(self, machine: Machine) -> None:
        """The descriptors of a dead process."""
        for fd in [fd for fd, opened in self.opened.items() if opened.machine is machine]:
            self.close(fd)

    # In place of the real ones --------------------------------------------------------------------------------------
    @contextmanager
    def installed(self, seed: int) -> Iterator[None]:
        """While a world runs. Not reentrant."""
        rng = random.Random(seed)
        before = random.getstate()
        random.seed(seed)
        patches = [*self._of_paths(), *self._of_descriptors(), *self._of_time(), *_of_chance(rng)]
        originals = [(where, name, getattr(where, name)) for where, name, _ in patches]
        try:
            for where, name, changed in patches:
                setattr(where, name, changed)
            yield
        finally:
            for where, name, original in originals:
                setattr(where, name, original)
            random.setstate(before)

    def _of_time(self) -> list[tuple[Any, str, Any]]:
        return [
            (time, "monotonic_ns", self.monotonic_ns),
            (time, "monotonic", lambda: self.monotonic_ns() / 1e9),
            (time, "perf_counter_ns", self.monotonic_ns),
            (time, "perf_counter", lambda: self.monotonic_ns() / 1e9),
            (time, "time_ns", self.wall_ns),
            (time, "time", lambda: self.wall_ns() / 1e9),
            (time, "sleep", lambda _: None),
        ]

    def _of_paths(self) -> list[tuple[Any, str, Any]]:
        ours: dict[str, Callable[..., Any]] = {
            "stat": lambda path, **_: self.stat(path),
            "lstat": lambda path, **_: self.stat(path),
            "mkdir": lambda path, *_, **__: self.mkdir(path),
            "unlink": lambda path, **_: self.unlink(path),
            "remove": lambda path, **_: self.unlink(path),
            "rmdir": lambda path, **_: self.rmdir(path),
            "rename": lambda path, target, **_: self.rename(path, os.fspath(target)),
            "replace": lambda path, target, **_: self.rename(path, os.fspath(target)),
            "listdir": self.listdir,
            "scandir": self.scandir,
            "statvfs": self.statvfs,
            "open": lambda path, flags, *_, **__: self.open(path, flags),
        }
        patches: list[tuple[Any, str, Any]] = [(os, "geteuid", lambda: 0)]  # whose the files are: see `status`
        patches += [(os, name, _by_path(our, getattr(os, name))) for name, our in ours.items()]
        opener = self._opener(builtins.open)
        return [*patches, (builtins, "open", opener), (io, "open", opener)]

    def _of_descriptors(self) -> list[tuple[Any, str, Any]]:
        ours: dict[str, Callable[..., Any]] = {
            "close": self.close,
            "read": self.read,
            "write": self.write,
            "pread": self.pread,
            "preadv": self.preadv,
            "pwrite": self.pwrite,
            "pwritev": self.pwritev,
            "lseek": self.lseek,
            "ftruncate": self.ftruncate,
            "fsync": self.fsync,
            "fdatasync": self.fsync,
            "fstat": self.fstat,
            "sendfile": self.sendfile,
            "posix_fallocate": self.posix_fallocate,
            "posix_fadvise": lambda *_: None,
        }
        patches = [(os, name, _by_fd(our, getattr(os, name))) for name, our in ours.items()]
        return [
            *patches,
            (fcntl, "flock", _by_fd(self.flock, fcntl.flock)),
            (fcntl, "ioctl", _by_fd(_no_ioctl, fcntl.ioctl)),
        ]

    def _opener(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opener(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if isinstance(file, int):
                if file < FIRST_FD:
                    return real(file, mode, *args, **options)
                return io.BufferedReader(_Raw(self, file))
            path = os.fspath(file)
            if path == _BOOT_ID and (process := PROCESS.get()) is not None:
                return io.StringIO(f"boot-{process.machine.name}-{process.machine.boots}\n")
            if not (isinstance(path, str) and path.startswith(ROOT)):
                return real(file, mode, *args, **options)
            is_read = "r" in mode
            fd = self.open(path, os.O_RDONLY if is_read else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            raw = _Raw(self, fd)
            whole: Any = io.BufferedReader(raw) if is_read else io.BufferedWriter(raw)
            return whole if "b" in mode else io.TextIOWrapper(whole, "utf-8")

        return opener


def _by_path(ours: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **options: Any) -> Any:
        name = path if isinstance(path, str) else os.fspath(path) if hasattr(path, "__fspath__") else None
        if isinstance(name, str) and name.startswith(ROOT):
            return ours(name, *args, **options)
        return real(path, *args, **options)

    return call


def _by_fd(ours: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    def call(fd: Any, *args: Any) -> Any:
        return ours(fd, *args) if isinstance(fd, int) and fd >= FIRST_FD else real(fd, *args)

    return call


def _of_chance(rng: random.Random) -> list[tuple[Any, str, Any]]:

    class Seeded(random.Random):
        """A generator that was created without a seed takes one from the world, not from the machine."""

        def __init__(self, seed: Any = None) -> None:
            super().__init__(rng.random() if seed is None else seed)

    return [
        (random, "Random", Seeded),
        (os, "urandom", rng.randbytes),
        (random, "_urandom", rng.randbytes),
        (secrets, "token_hex", lambda size=16: rng.randbytes(size).hex()),
        (secrets, "token_bytes", rng.randbytes),
    ]


def _no_ioctl(*_: Any) -> Any:
    raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))


class _Raw(io.RawIOBase):
    """An open file for Python's own buffers."""

    def __init__(self, kernel: Kernel, fd: int) -> None:
        super().__init__()
        self._kernel = kernel
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, source_identity: int = os.SEEK_SET) -> int:
        return self._kernel.lseek(self._fd, offset, source_identity)

    def readinto(self, buffer: Any) -> int:
        piece = self._kernel.read(self._fd, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def write(self, data: Any) -> int:
        return self._kernel.write(self._fd, bytes(data))

    def close(self) -> None:
        if not self.closed:
            self._kernel.close(self._fd)
        super().close()


class _Scanned:
    """What `scandir` gives: entries, and a context."""

    def __init__(self, kernel: Kernel, path: str, names: list[str]) -> None:
        self._entries = iter([_Entry(kernel, f"{path.rstrip('/')}/{name}", name) for name in names])

    def __enter__(self) -> _Scanned:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)


class _Entry:
    def __init__(self, kernel: Kernel, path: str, name: str) -> None:
        self._kernel = kernel
        self.path = path
        self.name = name

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        import stat

        return stat.S_ISDIR(self._kernel.stat(self.path).st_mode)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self.is_dir()

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._kernel.stat(self.path)
