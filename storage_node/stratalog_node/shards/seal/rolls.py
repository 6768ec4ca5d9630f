"""Performs a roll off the hot path: flushes the ended segment, names the file behind it, reports to the meta service.

`machines.leading.roll_order` decides which step is due; this performs it, with retries, and reports the result. Lives
on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from stratalog.machines.leading.chain_events import RollConfirmed, SegmentFlushed, SegmentFlushFailed, ShardStopped
from stratalog.machines.leading.leader_events import SegmentRecord
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.commands.table_commands import RollSegment
from stratalog.model.errors import NotFound, Rejected, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.durable_files import NamesLost, sync_names_of
from stratalog_node.disk.files import FlushLost
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.flush.flusher import FlushedShard, Flusher

log = logger(__name__)


class RolledShard(FlushedShard, Protocol):
    """A shard as its rolls see it."""

    @property
    def log_start_offset(self) -> int: ...


class Rolls:
    def __init__(self, context: ShardContext, flusher: Flusher, is_unsealed: Callable[[ActiveSegment], bool]) -> None:
        """`is_unsealed`: whether this node still has to seal an ended segment; else what becomes of its roll says
        nothing of the shard, which may lead again."""
        self._context = context
        self._meta = context.meta
        self._flusher = flusher
        self._is_unsealed = is_unsealed
        self._unnamed: dict[ActiveSegment, ActiveSegment] = {}
        """Ended segments to those that follow them, whose files were spares and have not got their names yet."""

    def ended(self, old: ActiveSegment, new: ActiveSegment | None) -> None:
        if new is not None and not new.file.is_named:
            self._unnamed[old] = new

    def forget(self, old: ActiveSegment) -> None:
        self._unnamed.pop(old, None)

    async def name_behind(self, shard: RolledShard, key: SegmentKey) -> None:
        """Before an ended segment is taken out that was deleted: what follows it counts as confirmed then, also where
        the answer to its roll is still to come."""
        for old, new in list(self._unnamed.items()):
            listed = self._context.catalog.segment(new.key) if old.key == key else None
            if listed is not None and listed.leader == self._context.node_id:
                await self._name_next(shard, old)

    async def flush(self, shard: RolledShard, old: ActiveSegment) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._flusher.make_durable(old)
                break
            except (FlushLost, NotFound) as error:
                log.error("roll not confirmed: what it ends cannot be flushed", error=str(error))
                if self._is_unsealed(old):
                    shard.handle(SegmentFlushFailed(old.key.epoch, str(error)))
                return
            except StratalogError as error:
                log.warning("ended segment not flushed yet", segment=str(old.key), error=str(error))
                await backoff.pause()
        shard.handle(SegmentFlushed(old.key.epoch))

    async def confirm(self, shard: RolledShard, old: ActiveSegment, end_offset: int) -> None:
        """The file that was rolled into has its name before anything in it is acknowledged; and where another node's
        may have that name by right, not before it is known that it has not."""
        new = self._unnamed.get(old)
        is_contested = new is not None and new.file.is_name_withheld
        if not is_contested and not await self._name_next(shard, old):
            return
        backoff = Backoff()
        while True:
            try:
                opened = await self._meta.perform(RollSegment(old.key, end_offset))
                break
            except Rejected as error:
                log.warning("roll refused: this node no longer leads the shard", segment=str(old.key), error=str(error))
                if self._is_unsealed(old):  # else others seal it by now, and the shard may lead again
                    shard.handle(ShardStopped(Stop(f"roll refused: {error}", StopCause.DEPOSED)))
                return
            except StratalogError as error:
                # Unavailable or unknown: rolling is idempotent for the same end, so ask again.
                log.warning("roll not confirmed yet", segment=str(old.key), retry_s=backoff.next_s, error=str(error))
                await backoff.pause()
        if is_contested and opened.leader == self._context.node_id and not await self._name_next(shard, old):
            return
        self._unnamed.pop(old, None)
        shard.handle(RollConfirmed(old.key.epoch, shard.log_start_offset, SegmentRecord.of(opened)))
        for copy in (*shard.ended, shard.active):
            if copy is not None and copy.key == opened.key:
                copy.tell_followers()

    async def _name_next(self, shard: RolledShard, old: ActiveSegment) -> bool:
        """Give the file that was rolled into its name: once the roll is confirmed things are acknowledged in it, which
        the next start must find. False: the file is gone, and the roll is never confirmed."""
        new = self._unnamed.get(old)
        backoff = Backoff()
        while new is not None and not new.file.is_named and not new.file.closes_when_unused:
            new.file.pin()
            try:
                await self._context.threads.background(partial(_name, new))
            except (NotFound, NamesLost) as error:
                if _is_given_up(new):
                    break  # another leads what follows
                log.error("roll not confirmed: the file it opened is gone", error=str(error))
                shard.handle(SegmentFlushFailed(new.key.epoch, str(error)))
                return False
            except StratalogError as error:
                log.warning("new segment's file has no name yet", segment=str(new.key), error=str(error))
                await backoff.pause()
            finally:
                new.file.unpin()
        self._unnamed.pop(old, None)
        return True


def _is_given_up(active: ActiveSegment) -> bool:
    """The segment was dropped while its roll waited: its file is no longer used."""
    return active.file.closes_when_unused


def _name(active: ActiveSegment) -> None:
    """Blocking. What was flushed under no name of its own is found by no start: then the name is flushed as well."""
    active.file.take_name(is_due=True)
    if active.flushed_bytes:
        sync_names_of([active.file.path])
