"""Where each active segment was last known good, in RocksDB: a restart scans only what came after.

The write-ahead log is on but not synced: a checkpoint survives `kill -9`, and after a power cut an older one (or none)
only means a longer scan. A checkpoint is written after the segment's bytes below it were flushed, never before.
Blocking; for disk threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch

from stratalog.formats.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from stratalog.model.errors import Corrupt, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger

log = logger(__name__)


def _name(key: SegmentKey) -> bytes:
    return f"{key.topic_id}/{key.shard}/{key.epoch}".encode()


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

    def load_all(self) -> dict[SegmentKey, Checkpoint]:
        """Every readable checkpoint. A damaged one is dropped: its segment is scanned from the start."""
        found: dict[SegmentKey, Checkpoint] = {}
        for name, value in self._db.items():
            try:
                checkpoint = decode_checkpoint(value, source=f"{self._path}: {name!r}")
            except Corrupt as error:
                log.warning("checkpoint dropped", error=str(error))
                continue
            found[checkpoint.key] = checkpoint
        return found

    def put(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Raises: Unavailable."""
        batch = WriteBatch(raw_mode=True)
        for checkpoint in checkpoints:
            batch.put(_name(checkpoint.key), encode_checkpoint(checkpoint))
        self._write(batch)

    def delete(self, keys: Iterable[SegmentKey]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(_name(key))
        self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:  # rocksdict raises plain Exception
            raise Unavailable(f"{self._path}: cannot write a checkpoint: {error}") from error

    def close(self) -> None:
        self._db.close()
