"""Where each active segment was last known good, in RocksDB: a restart scans only what came after.

The write-ahead log is on but not synced: a checkpoint survives `kill -9`, and after a power cut an older one (or none)
only means a longer scan. A checkpoint is written after the segment's bytes below it were flushed, never before, so it
is a witness as well: every offset below its `next_offset` was on the disk (`machines.shard_restart` goes by that).
What a file never held, or holds no longer, is revoked, so that no power cut brings such a witness back.
Blocking; for disk threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict, WriteBatch

from stratalog.formats.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from stratalog.model.errors import Corrupt, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger

log = logger(__name__)


def _name(key: SegmentKey) -> bytes:
    return f"{key.topic_id}/{key.shard}/{key.epoch}".encode()


def flushed_ends(path: Path) -> dict[SegmentKey, int]:
    """Of each segment with a checkpoint, below which offset all was on the disk. Also while a node has it open; empty
    when there is no store, or none that can be read: it only ever adds to what is known."""
    if not (path / "CURRENT").is_file():
        return {}
    try:
        db = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as error:  # rocksdict raises plain Exception
        log.warning("checkpoints cannot be read", path=str(path), error=str(error))
        return {}
    try:
        return {checkpoint.key: checkpoint.next_offset for checkpoint in _readable(db, path)}
    finally:
        db.close()


def _readable(db: Rdict, path: Path) -> Iterator[Checkpoint]:
    for name, value in db.items():
        try:
            yield decode_checkpoint(value, source=f"{path}: {name!r}")
        except Corrupt as error:
            log.warning("checkpoint dropped", error=str(error))


def _deletion_of(keys: Iterable[SegmentKey]) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    for key in keys:
        batch.delete(_name(key))
    return batch


class Checkpoints:
    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(4 << 20)
        options.set_max_write_buffer_number(2)
        options.set_keep_log_file_num(2)
        options.set_max_open_files(64)
        try:
            self._db = Rdict(str(path), options)
        except Exception as error:  # rocksdict raises plain Exception for a lock held elsewhere
            raise Unavailable(
                f"{path}: cannot open the checkpoint store: {error}; is another node using it?"
            ) from error
        self._path = path
        self._names_at_start = frozenset(self._db.keys())

    def had(self, key: SegmentKey) -> bool:
        """Whether there was one of this segment when the store was opened. Reads nothing."""
        return _name(key) in self._names_at_start

    def load_all(self) -> dict[SegmentKey, Checkpoint]:
        """Every readable checkpoint. A damaged one is dropped: its segment is scanned from the start."""
        return {checkpoint.key: checkpoint for checkpoint in _readable(self._db, self._path)}

    def load(self, key: SegmentKey) -> Checkpoint | None:
        """One segment's; None where there is none, or none that can be read. Raises: Unavailable."""
        try:
            value = self._db.get(_name(key))
        except Exception as error:  # rocksdict raises plain Exception
            raise Unavailable(f"{self._path}: cannot read a checkpoint: {error}") from error
        if value is None:
            return None
        try:
            found = decode_checkpoint(value, source=f"{self._path}: {key}")
        except Corrupt as error:
            log.warning("checkpoint dropped", error=str(error))
            return None
        return found if found.key == key else None

    def put(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Raises: Unavailable."""
        batch = WriteBatch(raw_mode=True)
        for checkpoint in checkpoints:
            batch.put(_name(checkpoint.key), encode_checkpoint(checkpoint))
        self._write(batch)

    def delete(self, keys: Iterable[SegmentKey]) -> None:
        """Those of sealed segments, which nobody looks at again. Raises: Unavailable."""
        self._write(_deletion_of(keys))

    def revoke(self, keys: Iterable[SegmentKey]) -> None:
        """Once this returns no start finds them again, whatever the power does. Raises: Unavailable."""
        self._write(_deletion_of(keys), is_synced=True)

    def _write(self, batch: WriteBatch, *, is_synced: bool = False) -> None:
        try:
            self._db.write(batch)
            if is_synced:
                # A write that syncs would hold the interpreter lock for as long as the disk takes.
                self._db.flush_wal(sync=True)
        except Exception as error:  # rocksdict raises plain Exception
            raise Unavailable(f"{self._path}: cannot write a checkpoint: {error}") from error

    def close(self) -> None:
        self._db.close()
