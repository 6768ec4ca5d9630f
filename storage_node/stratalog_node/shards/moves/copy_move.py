"""Makes a proven copy of a sealed segment's file in another directory of the node.

The order of its steps is what makes it safe to be killed between any two of them:

1. the bytes are written into the target's folder `moving`, which a start empties, and flushed;
2. they are read back from the disk: header, each batch's CRC, size and digest must be those of the seal record;
3. the index block is written to where it belongs in the target, durably;
4. the file is renamed to its place, and the name is flushed.

Until the rename the old file is the only one that counts; from then on there are two whole ones, and a start takes one
of them (`copy_places.py`). The caller then uses the new one and removes the old one.
Blocking: each step for a disk thread, one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, decode_segment_header
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.model.errors import Corrupt, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord
from stratalog_node.disk.durable_files import (
    made_file,
    read_exactly,
    read_file,
    sync_names_of,
    write_durably,
    write_error,
)
from stratalog_node.disk.layout import moving_path, segment_path
from stratalog_node.disk.segment_scan import SegmentScan

_STEP_BYTES: Final = 1 << 20


class CopyMove:
    """One file, from `source` to the directory with the root `target_root`."""

    def __init__(self, key: SegmentKey, seal: SealRecord, source: Path, target_root: Path) -> None:
        self.key = key
        self.root = target_root
        self.path = segment_path(target_root, key)
        self._seal = seal
        self._source = source
        self._temporary = moving_path(target_root, key)
        self._has_index = self._has_name = False
        """Whether what lies at these names was made by this move: nothing else is ever undone."""

    def steps(self) -> Iterator[int]:
        """Each step yields how many bytes it wrote or read in the target; after the last the copy counts.

        Raises: Corrupt when the source or what was written is not what the seal record says; Unavailable, also when
        another file of the segment lies there; DiskFull. Then nothing that was made is left in the target.
        """
        try:
            yield from self._write()
            yield from prove(self._temporary, self.key, self._seal)
            self._write_index()
            yield 0
            self._give_name()
            yield 0
        except (StratalogError, OSError) as error:
            self.undo()
            if isinstance(error, OSError):
                raise write_error(self.path, error) from error
            raise

    def undo(self) -> None:
        """Remove what was made in the target. Requires: nothing uses it."""
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)
            if self._has_index:
                self.path.with_suffix(".idx").unlink(missing_ok=True)
            if self._has_name:
                self.path.unlink(missing_ok=True)

    def _write(self) -> Iterator[int]:
        size_bytes = SEGMENT_HEADER_BYTES + self._seal.size_bytes
        try:
            source = os.open(self._source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"{self._source}: cannot open: {error.strerror}") from error
        try:
            target = made_file(self._temporary)
            try:
                for position in range(0, size_bytes, _STEP_BYTES):
                    data = read_exactly(source, position, min(_STEP_BYTES, size_bytes - position), str(self._source))
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.pwrite(target, rest, position + len(data) - len(rest)) :]
                    yield len(data)
                os.fsync(target)
                os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)  # so that the proof reads the disk
            finally:
                os.close(target)
        finally:
            os.close(source)
        yield 0

    def _write_index(self) -> None:
        """As it is: a read checks it, and makes the points again where it is missing or damaged."""
        self._check_free()
        data = read_file(self._source.with_suffix(".idx"))
        if data is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._has_index = True
        write_durably(self.path.with_suffix(".idx"), [data])

    def _check_free(self) -> None:
        """A file there may be a copy that is made again since its directory failed, or one kept for a person."""
        if self.path.exists():
            raise Unavailable(f"{self.path}: another file of the segment is there: the next start decides between them")

    def _give_name(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._check_free()
        os.rename(self._temporary, self.path)
        self._has_name = True
        sync_names_of([self.path])


def prove(path: Path, key: SegmentKey, seal: SealRecord) -> Iterator[int]:
    """Read a sealed segment's file from the disk and compare it with the seal record. Blocking, in steps that yield how
    many bytes they read. Raises: Corrupt, Unavailable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"{path}: cannot open: {error.strerror}") from error
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        identity = decode_segment_header(read_exactly(fd, 0, SEGMENT_HEADER_BYTES, str(path)), source=str(path))
        if identity.key != key:
            raise Corrupt(f"is segment {identity.key} and not {key}", source=str(path), position=0)
        scan = SegmentScan.begin(key, ProducerTable())

        def read(position: int, size_bytes: int) -> bytes:
            return read_exactly(fd, SEGMENT_HEADER_BYTES + position, size_bytes, str(path))

        while scan.position < seal.size_bytes and scan.stopped is None:
            before = scan.position
            scan.advance(read, seal.size_bytes, lambda: scan.position - before >= _STEP_BYTES)  # noqa: B023 at once
            yield scan.position - before
        if (scan.position, scan.next_offset, scan.digest) != (seal.size_bytes, seal.end_offset, seal.digest):
            raise Corrupt(
                f"is not what the seal record says: {scan.stopped or 'its digest differs'}",
                source=str(path),
                position=SEGMENT_HEADER_BYTES + scan.position,
            )
    finally:
        os.close(fd)
