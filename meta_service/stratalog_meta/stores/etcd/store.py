"""The meta store over etcd: several processes reach it, the one that leads writes.

A turn becomes transactions at the boundaries of commands (`split`); a command larger than a transaction is written down
first and carried out then (`redo`). Each transaction compares the leader key and moves `turn` (`outcome`), so that it
happens once however often it is sent, and never after another leader came. An answer that was lost is read back; only
when etcd cannot be asked within a deadline is the outcome unknown, and `load` settles it.
Durability: a transaction is answered when a majority of the members has it on disk.

Lives on one event loop. Cost: one transaction at a time; a command of n operations beyond one transaction takes about
n / 127 of them, after its own bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Final

import grpc

from stratalog.machines.table.records import StoredRecord, TableWrite
from stratalog.model.errors import Corrupt, DiskFull, LimitExceeded, OutcomeUnknown, StratalogError, Unavailable
from stratalog.stored import encoding
from stratalog.telemetry.logs import logger
from stratalog_meta.stores.etcd import layout, redo, requests
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.client import EtcdAway, EtcdClient, EtcdRefused, NoSpace
from stratalog_meta.stores.etcd.layout import Delete, Operation, Put
from stratalog_meta.stores.etcd.leadership import EtcdLeadership
from stratalog_meta.stores.etcd.outcome import Fence, Outcome, Seen, outcome_of
from stratalog_meta.stores.etcd.split import Large, Step, Together, chunks, split
from stratalog_meta.stores.meta_store import WriteRefused

COMPACT_EVERY_S: Final = 300.0
_LOADS: Final = 5
"""Attempts at a load that another's compaction, or a late write of this process, cut short."""
COMPACTED_BY_ROOT: Final = (
    "this etcd lets only root compact: start its members with --auto-compaction-mode=periodic "
    "--auto-compaction-retention=1h, or its quota is used up one day"
)
"""Every etcd of 2026 that has users, whatever their roles: checked with 3.6.16; 3.5.1 let each user compact."""

_MANY_WRITES: Final = 500
"""From this number on a thread encodes them, because the loop would wait for it."""

_log = logger(__name__)


