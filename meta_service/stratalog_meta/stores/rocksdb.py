"""The embedded meta store: RocksDB in a directory, each turn of commands one synced batch.

Durability: a batch goes to the write-ahead log with fsync before `write` returns. Damage in the middle of that log or
in any other file is refused at `load`, which reads everything, never skipped; only a torn tail of the log, whose writes
were never acknowledged, is cut.
Threads: all of RocksDB happens on one thread of its own; the caller's event loop never waits for the disk. A write with
`sync` set would hold the interpreter lock while the disk works, and stop every thread of the process for as long;
`flush_wal` gives the lock up.
One process: RocksDB's lock file keeps a second one out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from rocksdict import AccessType, BlockBasedOptions, Cache, DBRecoveryMode, Options, Rdict, WriteBatch

from stratalog.machines.table.records import StoredRecord, TableWrite
from stratalog.model.errors import Corrupt, DiskFull, StratalogError, Unavailable
from stratalog.stored import encoding
from stratalog_meta.stores.spare_room import SpareRoom

WRITE_BUFFER_BYTES = 8 * 1024 * 1024
BLOCK_CACHE_BYTES = 1024 * 1024


class RocksStore:
    def __init__(self, directory: Path, *, known_by: Path | None = None, spare: SpareRoom | None = None) -> None:
        """`known_by` is a file that tells of this store's cluster: with it an empty store is refused at `load`.
        `spare`: room on the same disk for when it is full."""
        self._directory = directory
        self._known_by = known_by
        self._thread: ThreadPoolExecutor | None = None
        self._db: Rdict | None = None
        self._spare = spare or SpareRoom(directory)

    @property
    def source(self) -> str:
        return str(self._directory)

    async def load(self) -> list[StoredRecord]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="meta-store")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        if self._thread is None:
            raise Unavailable(f"the metadata store in {self._directory} is not open: start the service first")
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, commands)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown()

    def _load(self) -> list[StoredRecord]:
        if self._known_by is not None and _is_empty(self._directory):
            raise Corrupt(
                f"no metadata in it, but {self._known_by} names a cluster: put the directory back from a copy, "
                "start it by `stratalog node start --meta URL` if it is a node of a cluster, or start on an empty "
                "--data DIR",
                source=self.source,
                position=0,
            )
        _make_durable_directory(self._directory)
        self._spare.prepare()
        try:
            self._db = Rdict(str(self._directory), _options())
        except Exception as error:  # rocksdict raises bare Exception; the text is all it says
            raise self._failed(error) from error
        try:
            with contextlib.closing(self._items(self._db)) as items:
                return list(encoding.decode(items, self.source))
        except BaseException:
            self._close()
            raise

    def _items(self, db: Rdict) -> Generator[tuple[bytes, bytes], None, None]:
        cursor = db.iter()
        try:
            cursor.seek_to_first()
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            cursor.status()
        except Exception as error:  # see _load
            raise _translated(error, self._directory) from error
        finally:
            # An iterator keeps the store open, and locked, as long as the error's traceback is referenced.
            del cursor

    def _write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        assert self._db is not None, "load comes before write"
        batch = WriteBatch(raw_mode=True)
        for key, value in encoding.encode(chain.from_iterable(commands)):
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._db.write(batch)
            self._db.flush_wal(sync=True)
        except Exception as error:  # see _load
            raise self._failed(error) from error
        if self._spare.is_short:
            self._spare.why_short()

    def _failed(self, error: Exception) -> StratalogError:
        translated = _translated(error, self._directory)
        if isinstance(translated, DiskFull):
            self._spare.is_short = True
        return translated

    def _close(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            # A store that failed may say so once more; nothing that was acknowledged is lost.
            with contextlib.suppress(Exception):
                db.close()


def _options() -> Options:
    """Small: the metadata of a cluster is tens of megabytes, and memory belongs to the page cache."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_max_open_files(64)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(BLOCK_CACHE_BYTES))  # everything is read once, at load
    options.set_block_based_table_factory(blocks)
    return options


def _is_empty(directory: Path) -> bool:
    """Whether the store can be read and has no header. Changes nothing: opened for writing, RocksDB makes a store where
    none is, and deletes the tables that a cut manifest does not name, which a repair could still use."""
    if not (directory / "CURRENT").is_file():
        return True
    try:
        db = Rdict(str(directory), _options(), access_type=AccessType.read_only())
    except Exception:  # opening it for writing reports what is wrong, or which process has it open
        return False
    try:
        return db.get(encoding.HEADER_KEY) is None
    except Exception:  # the same
        return False
    finally:
        db.close()


def _make_durable_directory(directory: Path) -> None:
    """A directory whose entry may vanish in a power cut would take all of the metadata with it."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)  # RocksDB's own files are for everybody
        for path in missing:
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise Unavailable(
            f"cannot make the metadata directory {directory}: {error.strerror}: {_remedy(error)}"
        ) from error


def _remedy(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "free some space"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "let this user write there, or name another directory by --data"
        case errno.ENOTDIR | errno.EEXIST | errno.ENOENT | errno.ENAMETOOLONG | errno.ELOOP:
            return "name another directory by --data"
        case _:
            return "repair the disk, or name another directory by --data"


def _translated(error: Exception, directory: Path) -> StratalogError:
    text = str(error)
    if "lock" in text.lower() and ("hold" in text.lower() or "unavailable" in text.lower()):
        return Unavailable(
            f"the metadata store in {directory} is in use by another process: stop that one, or start with another "
            "directory"
        )
    if "Corruption" in text or "checksum" in text.lower() or "No such file" in text:
        return Corrupt(
            f"RocksDB refuses the metadata store: {text}: put the directory back from a copy, then start again",
            source=str(directory),
            position=0,
        )
    if "No space left" in text:
        return DiskFull(f"no room for the metadata store in {directory}: free space, and it continues ({text})")
    return Unavailable(f"the metadata store in {directory} failed: {text}")
