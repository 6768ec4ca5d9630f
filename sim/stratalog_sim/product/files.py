"""The disk of a simulated machine: what files hold in memory and on the disk, and which names they have in either.

`fsync` of a file brings its written sectors to the disk; `fsync` of a directory brings its names there, with every
change of a name before them. A power cut keeps a prefix of the other changes of names, and any of the other sectors. A
flush that fails loses the sectors for which it was asked: the next one succeeds and does not bring them to the disk.
"""

from __future__ import annotations

import errno
import os
import stat
from random import Random

SECTOR_BYTES = 512


class Inode:
    __slots__ = (
        "data",
        "dirty",
        "durable",
        "durable_size",
        "entries",
        "is_directory",
        "mapped",
        "modified_ns",
        "number",
        "same_in_memory",
        "same_on_disk",
    )

    def __init__(self, number: int, *, is_directory: bool) -> None:
        self.number = number
        self.is_directory = is_directory
        self.entries: dict[str, Inode] = {}
        self.data = bytearray()
        self.durable = bytearray()
        self.durable_size = 0
        self.dirty: set[int] = set()
        """Sectors that were written since the last flush."""
        self.modified_ns = 0
        self.mapped: dict[int, bytearray] = {}
        """By position: pieces that a process has mapped. The file has what they hold (`unmap`)."""
        self.same_in_memory = self.same_on_disk = 0
        """Nothing before here has changed since it was last looked at (`copy_ends.py`)."""

    @property
    def on_disk(self) -> bytes:
        """What a power cut leaves of it for sure."""
        return bytes(self.durable[: self.durable_size])

    def map(self, position: int, size: int) -> bytearray:
        """Returns: memory that is this piece of the file from now on, until it is unmapped."""
        piece = self.mapped[position] = bytearray(self.data[position : position + size])
        return piece

    def unmap(self) -> None:
        """The process that mapped it is dead: the file keeps what it stored."""
        for position, piece in self.mapped.items():
            self.data[position : position + len(piece)] = piece
            self.changed(position)
        self.mapped = {}

    # What befalls it ----------------------------------------------------------------------------------------------
    def overwrite(self, position: int, flipped: int) -> None:
        """These bits of one byte are others, in memory and on the disk."""
        self.data[position] ^= flipped
        self.changed(position)
        if position < len(self.durable):
            self.durable[position] ^= flipped
            self.changed_on_disk(position)

    def cut(self, begin: int, *, is_zeroed: bool) -> None:
        """What lies from there on is gone, or zeros."""
        rest = len(self.data) - begin if is_zeroed else 0
        self.data[begin:] = bytes(rest)
        self.changed(begin)
        self._is_on_disk()

    def copied(self) -> Inode:
        """All that is there now, as a file system would show it after a clean stop."""
        copy = Inode(self.number, is_directory=self.is_directory)
        copy.entries = {name: inode.copied() for name, inode in self.entries.items()}
        copy.data, copy.modified_ns = bytearray(self.data), self.modified_ns
        copy._is_on_disk()
        return copy

    def _is_on_disk(self) -> None:
        self.durable, self.durable_size = bytearray(self.data), len(self.data)
        self.changed_on_disk(0)
        self.dirty.clear()

    def changed(self, begin: int) -> None:
        self.same_in_memory = min(self.same_in_memory, begin)

    def changed_on_disk(self, begin: int) -> None:
        self.same_on_disk = min(self.same_on_disk, begin)

    def resize_on_disk(self, size: int) -> None:
        self.changed_on_disk(min(size, self.durable_size))
        self.durable_size = size

    def touched(self, begin: int, end: int) -> None:
        self.changed(begin)
        self.dirty.update(range(begin // SECTOR_BYTES, -(-end // SECTOR_BYTES)))


_Change = tuple[Inode, str, "Inode | None", "Inode | None"]
"""A directory, a name in it, and what it named before and names now."""


class FileSystem:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._inodes = 1
        self.root = Inode(1, is_directory=True)
        self._changes: list[tuple[_Change, ...]] = []
        """Of names, which no flush brought to the disk yet."""
        self.is_full = False
        self.fails_flushes = False
        self.lost_flushes = 0

    # Names ----------------------------------------------------------------------------------------------------------
    def find(self, path: str) -> Inode:
        inode = self.root
        for part in path.strip("/").split("/"):
            if not part:
                continue
            if not inode.is_directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            found = inode.entries.get(part)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = found
        return inode

    def _place(self, path: str) -> tuple[Inode, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.find(parent), name

    def _change(self, *changes: _Change) -> None:
        for directory, name, _, after in changes:
            if after is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = after
        self._changes.append(changes)

    def create(self, path: str, *, is_directory: bool = False) -> Inode:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        parent, name = self._place(path)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._inodes += 1
        inode = Inode(self._inodes, is_directory=is_directory)
        self._change((parent, name, None, inode))
        return inode

    def remove(self, path: str, *, is_directory: bool = False) -> Inode:
        inode = self.find(path)
        if inode.is_directory != is_directory:
            number = errno.EISDIR if inode.is_directory else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)
        if inode.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        parent, name = self._place(path)
        self._change((parent, name, inode, None))
        return inode

    def rename(self, source: str, target: str) -> None:
        inode = self.find(source)
        old_parent, old_name = self._place(source)
        parent, name = self._place(target)
        if (old_parent, old_name) != (parent, name):
            self._change((parent, name, parent.entries.get(name), inode), (old_parent, old_name, inode, None))

    # Data -----------------------------------------------------------------------------------------------------------
    def write(self, inode: Inode, data: bytes | memoryview, position: int, now_ns: int) -> int:
        size = len(data)
        if self.is_full and position + size > len(inode.data):
            size = max(0, min(size, len(inode.data) - position))
            if not size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if position > len(inode.data):
            inode.changed(len(inode.data))
            inode.data.extend(bytes(position - len(inode.data)))
        inode.data[position : position + size] = memoryview(data)[:size]
        inode.touched(position, position + size)
        inode.modified_ns = now_ns
        return size

    def truncate(self, inode: Inode, size: int) -> None:
        before = len(inode.data)
        if size < before:
            del inode.data[size:]
            inode.touched(size, before)
        else:
            inode.data.extend(bytes(size - before))
            inode.touched(before, size)

    def flush(self, inode: Inode) -> None:
        if self.fails_flushes:
            self.lost_flushes += bool(inode.dirty)
            inode.dirty.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if inode.is_directory:
            self._flush_names(inode)
            return
        _bring(inode, sorted(inode.dirty))
        inode.dirty.clear()
        inode.resize_on_disk(len(inode.data))

    def _flush_names(self, directory: Inode) -> None:
        last = 0
        for number, changes in enumerate(self._changes, 1):
            if any(changed is directory for changed, *_ in changes):
                last = number
        del self._changes[:last]

    # What a power cut leaves ----------------------------------------------------------------------------------------
    def cut_power(self) -> None:
        kept = self._rng.randrange(len(self._changes) + 1)
        for changes in reversed(self._changes[kept:]):
            for directory, name, before, _ in reversed(changes):
                if before is None:
                    directory.entries.pop(name, None)
                else:
                    directory.entries[name] = before
        self._changes.clear()
        self._cut(self.root)

    def _cut(self, inode: Inode) -> None:
        if inode.is_directory:
            for name in sorted(inode.entries):
                self._cut(inode.entries[name])
            return
        dirty = sorted(inode.dirty)
        if dirty:
            share = self._rng.choice((0.0, 0.0, 0.5, 0.9, 1.0))
            reached = [sector for sector in dirty if self._rng.random() < share]
            _bring(inode, reached)
            if reached:
                end = min(len(inode.data), (reached[-1] + 1) * SECTOR_BYTES)
                inode.resize_on_disk(max(min(inode.durable_size, len(inode.data)), end))
            inode.dirty.clear()
        inode.data = bytearray(inode.durable[: inode.durable_size])
        inode.data.extend(bytes(inode.durable_size - len(inode.data)))
        inode.changed(0)

    # What befalls it ------------------------------------------------------------------------------------------------
    def lose(self, path: str) -> None:
        """A name is gone, also from the disk."""
        self.remove(path)
        self._changes.clear()

    def put_back(self, root: Inode, *, is_file_system: bool) -> None:
        """All is as in this copy. Files are others than those that were copied, unless the whole file system was."""
        self.root = root.copied()
        self._changes.clear()
        if not is_file_system:
            self._renumber(self.root)

    def _renumber(self, inode: Inode) -> None:
        self._inodes += 1
        inode.number = self._inodes
        for one in inode.entries.values():
            self._renumber(one)

    # For who looks on -----------------------------------------------------------------------------------------------
    def status(self, inode: Inode) -> os.stat_result:
        kind = stat.S_IFDIR | 0o750 if inode.is_directory else stat.S_IFREG | 0o640
        seconds = inode.modified_ns / 1e9
        whole = (kind, inode.number, 1, 1, 0, 0, len(inode.data), int(seconds), int(seconds), int(seconds))
        return os.stat_result((*whole, seconds, seconds, seconds, *[inode.modified_ns] * 3))


def _bring(inode: Inode, sectors: list[int]) -> None:
    """These to the disk, as memory holds them."""
    for sector in sectors:
        begin = sector * SECTOR_BYTES
        piece = inode.data[begin : begin + SECTOR_BYTES]
        if len(inode.durable) < begin + len(piece):
            inode.durable.extend(bytes(begin + len(piece) - len(inode.durable)))
        inode.durable[begin : begin + len(piece)] = piece
        inode.changed_on_disk(begin)