class _NotDone(Exception):
    """A transaction that surely was not done and never will be."""

    def __init__(self, cause: StratalogError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class EtcdStore:
    """Implements `MetaStore` for the process that leads by `leadership`; both use the same prefix."""

    def __init__(
        self,
        client: EtcdClient,
        key_prefix: bytes,
        leadership: EtcdLeadership,
        *,
        source: str = "etcd",
        compact_every_s: float = COMPACT_EVERY_S,
    ) -> None:
        self._client = client
        self._keys = requests.Keys(key_prefix)
        self._leadership = leadership
        self._source = source
        self._compact_every_s = compact_every_s
        self._name = os.urandom(8).hex()
        self._stamps = 0
        self._fence: Fence | None = None
        self._long_keys: set[bytes] = set()
        self._written_down: list[Operation] | None = None
        """A command that is durable as a redo record and not carried out yet."""
        self._compacting: asyncio.Task[None] | None = None

    @property
    def source(self) -> str:
        return self._source

    async def load(self) -> list[StoredRecord]:
        if self._fence is not None:
            raise Unavailable(f"the metadata store {self._source} is in use by this process: close it first")
        for attempt in range(_LOADS):
            try:
                return await self._load()
            except _NotDone as refusal:
                self._fence = None
                raise refusal.cause from refusal
            except OutcomeUnknown:
                self._fence = None
                if attempt + 1 == _LOADS:
                    raise
            except EtcdRefused as refusal:
                self._fence = None
                if refusal.code is not grpc.StatusCode.OUT_OF_RANGE or attempt + 1 == _LOADS:
                    raise
            except BaseException:
                self._fence = None
                raise
        raise AssertionError("the last attempt returns or raises")

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        if self._fence is None:
            raise Unavailable(f"the metadata store {self._source} is not open: load it first")
        kept = 0
        try:
            await self._carry_out()
            for step in await self._steps(commands):
                match step:
                    case Together(count, operations):
                        await self._commit(operations)
                        kept += count
                    case Large(operations):
                        await self._write_down(operations)
                        kept += 1
                        await self._carry_out()
        except _NotDone as refusal:
            raise WriteRefused(kept, refusal.cause) from refusal
        except BaseException:
            self._fence = None  # `load` is the only way on
            raise

    async def _steps(self, commands: Sequence[Sequence[TableWrite]]) -> list[Step]:
        def steps() -> list[Step]:
            return list(split((list(encoding.encode(command)) for command in commands), self._long_keys))

        many = sum(map(len, commands)) >= _MANY_WRITES
        return await asyncio.to_thread(steps) if many else steps()

    async def close(self) -> None:
        self._fence = None
        compacting, self._compacting = self._compacting, None
        if compacting is not None:
            compacting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await compacting

    # One transaction ------------------------------------------------------------------------------------------------
    async def _commit(self, operations: Sequence[Operation]) -> None:
        """Make the operations durable, all or none, once. Raises _NotDone, OutcomeUnknown."""
        fence = self._fence
        assert fence is not None, "load comes first"
        try:
            if self._leadership.revision != fence.leader_revision:
                raise Unavailable("this store was loaded under another leadership: load it again")
        except Unavailable as error:
            raise _NotDone(error) from error
        self._stamps += 1
        stamp = json.dumps([fence.leader_revision, self._name, self._stamps], separators=(",", ":")).encode()
        refused: EtcdRefused | None = None
        try:
            seen = await self._send(fence, stamp, operations)
        except EtcdRefused as error:
            # Without space the write that used up the last of the quota is applied, and refused.
            refused, seen = error, await self._read_head()
        except EtcdAway as error:
            raise OutcomeUnknown(f"{self._source}: a write was not answered: {error}") from error
        match outcome_of(fence, stamp, seen):
            case Outcome.WRITTEN:
                self._fence = Fence(fence.leader_revision, seen.turn_revision)
            case Outcome.NEVER:
                self._leadership.lose("etcd shows another leader")
                raise _NotDone(Unavailable(f"another instance leads the metadata in {self._source}: ask it"))
            case Outcome.NOT_YET if refused is not None:
                if refused.is_certain:
                    raise _NotDone(_error_of(refused))
                raise DiskFull(str(refused)) if isinstance(refused, NoSpace) else OutcomeUnknown(str(refused))
            case _:
                if seen.leader_revision != fence.leader_revision:
                    self._leadership.lose("etcd shows another leader")
                raise OutcomeUnknown(
                    f"{self._source}: another instance wrote, and the outcome of this write is unknown"
                )

    async def _send(self, fence: Fence, stamp: bytes, operations: Sequence[Operation]) -> Seen:
        answer = await self._client.txn(self._keys.fenced(fence, stamp, operations))
        if answer.succeeded:
            return Seen(fence.leader_revision, answer.header.revision, stamp)
        self._client.stats.read_back += 1
        return self._keys.seen_in(answer.responses[0].response_range)

    async def _read_head(self) -> Seen:
        self._client.stats.read_back += 1
        try:
            return self._keys.seen_in(await self._client.range(self._keys.head_range))
        except Unavailable as error:
            raise OutcomeUnknown(f"{self._source}: a write could not be read back: {error}") from error

    # A command larger than a transaction ----------------------------------------------------------------------------
    async def _write_down(self, operations: list[Operation]) -> None:
        written = await asyncio.to_thread(redo.write_down, operations)
        for number, part in enumerate(written.parts):
            await self._commit([Put(layout.numbered(layout.REDO_PARTS, number), part)])
        await self._commit([Put(layout.REDO, written.record)])
        self._written_down = operations

    async def _carry_out(self) -> None:
        if self._written_down is None:
            return
        for chunk in chunks(self._written_down):
            await self._commit(chunk)
        await self._commit([Delete(layout.REDO), _ALL_REDO_PARTS])
        self._written_down = None

    # Loading --------------------------------------------------------------------------------------------------------
    async def _load(self) -> list[StoredRecord]:
        self._long_keys, self._written_down = set(), None
        leader_revision = self._leadership.revision
        seen = self._keys.seen_in(await self._client.range(self._keys.head_range))
        self._fence = Fence(leader_revision, seen.turn_revision)
        await self._commit([])  # from here on nothing that was sent earlier can happen
        await self._finish_redo()
        revision = self._fence.turn_revision
        loaded = await asyncio.to_thread(self._decoded, revision, asyncio.get_running_loop())
        if self._compacting is None:
            self._compacting = asyncio.get_running_loop().create_task(self._compact(), name="meta-compaction")
        return loaded

    async def _finish_redo(self) -> None:
        """A redo record is a command that was answered, or may have been: carry it out. Parts alone are nothing."""
        assert self._fence is not None
        loop, revision = asyncio.get_running_loop(), self._fence.turn_revision
        found = await asyncio.to_thread(lambda: dict(self._pairs(layout.REDO, revision, loop)))
        if not found:
            return
        record = found.pop(layout.REDO, None)
        if record is None:
            await self._commit([_ALL_REDO_PARTS])
            return
        names = [layout.numbered(layout.REDO_PARTS, number) for number in range(redo.part_count(record, self._source))]
        if not found.keys() >= set(names):
            raise Corrupt("the redo record: parts of it are missing", source=self._source, position=0)
        self._written_down = redo.read_back(record, [found[name] for name in names], self._source)
        await self._carry_out()
        self._client.stats.redone += 1
        _log.info(
            "change that was written down but not finished is carried out now", source=self._source, parts=len(names)
        )

    def _decoded(self, revision: int, loop: asyncio.AbstractEventLoop) -> list[StoredRecord]:
        """In a thread: hundreds of thousands of records take seconds, in which the lease must be renewed."""
        slices = dict(self._pairs(layout.LONG_VALUES, revision, loop))
        whole = layout.whole_records(self._records(revision, loop), slices, self._source)
        return list(encoding.decode(whole, self._source))

    def _records(self, revision: int, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._pairs(layout.RECORDS, revision, loop):
            if layout.is_long(value):
                self._long_keys.add(key.removeprefix(layout.RECORDS))
            yield key, value

    def _pairs(self, prefix: bytes, revision: int, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[bytes, bytes]]:
        """Everything below `prefix` as it was at `revision`, in key order. In a thread: while one page is read, the
        loop asks for the next."""
        first = self._keys.page(prefix, revision)
        request: rpc.RangeRequest | None = first
        coming = asyncio.run_coroutine_threadsafe(self._client.range(first), loop)
        while request is not None:
            page = coming.result()
            request = requests.following(request, page)
            if request is not None:
                coming = asyncio.run_coroutine_threadsafe(self._client.range(request), loop)
            for pair in page.kvs:
                yield self._keys.without_prefix(pair.key), pair.value

    # Old revisions --------------------------------------------------------------------------------------------------
    async def _compact(self) -> None:
        """Every so often compact the revisions that were old the last time: only the newest ones are read here."""
        old = 0
        while True:
            await asyncio.sleep(self._compact_every_s)
            if old:
                try:
                    await self._client.compact(old)
                    self._client.stats.compactions += 1
                except EtcdRefused as error:
                    if error.code is grpc.StatusCode.PERMISSION_DENIED:
                        _log.warning("etcd refused to compact", source=self._source, error=COMPACTED_BY_ROOT)
                    elif error.code is not grpc.StatusCode.OUT_OF_RANGE:  # another process compacts as well
                        _log.warning("etcd refused to compact", source=self._source, error=str(error))
                except Unavailable as error:
                    _log.warning("etcd was not compacted", source=self._source, error=str(error))
            old = 0 if self._fence is None else self._fence.turn_revision


def _error_of(refused: EtcdRefused) -> StratalogError:
    """What the caller of a refused command learns."""
    if isinstance(refused, NoSpace):
        return DiskFull(str(refused))
    if refused.code is grpc.StatusCode.INVALID_ARGUMENT:
        return LimitExceeded(f"{refused}: --max-txn-ops and --max-request-bytes must be etcd's defaults or more")
    return refused


_ALL_REDO_PARTS: Final = Delete(layout.REDO_PARTS, layout.end_of(layout.REDO_PARTS))
