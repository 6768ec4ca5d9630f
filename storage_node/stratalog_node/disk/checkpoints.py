"""Where each active segment was last known good, in RocksDB: a restart scans only what came after.

The write-ahead log is on but not synced: a checkpoint survives `kill -9`, and after a power cut an older one (or none)
only means a longer scan. A checkpoint is written after the segment's bytes below it were flushed, never before, so it
also proves that every offset below its `next_offset` was on the disk (`machines.restart.shard_restart` relies on that).
The checkpoint of data that a file never held, or no longer holds, is revoked, so that no power cut brings it back.
For the same reason a damaged store is not repaired, which would bring such checkpoints back: it is set aside for a
human, and an empty one takes its place. Everything is read when the store is opened.
Blocking; for disk threads.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from rocksdict import AccessType, DbClosedError, Options, Rdict, WriteBatch

from stratalog.formats.disk.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from stratalog.machines.leading.disk_health import DiskCall
from stratalog.model.errors import Corrupt, DiskFull, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog_node.disk.calls import disk_call
from stratalog_node.disk.durable_files import sync_directory

log = logger(__name__)

DAMAGED_SUFFIX: Final = ".damaged"
_NO_SPACE: Final = ("No space left", "Disk quota exceeded")
"""How RocksDB's errors name a full disk."""


def _name(key: SegmentKey) -> bytes:
    return f"{key.topic_id}/{key.shard}/{key.epoch}".encode()


def _log_dropped(what: str) -> None:
    log.warning("checkpoint dropped", error=what)


def _log_unreadable(what: str) -> None:
    log.warning("checkpoints cannot be read", error=what)


def flushed_ends(path: Path, report: Callable[[str], None] = _log_unreadable) -> dict[SegmentKey, int]:
    """For each segment with a checkpoint, the offset below which all was on the disk. Works while a node has the store
    open; empty if there is no store, or none that can be read: callers use it only as additional evidence. Each piece
    of damage is reported."""
    if not (path / "CURRENT").is_file():
        return {}
    damage: list[str] = []
    for _ in range(2):  # files go while a running node compacts them: then the second attempt succeeds
        damage.clear()
        try:
            db = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
            try:
                found = {checkpoint.key: checkpoint.next_offset for checkpoint in _readable(db, path, damage.append)}
            finally:
                db.close()
        except Exception as error:  # rocksdict raises plain Exception
            damage.append(f"{path}: the checkpoint store cannot be read: {error}")
            found = {}
        if not damage:
            break
    for what in damage:
        report(what)
    return found


def _items(db: Rdict) -> Generator[tuple[bytes, bytes], None, None]:
    """Raises: what rocksdict raises. Its own iterators end at damage as if nothing followed."""
    cursor = db.iter()
    try:
        cursor.seek_to_first()
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        cursor.status()
    finally:
        # An iterator keeps the store open, and locked, as long as the error's traceback is referenced.
        del cursor


def _readable(db: Rdict, path: Path, report: Callable[[str], None] = _log_dropped) -> Iterator[Checkpoint]:
    for name, value in _items(db):
        try:
            yield decode_checkpoint(value, source=f"{path}: {name!r}")
        except Corrupt as error:
            report(str(error))


def _deletion_of(keys: Iterable[SegmentKey]) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    for key in keys:
        batch.delete(_name(key))
    return batch


def _opened(path: Path) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(4 << 20)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(64)
    return Rdict(str(path), options)


def _is_in_use(text: str) -> bool:
    return "lock hold" in text or "lock file" in text


def _is_full(text: str) -> bool:
    return any(words in text for words in _NO_SPACE)


def _is_damage(error: Exception) -> bool:
    """And not a disk that fails now, or a lock that another process has."""
    text = str(error)
    is_passing = _is_in_use(text) or "Input/output error" in text or _is_full(text)
    return not is_passing and any(words in text for words in ("Corruption", "No such file", "Invalid argument"))


def _opened_whole(path: Path) -> tuple[Rdict, frozenset[bytes]]:
    """The store, all of which can be read, and the names in it. Raises: what rocksdict raises."""
    db = _opened(path)
    try:
        with closing(_items(db)) as items:
            return db, frozenset(name for name, _ in items)
    except BaseException:
        db.close()
        raise


