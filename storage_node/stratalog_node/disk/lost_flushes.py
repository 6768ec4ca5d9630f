"""Files whose flush failed, remembered over restarts: `flush-failed` at the root of a node's directory, a path a line.

Linux counts a page whose writeback failed as written. The next process finds it intact in the page cache, and a flush
of it succeeds, though the disk does not hold it. Writing it again in place does not help either: ext4 counts the block
as written, and returns zeros once the page is gone. So the next start copies each of these files: what the page cache
holds goes into new blocks, through a descriptor that gets every error, and the copy takes the file's name once it is
flushed. A crash in between leaves the file as it was, and its name in the list.

The list lies in the page cache, as the affected pages do, and lasts as long as they do: after a restart of the machine
reads return what the disk holds, with or without the list. So it is not flushed itself.
Threads: `note` on any; the rest at start, blocking. Cost: each file is copied whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stratalog.model.errors import Corrupt, Unavailable
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import read_exactly, read_file, sync_names_of, write_durably

log = logger(__name__)

_STEP = 1 << 20


class LostFlushes:
    """The list for the directory `root`, stored at `path`."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root

    def note(self, file: Path) -> None:
        """Records that the file's flush has failed just now. Call it before the failure is reported."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            try:
                name = file.relative_to(self._root) if file.is_relative_to(self._root) else file.absolute()
                os.write(fd, f"{name}\n".encode())
            finally:
                os.close(fd)
        except OSError as error:
            what = "a failed flush cannot be noted: restart the machine, not the node alone"
            log.error(what, file=str(file), error=str(error))

    def rewrite_files(self) -> int:
        """Make the disk's what only the page cache holds. Returns how many files were copied.

        Raises: DiskFull, Unavailable when a copy cannot be written: start again once it can.
        """
        names = sorted(set((read_file(self._path) or b"").decode(errors="replace").split("\n")) - {""})
        copied = [path for name in names if self._copy(path := self._root / name)]
        sync_names_of(copied)
        if names:
            log.warning("files whose flush had failed were written again", files=len(copied), noted=len(names))
            with suppress(FileNotFoundError):
                self._path.unlink()
        return len(copied)

    def _copy(self, path: Path) -> bool:
        """False if the file is gone or cannot be read; a later open then meets the same error."""
        if not path.is_file():
            return False
        try:
            write_durably(path, _pieces(path))
        except _Unreadable as error:
            log.error("a file whose flush had failed cannot be read", file=str(path), error=str(error))
            return False
        except Unavailable as error:
            raise type(error)(
                f"the last flush of {path} failed, so what is in memory of it must be written again, and that fails, "
                f"too: {error}: make room or see to the disk, then start the node again"
            ) from error
        return True


class _Unreadable(Exception):
    pass


def _pieces(path: Path) -> Iterator[bytes]:
    """Through this process: a copy that the kernel makes may share the blocks that hold nothing."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _Unreadable(error.strerror) from error
    try:
        size_bytes = os.fstat(source).st_size
        for position in range(0, size_bytes, _STEP):
            yield read_exactly(source, position, min(_STEP, size_bytes - position), str(path))
    except (Unavailable, Corrupt) as error:
        raise _Unreadable(str(error)) from error
    finally:
        os.close(source)
