"""One task that changes the shard table: commands that came meanwhile share one synced write (group commit). Every
answer, also a refusal or a read, waits until the state that it rests on is durable; readers never see what a restart
would not find. If the store refuses a part of a write, and knows so, these commands are answered `Unavailable` and the
task continues. If the store fails, the commands of that write are answered `OutcomeUnknown` (the store may have kept
them), the table goes back to the state known to be durable, reads continue, and every further command is `Unavailable`.
A store that had no room, or did not say what became of its write, is opened again until it can be, and what it kept is
then the truth. Any other failure lasts until a restart: after a failed flush the page cache shows what the disk may not
hold.
The task ends with `close` alone. A bug in it is answered like a store that failed until a restart: a request without an
answer would wait forever, and so would all requests behind it.

Readers are answered last in a turn, from the table as it is then: what a reader keeps has all that was published before
it continues, and changes that are published later follow it.

Lives on the event loop; the store does its waiting elsewhere.
Cost: a turn applies what was asked before it, until that makes `MAX_WRITES_PER_TURN` records, and lets others run every
`SLICE_S`, within a command that changes thousands of records too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

from stratalog.machines.table.records import PutHeader, TableWrite
from stratalog.machines.table.shard_table import Applied, ShardTable
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import DiskFull, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.metadata import ChangeSet
from stratalog.telemetry.logs import logger
from stratalog_meta.stats import MetaStats
from stratalog_meta.stores.meta_store import MetaStore, WriteRefused

R = TypeVar("R")
MAX_WRITES_PER_TURN: Final = 32_768
SLICE_S: Final = 0.01
HEAL_AFTER_S = 1.0
"""The pause between two checks whether a store that was full, or away, can be written again."""

_log = logger(__name__)


@dataclass(slots=True, eq=False)
class _Order(Generic[R]):
    """A command that waits for its turn, then for its write."""

    command: Command[R]
    validate_only: bool
    answer: asyncio.Future[R]


@dataclass(slots=True, eq=False)
class _Reading(Generic[R]):
    """A reader that waits for its turn, then for what it has read to be durable."""

    read: Callable[[ShardTable], R]
    answer: asyncio.Future[R]


_Request: TypeAlias = _Order[Any] | _Reading[Any]  # all kinds are in one queue; each future has its own type


@dataclass(slots=True)
class _CommitGroup:
    """What goes to the store together, and the answers that follow: each command's result or refusal."""

    taken: list[_Request] = field(default_factory=list)
    """All of them, those that are answered already too."""
    applied: list[tuple[_Order[Any], Applied[Any]]] = field(default_factory=list)
    refused: list[tuple[_Order[Any], Exception]] = field(default_factory=list)
    validated: list[tuple[_Order[Any], object]] = field(default_factory=list)
    readings: list[_Reading[Any]] = field(default_factory=list)
    writes: list[Sequence[TableWrite]] = field(default_factory=list)
    """Of each command that has any: whole it stands or falls."""
    write_count: int = 0

    def split(self, kept: int) -> tuple[list[tuple[_Order[Any], Applied[Any]]], list[tuple[_Order[Any], Applied[Any]]]]:
        """What was applied, as durable with the first `kept` of the writes, and what is lost with the others."""
        for index, (_, applied) in enumerate(self.applied):
            if applied.writes:
                if not kept:
                    return self.applied[:index], self.applied[index:]
                kept -= 1
        return self.applied, []


