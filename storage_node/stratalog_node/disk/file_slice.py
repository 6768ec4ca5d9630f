"""A range of a segment's file on its way to a socket."""

from __future__ import annotations

import os

from stratalog.model.errors import Corrupt
from stratalog_node.disk.files import SegmentFile


class FileSlice:
    """A range of a file that goes to a socket without passing through this process. Pins the file until `release`."""

    __slots__ = ("_file", "_position", "_size_bytes")

    def __init__(self, file: SegmentFile, position: int, size_bytes: int) -> None:
        file.pin()
        self._file = file
        self._position = position
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def send(self, socket_fd: int, at_most: int) -> int:
        """Send some of what is left; returns how much. Raises: BlockingIOError, OSError; Corrupt when the file ends."""
        sent = os.sendfile(socket_fd, self._file.fd(), self._position, min(self._size_bytes, at_most))
        if sent == 0:
            raise Corrupt("ends early", source=str(self._file.path), position=self._position)
        self._position += sent
        self._size_bytes -= sent
        return sent

    def release(self) -> None:
        self._file.unpin()
