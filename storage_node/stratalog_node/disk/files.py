"""Open files of segments: appends at a known position, reads that never block the loop, bounded descriptors.

Appends and non-blocking reads run on the event loop; blocking reads, flushes and truncation run on the disk threads. A
file is pinned while a thread uses it, so that its descriptor is not closed or reused under it. Durability: `append`
reaches the page cache; only `sync` reaches the disk. `disk/descriptors.py` explains which result of a flush counts.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from stratalog.machines.leading.disk_health import DiskCall
from stratalog.model.errors import Corrupt, NotFound, OutcomeUnknown, Unavailable
from stratalog.model.write_steps import in_steps
from stratalog_node.disk.calls import disk_call
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import NamesLost, made_file, read_exactly, sync_names_of, write_error
from stratalog_node.disk.preallocation import LEAST_APPEND_BYTES, Preallocation

_IOV_MAX = 1024
_TRUNCATE_STEP = 4 << 20
_PROBE_STEP = 256 << 10
_PROBE = memoryview(bytearray(1))
LARGEST_WRITE_BYTES = 512 << 10
WRITE_STEP_BYTES = 128 << 10
"""More than the one is appended in steps of the other: 1 MiB took 0.9 ms of CPU instead of 1.5 where memory was in
pieces. Smaller appends gain nothing by it and pay for each call."""
WRITE_BEHIND_BYTES = 4 << 20
"""So much is appended before its write-back begins: large enough for a disk, and little to wait for at a flush."""


SpareFile: TypeAlias = "tuple[int, Path]"
"""An empty file made ahead (`disk/spare_files.py`): its descriptor, which is the taker's, and where it lies."""


class FlushLost(Unavailable):
    """A flush failed: the kernel may have dropped what was not written yet, and will not say so again."""


def _write(fd: int, buffers: Sequence[memoryview | bytes], position: int, size_bytes: int) -> int:
    """How much of `size_bytes` was written: less where the disk took no more, which is not an error yet."""
    if size_bytes <= LARGEST_WRITE_BYTES and len(buffers) <= _IOV_MAX:
        return os.pwritev(fd, buffers, position)
    written = 0
    for group in in_steps(buffers, WRITE_STEP_BYTES, _IOV_MAX, position):
        wanted = sum(map(len, group))
        count = os.pwritev(fd, group, position + written)
        written += count
        if count != wanted:
            break
    return written


