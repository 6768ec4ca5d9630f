"""A range of a segment's file on its way to a socket."""

from __future__ import annotations

import errno
import os

from stratalog.model.errors import Corrupt
from stratalog_node.disk.files import SegmentFile

_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What some file systems say to `sendfile`."""
_COPIED_BYTES = 256 << 10


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
        fd, most = self._file.fd(), min(self._size_bytes, at_most)
        try:
            sent = os.sendfile(socket_fd, fd, self._position, most)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            sent = self._send_copied(socket_fd, fd, most)
        self._advance(sent)
        return sent

    def read(self, at_most: int) -> bytes:
        """Take some of what is left into memory, for a connection that encrypts it. Raises: OSError; Corrupt."""
        piece = os.pread(self._file.fd(), min(self._size_bytes, at_most, _COPIED_BYTES), self._position)
        self._advance(len(piece))
        return piece

    def _advance(self, taken: int) -> None:
        if taken == 0:
            raise Corrupt("ends early", source=str(self._file.path), position=self._position)
        self._position += taken
        self._size_bytes -= taken

    def _send_copied(self, socket_fd: int, fd: int, most: int) -> int:
        piece = os.pread(fd, min(most, _COPIED_BYTES), self._position)
        return os.write(socket_fd, piece) if piece else 0

    def release(self) -> None:
        self._file.unpin()