class TableWriter:
    """Owns the table from `start` to `close`."""

    def __init__(
        self,
        table: ShardTable,
        store: MetaStore,
        clock_ms: Callable[[], int],
        new_id: Callable[[], UUID],
        publish: Callable[[Sequence[ChangeSet]], None],
        stats: MetaStats,
        *,
        restart_history: Callable[[ShardTable], None],
    ) -> None:
        """`restart_history` is given the table when some changes up to its version were never published."""
        self._table = table
        self._store = store
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._publish = publish
        self._stats = stats
        self._queue: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._is_busy = False
        self._is_closing = False
        self._restart_history = restart_history
        self._failure: str | None = None
        self._is_full = False
        self._may_heal = False
        self._task: asyncio.Task[None] | None = None

    @property
    def why_no_changes(self) -> str | None:
        """Why commands are refused; None while they are not."""
        if self._is_closing:
            return "the meta service has been stopped: ask another instance, or start it again"
        return self._failure

    @property
    def is_broken(self) -> bool:
        """Whether changes are refused until a restart."""
        return self._failure is not None and not self._may_heal

    def refuse_changes(self, why: str) -> None:
        """Refuse commands from now on, until another service is started over the store; reads continue."""
        self._failure, self._is_full, self._may_heal = why, False, False
        _log.error("changes are refused", error=why)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="meta-writer")

    async def close(self) -> None:
        """Answer what was asked before, then stop."""
        self._is_closing = True
        self._arrived.set()
        if self._task is not None:
            await self._task

    def _refuse_while_failed(self) -> None:
        why = self.why_no_changes
        if why is not None:
            raise DiskFull(why) if self._is_full and not self._is_closing else Unavailable(why)

    async def submit(self, command: Command[R], *, validate_only: bool = False) -> R:
        """Perform a command, or with `validate_only` say what it would come to."""
        self._refuse_while_failed()
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append(_Order(command, validate_only, answer))
        self._arrived.set()
        return await answer

    async def read(self, read: Callable[[ShardTable], R]) -> R:
        """Read the table as it is durable; waits for the write under way. The caller continues before a later change
        is published, so what it keeps is never older than what followers were given."""
        if self._is_closing:
            raise Unavailable("the meta service has been stopped: ask another instance, or start it again")
        self._stats.reads += 1
        if not self._is_busy and not self._queue:
            return read(self._table)
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append(_Reading(read, answer))
        self._arrived.set()
        return await answer

    # The task ---------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while self._queue or not self._is_closing:
            if self._queue:
                await self._run_group()
            elif self._may_heal:
                await self._wait(HEAL_AFTER_S)
                try:
                    await self._reopen()
                except Exception as fault:
                    self._give_up(_CommitGroup(), fault)
            else:
                await self._wait(None)

    async def _wait(self, longest_s: float | None) -> None:
        self._arrived.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._arrived.wait()

    async def _reopen(self) -> None:
        """If the store has room now, or is back, what it kept becomes the table, the write of unknown outcome too."""
        if self._is_closing or self.is_broken or self._queue:
            return
        try:
            await self._store.close()
            table = ShardTable.load(await self._store.load(), self._store.source)
            assert table is not None, "a store that had a header has one"
            table.min_in_sync = self._table.min_in_sync
            await self._store.write([[PutHeader(table.state.header)]])
        except Exception as error:  # whatever a store without room reports, the next check may find room
            _log.debug("store still fails", source=self._store.source, error=str(error))
            return
        if table.version != self._table.version:
            self._restart_history(table)
        self._table = table
        if not self._may_heal:
            return  # since it began changes are refused for good
        self._failure, self._is_full, self._may_heal = None, False, False
        _log.info("store works again", source=self._store.source, version=table.version)

    async def _run_group(self) -> None:
        self._is_busy = True  # from now on the table is ahead of the store: readers wait
        commit_group = _CommitGroup()
        try:
            await self._gather(commit_group)
            await self._commit(commit_group)
            await self._answer_readers(commit_group)
        except Exception as fault:
            self._give_up(commit_group, fault)
        finally:
            self._is_busy = False

    def _give_up(self, commit_group: _CommitGroup, fault: Exception) -> None:
        """A bug in this task: commands without an answer get `OutcomeUnknown`, and nothing is changed any more."""
        self._failure = (
            f"the meta service failed with an internal error ({fault}): changes are refused until it is restarted"
        )
        self._is_full = self._may_heal = False
        _log.error("writer of the metadata failed with an internal error", error=str(fault), exc_info=fault)
        for request in commit_group.taken:
            _refuse(request.answer, OutcomeUnknown(f"{self._failure}; see its log, read the metadata, then decide"))

    async def _commit(self, commit_group: _CommitGroup) -> None:
        """Make the changes durable, and answer the commands."""
        if commit_group.writes:
            try:
                await self._write(commit_group)
            except WriteRefused as refusal:
                self._settle(commit_group, refusal)
                return
            except Exception as error:  # whatever went wrong, the store's state is not known any more
                self._fail(commit_group, error)
                return
        self._answer(commit_group)

    async def _write(self, commit_group: _CommitGroup) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._store.write(commit_group.writes)
        self._stats.write_duration.observe(int((loop.time() - began) * 1e6))
        self._stats.writes += 1
        self._stats.records += commit_group.write_count

    async def _gather(self, commit_group: _CommitGroup) -> None:
        """Apply what has been asked until now. Only this task changes the table, so others may run in between; what
        they ask waits for the next turn, or this one might never end."""
        now_ms = self._clock_ms()
        loop = asyncio.get_running_loop()
        slice_ends = loop.time() + SLICE_S
        for _ in range(len(self._queue)):
            if commit_group.write_count >= MAX_WRITES_PER_TURN:
                return
            if loop.time() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = loop.time() + SLICE_S
            request = self._queue.popleft()
            if request.answer.done():
                continue  # its caller has gone: nothing was done yet, so nothing needs to be
            commit_group.taken.append(request)
            if isinstance(request, _Reading):
                commit_group.readings.append(request)
                continue
            try:
                slice_ends = await self._apply_order(commit_group, request, now_ms, slice_ends)
            except Exception as refusal:  # a bug in one request must not stop all others (F48)
                commit_group.refused.append((request, refusal))
                _log_bug(refusal, request.command)

    async def _apply_order(
        self, commit_group: _CommitGroup, order: _Order[Any], now_ms: int, slice_ends: float
    ) -> float:
        """Returns when the present slice ends: a command over thousands of records takes several."""
        if self._failure is not None:
            raise Unavailable(self._failure)
        applied, slice_ends = await self._apply(order.command, now_ms, slice_ends)
        if order.validate_only:
            self._table.undo(applied)
            commit_group.validated.append((order, applied.result))
        else:
            commit_group.applied.append((order, applied))
            if applied.writes:
                commit_group.writes.append(applied.writes)
                commit_group.write_count += len(applied.writes)
        return slice_ends

    async def _apply(self, command: Command[R], now_ms: int, slice_ends: float) -> tuple[Applied[R], float]:
        loop = asyncio.get_running_loop()
        with contextlib.closing(self._table.apply_in_steps(command, now_ms, self._new_id())) as steps:
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    return done.value, slice_ends
                if loop.time() > slice_ends:
                    await asyncio.sleep(0)
                    slice_ends = loop.time() + SLICE_S

    def _answer(self, commit_group: _CommitGroup) -> None:
        self._stats.commands += len(commit_group.applied)
        self._stats.refusals += len(commit_group.refused)
        self._publish_and_resolve(commit_group.applied)
        for order, result in commit_group.validated:
            _resolve(order.answer, result)
        for order, refusal in commit_group.refused:
            _refuse(order.answer, refusal)

    async def _answer_readers(self, commit_group: _CommitGroup) -> None:
        """Last: what the turn wrote is durable or undone by then, and all that came of it is published."""
        loop = asyncio.get_running_loop()
        slice_ends = loop.time() + SLICE_S
        for reading in commit_group.readings:
            if loop.time() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = loop.time() + SLICE_S
            try:
                _resolve(reading.answer, reading.read(self._table))
            except Exception as refusal:  # what the turn deleted is not there, or a bug in one request (F48)
                _refuse(reading.answer, refusal)
                _log_bug(refusal, reading)
        if commit_group.readings:
            await asyncio.sleep(0)  # they continue before the next turn publishes anything, however quick its store is

    def _publish_and_resolve(self, durable: Sequence[tuple[_Order[Any], Applied[Any]]]) -> None:
        self._publish([applied.change_set for _, applied in durable if applied.change_set is not None])
        for order, applied in durable:
            _resolve(order.answer, applied.result)

    def _settle(self, commit_group: _CommitGroup, refusal: WriteRefused) -> None:
        """The store kept a part of the turn and knows it: that part is answered, the rest was not done, and the task
        continues."""
        self._stats.store_refusals += 1
        _log.warning("store refused changes", source=self._store.source, error=str(refusal), kept=refusal.kept)
        durable, lost = commit_group.split(refusal.kept)
        for _, applied in reversed(lost):
            self._table.undo(applied)
        self._stats.commands += len(durable)
        self._publish_and_resolve(durable)
        if lost:
            _refuse(lost[0][0].answer, refusal.cause)
        kind = DiskFull if isinstance(refusal.cause, DiskFull) else Unavailable
        self._answer_without(commit_group, kind(f"the metadata store did not take this write: {refusal.cause}"))

    def _fail(self, commit_group: _CommitGroup, error: Exception) -> None:
        """Go back to what is known to be durable; no command is taken any more, or none until the store is well."""
        # What refuses changes for good came while it was written, and stays when the store is well again.
        failure = self._failure
        if failure is None or self._may_heal:
            failure = self._failure = self._why_failed(error)
        self._stats.store_failures += 1
        _log.error(
            "store failed, changes are undone",
            source=self._store.source,
            error=str(error),
            commands=len(commit_group.applied),
        )
        for _, applied in reversed(commit_group.applied):
            self._table.undo(applied)
        for order, applied in commit_group.applied:
            if applied.writes:
                lost = OutcomeUnknown(
                    f"{type(order.command).__name__}: the metadata store failed while it was written ({error}): read "
                    "the "
                    "metadata once the service is back, then decide"
                )
                _refuse(order.answer, lost)
            else:
                _refuse(order.answer, Unavailable(failure))
        self._answer_without(commit_group, Unavailable(failure))

    def _why_failed(self, error: Exception) -> str:
        self._is_full = isinstance(error, DiskFull)
        self._may_heal = self._is_full or isinstance(error, OutcomeUnknown)
        until = (
            "there is room"
            if self._is_full
            else "it can be asked what it kept"
            if self._may_heal
            else "the service is started again"
        )
        return (
            f"the metadata store in {self._store.source} failed ({error}): changes are refused until {until}; "
            "reading continues"
        )

    def _answer_without(self, commit_group: _CommitGroup, refusal: Unavailable) -> None:
        """Commands without an answer: their results may rest on what was lost."""
        for request in commit_group.taken:
            if isinstance(request, _Order):
                _refuse(request.answer, refusal)


def _log_bug(refusal: Exception, request: object) -> None:
    if not isinstance(refusal, StratalogError):
        _log.error("request failed with an internal error", request=type(request).__name__, exc_info=refusal)


def _resolve(answer: asyncio.Future[Any], result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _refuse(answer: asyncio.Future[Any], refusal: Exception) -> None:
    if not answer.done():
        answer.set_exception(refusal)