class SegmentFile:
    """One segment's file. `size_bytes`: what was appended whole; room ahead or a torn tail beyond is never read."""

    __slots__ = (
        "_closes_when_unused",
        "_descriptors",
        "_fd",
        "_flushing",
        "_is_cut_due",
        "_is_name_withheld",
        "_is_removed",
        "_is_unflushed",
        "_lost",
        "_naming",
        "_preallocation",
        "_provisional",
        "is_written_behind",
        "path",
        "pins",
        "size_bytes",
        "was_used",
        "written_behind_bytes",
    )

    def __init__(self, path: Path, descriptors: Descriptors, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.pins = 0
        self.was_used = True
        self._descriptors = descriptors
        self._fd = -1
        self._is_cut_due = False
        """Behind `size_bytes` may lie whole batches that were refused, or what a start found damaged."""
        self._is_name_withheld = False
        self._is_removed = False
        self._closes_when_unused = False
        self._is_unflushed = False
        """Batches were written through the present descriptor since a flush began. The header alone does not count: a
        start makes it again where no batch follows it."""
        self._flushing = threading.Lock()
        self._lost = descriptors.lost.get(path, "")
        self._naming = threading.Lock()
        self._provisional: Path | None = None
        """The file's path until it gets its own name."""
        self._preallocation = Preallocation()
        self.written_behind_bytes = 0
        """Up to here write-back has begun (`disk/write_behind.py`)."""
        self.is_written_behind = False
        """A thread is beginning it now."""

    @property
    def must_stay_open(self) -> bool:
        """Whether news of a failed writeback would go with its descriptor, or the way to a file without its name."""
        return (self._is_unflushed or self._provisional is not None) and not self._lost and not self._closes_when_unused

    def pin(self) -> None:
        """A thread is about to use it: its descriptor stays as it is until `unpin`. On the event loop."""
        self.pins += 1

    @property
    def closes_when_unused(self) -> bool:
        return self._closes_when_unused

    def unpin(self) -> None:
        self.pins -= 1
        if self._closes_when_unused and self.pins == 0:
            self.close()

    def close_when_unused(self) -> None:
        """The file gets no new users: it is closed as soon as the last pin is gone."""
        self._closes_when_unused = True
        if self.pins == 0:
            self.close()

    def fd(self) -> int:
        """The descriptor, opened when needed. On the event loop only: threads use `read` and `sync`."""
        self.was_used = True
        if self._fd < 0:
            self._descriptors.check_room()
            try:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                raise NotFound(f"{self.path}: the segment's file is gone") from None
            except OSError as error:
                raise Unavailable(f"{self.path}: cannot open: {error.strerror}") from error
            self._descriptors.opened(self)
        return self._fd

    def create(
        self, header: bytes, spare: Callable[[], SpareFile | None] = lambda: None, *, withholds_name: bool = False
    ) -> None:
        """Make the file with its identity header. Replaces what an unconfirmed earlier attempt left.

        With a `spare` nothing waits for the file system, and the file has its name once `take_name` was called. With
        `withholds_name` it may turn out that another file has that name by right: no flush gives it to this one.
        """
        self._descriptors.check_room()
        try:
            fd, made = spare() or (made_file(self.path), self.path)
        except Unavailable as refusal:
            self._descriptors.calls.append_failed(self.path, refusal)
            raise
        try:
            if os.write(fd, header) != len(header):
                raise OSError(errno.ENOSPC, "short write")
        except OSError as error:
            os.close(fd)
            with suppress(OSError):
                # Half a header under this name would be in the way of the next attempt's recovery.
                os.unlink(made)
            failure = write_error(self.path, error)
            self._descriptors.calls.append_failed(self.path, failure)
            raise failure from error
        self._descriptors.calls.appended(self.path)
        self._fd, self._lost = fd, ""
        self._provisional = made if made != self.path else None
        self._is_name_withheld = withholds_name and self._provisional is not None
        self.size_bytes = len(header)
        self._descriptors.made(self)

    @property
    def is_named(self) -> bool:
        """Whether the next start would find it."""
        return self._provisional is None

    @property
    def is_name_withheld(self) -> bool:
        return self._is_name_withheld

    def take_name(self, *, is_due: bool = False) -> None:
        """Give a file that was a spare its name, which is withheld until `is_due`. Blocking; for disk threads, of a
        pinned file. Raises: NotFound if the file was removed; DiskFull, Unavailable: try again."""
        with self._naming:
            self._is_name_withheld &= not is_due
            if self._provisional is None or self._is_name_withheld or self._is_removed:
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(self._provisional, self.path)
            except FileNotFoundError:
                raise NotFound(f"{self._provisional}: the file made for {self.path} is gone") from None
            except OSError as error:
                raise write_error(self.path, error) from error
            self._provisional = None

    def append(self, buffers: Sequence[memoryview | bytes], size_bytes: int) -> None:
        """Write all of it after `size_bytes`, or nothing: a failed append leaves the file as long as before.

        Raises: DiskFull, Unavailable; OutcomeUnknown when it failed and what it wrote could not be cut off either, so
        that the next start may find some of it. The next append cuts it off first, or is refused.
        """
        fd = self._fd_to_append()
        position = self.size_bytes
        end = position + size_bytes
        if self._is_cut_due:
            self._cut(fd, position)
        try:
            if end > self._preallocation.end_position and size_bytes >= LEAST_APPEND_BYTES:
                is_whole = self._append_with_room(fd, buffers, position, size_bytes)
            else:
                is_whole = _write(fd, buffers, position, size_bytes) == size_bytes
            if not is_whole:
                self._append_slowly(fd, buffers, position, size_bytes)
        except OSError as error:
            failure = write_error(self.path, error)
            self._descriptors.calls.append_failed(self.path, failure)
            self._is_cut_due = True
            try:
                self._cut(fd, position)
            except Unavailable as left:
                raise OutcomeUnknown(f"{failure}; {left}: the next start may find what was refused here") from error
            raise failure from error
        self._descriptors.calls.appended(self.path)
        self.size_bytes = end
        self._is_unflushed = True
        if end - self.written_behind_bytes >= WRITE_BEHIND_BYTES and not self.is_written_behind:
            self._descriptors.write_behind(self)

    def _fd_to_append(self) -> int:
        if self._fd < 0:
            self._descriptors.check_room()  # too many are open: that says nothing of the disk
            try:
                return self.fd()
            except (Unavailable, NotFound) as error:
                self._descriptors.calls.append_failed(self.path, error)
                raise
        self.was_used = True
        return self._fd

    def _append_with_room(self, fd: int, buffers: Sequence[memoryview | bytes], position: int, size_bytes: int) -> bool:
        """Append and make room behind. False: not all is written, perhaps for want of space for the room alone."""
        zeros = self._preallocation.zeros_behind(position + size_bytes)
        try:
            written = _write(fd, [*buffers, zeros], position, size_bytes + len(zeros))
        except OSError:
            return False
        self._preallocation.end_position = position + written
        return written >= size_bytes

    def _append_slowly(self, fd: int, buffers: Sequence[memoryview | bytes], position: int, size_bytes: int) -> None:
        # A short pwritev is legal: continue from the position reached.
        written = 0
        for start in range(0, len(buffers), _IOV_MAX):
            group = [memoryview(b) for b in buffers[start : start + _IOV_MAX]]
            while group:
                count = os.pwritev(fd, group, position + written)
                if count <= 0:
                    raise OSError(errno.EIO, "pwritev wrote nothing")
                written += count
                while group and count >= len(group[0]):
                    count -= len(group.pop(0))
                if group:
                    group[0] = group[0][count:]
        if written != size_bytes:
            raise OSError(errno.EIO, f"wrote {written} of {size_bytes} bytes")

    def _cut(self, fd: int, position: int) -> None:
        """Raises: Unavailable; then nothing has changed."""
        self._preallocation.forget()
        self._is_unflushed = True
        try:
            os.ftruncate(fd, position)
        except OSError as error:
            raise Unavailable(f"{self.path}: cannot be cut to {position} bytes: {error.strerror}") from error
        self._is_cut_due = False

    def end(self) -> None:
        """Nothing is appended any more: cut off what a failed append left. Raises: Unavailable; then it did not end."""
        if self._is_cut_due:
            self._cut(self.fd(), self.size_bytes)

    def cut_room(self) -> None:
        """Cut off the room ahead: nothing is appended any more. Blocking; for disk threads, of a pinned file."""
        with self.descriptor(os.O_RDWR) as fd:
            try:
                os.ftruncate(fd, self.size_bytes)
            except OSError as error:
                raise write_error(self.path, error) from error

    def read_cached(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from the page cache; returns how many bytes were there (0: ask a disk thread)."""
        try:
            return os.preadv(self.fd(), [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return self._read_any(buffer, position)
            raise Unavailable(f"{self.path}: cannot read at {position}: {error.strerror}") from error

    def _read_any(self, buffer: memoryview, position: int) -> int:
        """On a file system that does not tell what is in the page cache."""
        try:
            return os.preadv(self.fd(), [buffer], position)
        except OSError as error:
            raise Unavailable(f"{self.path}: cannot read at {position}: {error.strerror}") from error

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Whether the range seems to be in the page cache: looks at one byte in each 256 KiB and at the last."""
        last = position + size_bytes - 1
        for at in range(position, last, _PROBE_STEP):
            if not self.read_cached(_PROBE, at):
                return False
        return self.read_cached(_PROBE, last) > 0

    def read(self, position: int, size_bytes: int) -> bytes:
        """Blocking read of exactly `size_bytes`; for disk threads, of a pinned file."""
        with disk_call(DiskCall.READ, self.path), self.descriptor(os.O_RDONLY) as fd:
            return read_exactly(fd, position, size_bytes, str(self.path))

    def read_into(self, buffer: memoryview, position: int) -> None:
        """Blocking: fill `buffer`; for disk threads, of a pinned file. Raises: as `read`."""
        with disk_call(DiskCall.READ, self.path), self.descriptor(os.O_RDONLY) as fd:
            missing = buffer
            while missing:
                try:
                    count = os.preadv(fd, [missing], position)
                except OSError as error:
                    raise Unavailable(f"{self.path}: cannot read at {position}: {error.strerror}") from error
                if not count:
                    raise Corrupt(f"ends {len(missing)} bytes early", source=str(self.path), position=position)
                missing, position = missing[count:], position + count

    def sync(self, *, with_names: bool = False) -> None:
        """Blocking fdatasync; for disk threads, of a pinned file. `with_names`: and of the directories that name it.

        Threads come in one at a time: the kernel tells only one of them of a lost page, and the others must not go by
        its silence. Raises: FlushLost, now and at every later try; NotFound, Unavailable when nothing was tried.
        """
        with self._flushing:
            self._require_kept()
            self.take_name()
            with self.descriptor(os.O_RDWR) as fd:
                was_unflushed, self._is_unflushed = self._is_unflushed, False
                try:
                    with disk_call(DiskCall.FLUSH, self.path):
                        os.fdatasync(fd)
                except OSError as error:
                    self._lose(error)
                except BaseException:
                    self._is_unflushed = was_unflushed
                    raise
            self._require_kept()
            if with_names:
                try:
                    sync_names_of([self.path])
                except NamesLost as lost:
                    self._lose(lost)

    def _require_kept(self) -> None:
        """Others may have flushed the same file, through a descriptor of their own: the kernel told them alone."""
        self._lost = self._lost or self._descriptors.lost.get(self.path, "")
        if self._lost:
            raise FlushLost(self._lost)

    def _lose(self, error: OSError | NamesLost) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self._lost = f"{self.path}: flush failed: {reason}; check the disk, then start the node again"
        if not self._is_removed:  # else the file is gone, and another one may have its name
            self._descriptors.note_lost(self.path, self._lost)
        raise FlushLost(self._lost) from error

    @contextmanager
    def descriptor(self, flags: int = os.O_RDWR) -> Iterator[int]:
        """The open descriptor, or one for this use alone: a thread must not open or sweep what the loop looks at, for
        a number closed under the loop's `pwritev` may already be another file's."""
        if self._fd >= 0:
            yield self._fd
            return
        try:
            fd = os.open(self.path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"{self.path}: the segment's file is gone") from None
        except OSError as error:
            raise Unavailable(f"{self.path}: cannot open: {error.strerror}") from error
        try:
            yield fd
        finally:
            os.close(fd)

    def put_back(self, position: int, data: bytes | memoryview) -> None:
        """Write bytes that were here before. Blocking. Requires: `fd` was called and the file is pinned since, or
        nothing else opens files, so that writes and their flush go through one descriptor."""
        fd = self._fd
        assert fd >= 0, "opened before a thread writes to it"
        self._is_unflushed = True
        try:
            with disk_call(DiskCall.WRITE, self.path):
                while data:
                    written = os.pwrite(fd, data, position)
                    data, position = memoryview(data)[written:], position + written
        except OSError as error:
            raise write_error(self.path, error) from error

    def truncate(self, size_bytes: int) -> None:
        """Cut the room ahead or a torn tail. Only recovery calls this."""
        try:
            os.ftruncate(self.fd(), size_bytes)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.size_bytes = size_bytes
        self.written_behind_bytes = min(self.written_behind_bytes, size_bytes)

    def leave_tail(self, size_bytes: int) -> None:
        """What lies behind no longer belongs to the file; the next append cuts it off first."""
        self.size_bytes = size_bytes
        self._is_cut_due = True

    def close(self) -> None:
        self._descriptors.calls.forget(self.path)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._descriptors.closed(self)

    def remove(self, *, is_read: bool = False) -> None:
        """Blocking; for disk threads. Frees the file in steps, so that no single call stalls the disk. While the file
        is still read, this only removes its name; its bytes go with the last descriptor."""
        with self._naming:
            self._is_removed = True  # from now on another file may have its name
            path = self._provisional or self.path
        try:
            # A descriptor of its own: the kept one may be swept, and its number reused, between two steps.
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(fd).st_size
            try:
                os.unlink(path)
            except FileNotFoundError:
                return  # another one frees it, and knows whether it is read
            while size > _TRUNCATE_STEP and not is_read:
                size -= _TRUNCATE_STEP
                os.ftruncate(fd, size)
        finally:
            os.close(fd)
