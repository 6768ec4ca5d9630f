"""In place of RocksDB: a log of writes in one file of the simulated disk, so that faults of the disk reach it.

A write is in the file when it returns, and on the disk once the file is flushed. What a power cut tore is not read, nor
what lies behind it, as with RocksDB's own log.
"""

from __future__ import annotations

import os
import pickle
import zlib
from pathlib import Path
from typing import Any

from stratalog_node.disk.durable_files import sync_directory

_HEAD_BYTES = 8


class WriteBatch:
    def __init__(self, raw_mode: bool = True) -> None:
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append((key, value))

    def delete(self, key: bytes) -> None:
        self.changes.append((key, None))


class Cursor:
    """Over what was there when it was made."""

    def __init__(self, items: list[tuple[bytes, bytes]]) -> None:
        self._items = items
        self._at = len(items)

    def seek_to_first(self) -> None:
        self._at = 0

    def valid(self) -> bool:
        return self._at < len(self._items)

    def key(self) -> bytes:
        return self._items[self._at][0]

    def value(self) -> bytes:
        return self._items[self._at][1]

    def next(self) -> None:
        self._at += 1

    def status(self) -> None:
        """What a power cut tore was left out when the store was opened."""


class Rdict:
    def __init__(self, path: str, options: Any = None, access_type: Any = None) -> None:
        log = Path(path) / "CURRENT"
        self._values: dict[bytes, bytes] = {}
        is_new = not log.exists()
        self._fd = os.open(log, os.O_RDWR | os.O_CREAT)
        if is_new:
            sync_directory(log.parent)
        data, position = os.pread(self._fd, os.fstat(self._fd).st_size, 0), 0
        while position + _HEAD_BYTES <= len(data):
            size = int.from_bytes(data[position : position + 4], "big")
            body = data[position + _HEAD_BYTES : position + _HEAD_BYTES + size]
            # zeros, which are whole by their checksum, or the front of a write
            if (
                not size
                or len(body) < size
                or zlib.crc32(body) != int.from_bytes(data[position + 4 : position + 8], "big")
            ):
                break
            self._apply(pickle.loads(body))
            position += _HEAD_BYTES + size
        if access_type is None and position < len(data):
            os.ftruncate(self._fd, position)
        self._end = position

    def _apply(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in changes:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def write(self, batch: WriteBatch) -> None:
        body = pickle.dumps(batch.changes)
        head = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big")
        written = os.pwrite(self._fd, head + body, self._end)
        if written < len(head) + len(body):
            os.ftruncate(self._fd, self._end)
            raise OSError("no space left")
        self._end += written
        self._apply(batch.changes)

    def flush_wal(self, sync: bool = False) -> None:
        os.fsync(self._fd)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def iter(self) -> Cursor:
        return Cursor(sorted(self._values.items()))

    def close(self) -> None:
        os.close(self._fd)