def _opened_or_new(path: Path) -> tuple[Rdict, frozenset[bytes]]:
    """Raises: OSError, and what rocksdict raises."""
    try:
        return _opened_whole(path)
    except Exception as error:  # rocksdict raises plain Exception
        if not _is_damage(error):
            raise
        kept = path.with_name(path.name + DAMAGED_SUFFIX)
        log.error(
            "the checkpoint store is damaged: it is set aside, and segments are read from their start",
            path=str(path),
            kept_as=str(kept),
            error=str(error),
        )
    shutil.rmtree(kept, ignore_errors=True)
    path.rename(kept)
    path.mkdir()
    sync_directory(path.parent)
    return _opened_whole(path)


class Checkpoints:
    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        try:
            self._db, self._names_at_start = _opened_or_new(path)
        except Exception as error:  # rocksdict raises plain Exception
            hint = "; is another node using it?" if _is_in_use(str(error)) else ""
            raise Unavailable(f"{path}: cannot open the checkpoint store: {error}{hint}") from error
        self._path = path
        self._reopening = threading.Lock()
        self._has_failed = False

    def had(self, key: SegmentKey) -> bool:
        """Whether there was one of this segment when the store was opened. Reads nothing."""
        return _name(key) in self._names_at_start

    def load_all(self) -> dict[SegmentKey, Checkpoint]:
        """Every readable checkpoint. A damaged one is dropped: its segment is scanned from the start. Raises:
        Unavailable."""
        with self._errors("read"):
            return {checkpoint.key: checkpoint for checkpoint in _readable(self._db, self._path)}

    def load(self, key: SegmentKey) -> Checkpoint | None:
        """One segment's; None where there is none, or none that can be read. Raises: Unavailable."""
        try:
            value = self._get(key)
        except Unavailable as error:
            if not _is_damage(error):
                raise
            self._has_failed = True  # since it was opened: opened again, it is set aside
            value = self._get(key)
        if value is None:
            return None
        try:
            found = decode_checkpoint(value, source=f"{self._path}: {key}")
        except Corrupt as error:
            log.warning("checkpoint dropped", error=str(error))
            return None
        return found if found.key == key else None

    def _get(self, key: SegmentKey) -> bytes | None:
        db = self._usable()
        with disk_call(DiskCall.READ, self._path), self._errors("read"):
            found: bytes | None = db.get(_name(key))
            return found

    def put(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Raises: Unavailable."""
        batch = WriteBatch(raw_mode=True)
        for checkpoint in checkpoints:
            batch.put(_name(checkpoint.key), encode_checkpoint(checkpoint))
        self._write(batch)

    def delete(self, keys: Iterable[SegmentKey]) -> None:
        """Those of sealed segments, which are not needed again. Raises: Unavailable."""
        self._write(_deletion_of(keys))

    def revoke(self, keys: Iterable[SegmentKey]) -> None:
        """Once this returns no start finds them again, whatever the power does. Raises: Unavailable, DiskFull."""
        self._write(_deletion_of(keys), is_synced=True)

    def _write(self, batch: WriteBatch, *, is_synced: bool = False) -> None:
        db = self._usable()
        try:
            with disk_call(DiskCall.WRITE, self._path), self._errors("write"):
                db.write(batch)
            if is_synced:
                # A write that syncs would hold the interpreter lock for as long as the disk takes.
                with disk_call(DiskCall.FLUSH, self._path), self._errors("flush"):
                    db.flush_wal(sync=True)
        except Unavailable:
            self._has_failed = True
            raise

    def _usable(self) -> Rdict:
        """After an error RocksDB refuses all that is written, also once the disk works again; and without revoking its
        checkpoint no copy is cut or filled. So it is opened again. Raises: Unavailable."""
        with self._reopening:
            if self._has_failed:
                with disk_call(DiskCall.READ, self._path), self._errors("open"):
                    with suppress(DbClosedError):  # by the last attempt
                        self._db.close()
                    self._db, _ = _opened_or_new(self._path)
                self._has_failed = False
            return self._db

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises plain Exception
            kind = DiskFull if _is_full(str(error)) else Unavailable
            raise kind(f"{self._path}: cannot {what} checkpoints: {error}") from error

    def close(self) -> None:
        """On a full disk some of it stays in the write-ahead log, from which the next start reads it."""
        try:
            self._db.close()
        except Exception as error:  # rocksdict raises plain Exception
            log.warning("the checkpoint store was not closed in order", path=str(self._path), error=str(error))
