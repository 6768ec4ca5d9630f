"""Keeps a snapshot of the metadata in the bucket, and notices when the bucket knows more than the metadata do.

One task of the leading service. It puts a snapshot in each interval in which something changed, and earlier if a node
waits to free copies that no snapshot covers yet. If the bucket is away, the task logs it once and tries again; only the
freeing of copies waits for it, which needs the bucket anyway.
Before each snapshot it looks for one that this store never put (`machines/rebuild/meta_backups.py`): then changes are
refused.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from stratalog.formats.bucket.cut import check_cut_name, decode_cut
from stratalog.formats.bucket.meta_snapshot import MetaSnapshotId
from stratalog.formats.bucket.object_names import CutName, ObjectNames
from stratalog.machines.rebuild.meta_backups import (
    LOCK,
    Witness,
    holder_of,
    lasting,
    stranger,
    to_remove,
    words_of_stranger,
)
from stratalog.machines.table.dump import capture
from stratalog.machines.table.locks import MAX_LASTING_HOLDERS
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import AcquireLock, ReleaseLock
from stratalog.model.cut import Cut
from stratalog.model.errors import Conflict, Fenced, NotFound, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock
from stratalog.objects.store import ObjectStore
from stratalog.stored.snapshots import list_snapshots, write_snapshot
from stratalog.telemetry.logs import logger
from stratalog_meta.stats import BackupStats
from stratalog_meta.writer import TableWriter

_log = logger(__name__)

_SHARE: Final = 4
"""The pause after a snapshot is this many times as long as the snapshot took."""
_FIRST_RETRY_S: Final = 1.0
_READ_S: Final = 15.0
"""How long a request for a snapshot waits for the bucket."""
_LEASE_MS: Final = 1
"""The lock is given back at once: only its memory counts."""


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """Where snapshots go, and how often."""

    store: ObjectStore
    interval_s: float = 60.0
    soonest_s: float = 1.0
    """Between two snapshots when a node waits for one."""
    start_patience_s: float = 5.0
    """How long a start waits for the bucket before it continues without it."""
    is_told: Callable[[], bool] = bool
    """Whether the log says, or will soon, why the store cannot be used: a failure has no line of its own then."""


class BucketBackups:
    def __init__(
        self,
        place: BackupPlace,
        clock_ms: Callable[[], int],
        stats: BackupStats,
        new_nonce: Callable[[], UUID] = uuid.uuid4,
    ) -> None:
        self._place = place
        self._clock_ms = clock_ms
        self._stats = stats
        self._new_nonce = new_nonce
        self._witness: Witness | None = None
        self._put_version = -1
        self._is_wanted = asyncio.Event()
        self._trouble: str | None = None
        self._is_logged = False
        self._task: asyncio.Task[Any] | None = None

    async def check(self, table: ShardTable) -> None:
        """Before changes are taken. Raises Fenced when the bucket knows of newer metadata. If the bucket does not
        answer in time, this is logged, and checked later."""
        try:
            async with asyncio.timeout(self._place.start_patience_s):
                await self._check_snapshots(
                    ObjectNames("", table.cluster_id), table.state.locks.get(LOCK), table.version
                )
        except Fenced:
            self._stats.is_older = 1
            raise
        except (TimeoutError, StratalogError) as error:
            self._complain(str(error) or "it did not answer in time")

    async def _check_snapshots(self, names: ObjectNames, lock: Lock | None, version: int) -> tuple[str, ...]:
        """Endings of the names that must stay remembered. Raises Fenced."""
        found = await list_snapshots(self._place.store, names)
        unknown = stranger(found, lock)
        if unknown is not None:
            raise Fenced(words_of_stranger(unknown, version, self._place.store.url))
        newest = max((one for one in found if one.is_headed), default=None)
        if newest is not None and newest.version == version:
            self._put_version = version
        return lasting(found)[-MAX_LASTING_HOLDERS:]

    def start(self, writer: TableWriter, cluster_id: str, version: int) -> None:
        self._witness = Witness(version)
        if self._put_version >= 0:
            self._witness.backed_up(self._put_version)
        self._task = asyncio.get_running_loop().create_task(self._run(writer, cluster_id), name="meta-backups")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # What freeing asks --------------------------------------------------------------------------------------------
    @property
    def witness(self) -> Witness:
        assert self._witness is not None, "start comes first"
        return self._witness

    def require_snapshot(self, segments: tuple[SegmentKey, ...]) -> None:
        """Raises Conflict when no snapshot in the bucket tells that these are complete there; one is made soon."""
        key = self.witness.not_backed_up(segments)
        if key is not None:
            self._is_wanted.set()
            raise Conflict(
                f"segment {key} stays where it is until a snapshot of the metadata that knows its objects is in "
                f"{self._place.store.url}: ask again in a moment{f' ({self._trouble})' if self._trouble else ''}"
            )

    # Snapshots that people made -------------------------------------------------------------------------------------
    async def read_cut(self, cluster_id: str, name: str) -> Cut:
        """Raises: InvalidRequest, NotFound, Corrupt, Unavailable."""
        names = ObjectNames("", cluster_id)
        key = names.build(CutName(check_cut_name(name)))
        try:
            async with asyncio.timeout(_READ_S):
                return decode_cut(await self._place.store.get(key), source=key)
        except NotFound:
            raise NotFound(
                f"there is no snapshot {name!r} in {self._place.store.url}: `stratalog snapshot list` shows all"
            ) from None
        except TimeoutError:
            raise Unavailable(f"{self._place.store.url} does not answer: snapshot {name!r} was not read") from None

    # The task -----------------------------------------------------------------------------------------------------
    async def _run(self, writer: TableWriter, cluster_id: str) -> None:
        loop = asyncio.get_running_loop()
        names = ObjectNames("", cluster_id)
        pause_s, retry_s = 0.0, _FIRST_RETRY_S
        while True:
            await self._wait(pause_s)
            began_s = loop.time()
            try:
                await self._back_up(writer, names)
                self._is_well()
                pause_s, retry_s = self._place.interval_s, _FIRST_RETRY_S
            except Fenced as error:
                self._stats.is_older = 1
                writer.refuse_changes(str(error))
                return
            except StratalogError as error:
                self._stats.failures += 1
                self._complain(str(error))
                pause_s, retry_s = min(retry_s, self._place.interval_s), 2 * retry_s
            except Exception:  # a bug in one snapshot must not end all later ones (F48)
                self._stats.failures += 1
                _log.exception("putting a snapshot of the metadata failed with an internal error")
                pause_s = self._place.interval_s
            await asyncio.sleep(max(self._place.soonest_s, _SHARE * (loop.time() - began_s)))

    async def _wait(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._is_wanted.wait()
        except TimeoutError:
            pass
        self._is_wanted.clear()

    async def _back_up(self, writer: TableWriter, names: ObjectNames) -> None:
        version, lock = await writer.read(lambda table: (table.version, table.state.locks.get(LOCK)))
        if version == self._put_version:
            self.witness.backed_up(version)
            return
        kept = await self._check_snapshots(names, lock, version)
        nonce = self._new_nonce()
        held = await writer.submit(AcquireLock(LOCK, holder_of(nonce), _LEASE_MS, kept))
        await writer.submit(ReleaseLock(held))
        captured = await writer.read(lambda table: capture(table.state))
        version = captured.header.version
        began_s = asyncio.get_running_loop().time()
        snapshot_id = MetaSnapshotId(names.cluster_id, held.epoch, version, nonce)
        head = await write_snapshot(self._place.store, names, snapshot_id, captured, self._clock_ms())
        self._put_version = version
        self.witness.backed_up(version)
        self._stats.puts += 1
        self._stats.version, self._stats.timestamp_ms = version, head.created_ms
        self._stats.size_bytes = sum(piece.size_bytes for piece in head.pieces)
        took_ms = int((asyncio.get_running_loop().time() - began_s) * 1_000)
        _log.debug(
            "snapshot of the metadata put", number=held.epoch, version=version, records=head.record_count, ms=took_ms
        )
        await self._place.store.delete(to_remove(await list_snapshots(self._place.store, names)))

    def _complain(self, why: str) -> None:
        """One line when it begins."""
        if not self._is_logged and not self._place.is_told():
            self._is_logged = True
            _log.warning("no snapshot of the metadata can be put", store=self._place.store.url, error=why)
        self._trouble = why
        self._stats.is_failing = 1

    def _is_well(self) -> None:
        if self._is_logged:
            _log.info("snapshots of the metadata are put again", store=self._place.store.url)
        self._trouble, self._is_logged = None, False
        self._stats.is_failing = 0

    @property
    def trouble(self) -> str | None:
        """Why no snapshot can be put; None while they can."""
        return self._trouble
