"""Room on the disk that the embedded store has reserved for itself. Other data, mostly segments, may fill the disk, and
the store must still be able to write, because the uploads and deletions that make room are metadata too.

The room is a file of zeros. When the store finds the disk full, no data should be written any more (`why_short`). The
room is freed when the store is opened again, and reserved again once more than twice as much is free. A start on a full
disk frees it, too. The file stays, empty, so that a later start knows that the room is in use.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SPARE_BYTES: Final = 2 * 1024 * 1024
"""To open RocksDB again, and for some thousand commits."""


class SpareRoom:
    """Blocking calls, each short. Used on one thread at a time but for `why_short`."""

    def __init__(self, directory: Path, size_bytes: int = SPARE_BYTES) -> None:
        """`directory`: the store's. A copy of it may leave the file out."""
        self._path = directory / "spare-room"
        self._size_bytes = size_bytes
        self.is_short = False
        """The disk was found full, and the room has not been set aside again since."""

    def prepare(self) -> None:
        """The store is about to be opened: set the room aside, or leave it to the store if the disk is full.

        A disk that was always too small for the room has no such file, and nothing waits for it."""
        with suppress(OSError):
            free_bytes = self._free_bytes()
            if self._path.exists():
                enough_bytes = self._size_bytes if self._has_it() else 2 * self._size_bytes
                self.is_short = self.is_short or free_bytes <= enough_bytes
            if self.is_short:
                self._leave()
            elif self._has_it() or free_bytes > 2 * self._size_bytes:
                self._make()

    def why_short(self) -> str | None:
        """Why no data should be written now, if so; sets the room aside again where there is some."""
        if not self.is_short:
            return None
        free_bytes = 0
        with suppress(OSError):
            free_bytes = self._free_bytes()
            if free_bytes > 2 * self._size_bytes:
                self._make()
                self.is_short = False
                return None
        return (
            f"{free_bytes} bytes are free in {self._path.parent}, and the metadata, which found the disk full, need "
            f"{2 * self._size_bytes}: free space or wait for uploads and retention; writes resume by themselves"
        )

    def _has_it(self) -> bool:
        return self._path.exists() and self._path.stat().st_blocks * 512 >= self._size_bytes

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize

    def _make(self) -> None:
        """Raises: OSError; then there is none."""
        if self._has_it():
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self._size_bytes)
        except OSError:
            self._leave()
            raise
        finally:
            os.close(fd)

    def _leave(self) -> None:
        """To the store; only a room that was never used leaves no file."""
        if self.is_short:
            with suppress(FileNotFoundError):
                os.truncate(self._path, 0)
        else:
            self._path.unlink(missing_ok=True)
