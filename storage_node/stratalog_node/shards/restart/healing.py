"""Brings back what a shard's disk lost and the meta service knows of: from the object store, beside the traffic.

A power cut takes the tail of a file that was not flushed, though parts of it are in the object store, and metadata
say so. Until the file is whole again the shard refuses with a retriable error; everything else serves. What is brought
back, passed over, given up or named as lost is decided by `machines.restart.shard_healing`; this does its steps, those
about the file in `shards/restart/healed_file.py` and `shards/restart/giving_up.py`. The bytes are written where they
were, so what lies behind a damaged place stays; they are checked against the digest chain of the parts, and flushed
before the shard is read again. Lives on the event loop; files are written on the background threads. A store that is
away holds up these shards only.
"""

from __future__ import annotations

import asyncio
from typing import assert_never

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.leading.chain_events import ShardStopped
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.machines.restart import shard_healing
from stratalog.machines.restart.restart_events import Heal, RecreateFile, RevokeCheckpoints
from stratalog.model.commands.table_commands import AdvanceLogStart, RollSegment
from stratalog.model.errors import DiskFull, Rejected, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Change, SegmentChanged
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.files import FlushLost
from stratalog_node.shards.catalog.wait import catalog_shows
from stratalog_node.shards.copies.cold_reads import RemoteBatches
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.restart.healed_file import HealedFile
from stratalog_node.shards.restart.opening import recreate_file
from stratalog_node.shards.restart.recovery import Recovery, describe_missing
from stratalog_node.shards.restart.room_gate import RoomGate, says_full

log = logger(__name__)

_AT_ONCE = 4
_SHOWN_WITHIN_MS = 10_000


class Healing:
    def __init__(
        self,
        context: ShardContext,
        directory: ShardDirectory,
        recovery: Recovery,
        remote: RemoteBatches | None,
    ) -> None:
        """`remote` is None on a node without an object store."""
        self._context = context
        self._directory = directory
        self._recovery = recovery
        self._remote = remote
        self._room = RoomGate(asyncio.Semaphore(_AT_ONCE), Backoff)
        self._tasks = TaskSet()
        self._is_noting = False
        self._opening: set[ShardKey] = set()

    def start(self) -> None:
        """Begin with every shard that recovery left unhealed. What waits for other nodes is looked at with each change
        of its segments."""
        self._begin_noting()
        for key in list(self._recovery.unhealed):
            self._tasks.start(self._heal(key), name="shard-healing")
        if self._recovery.short_of_room:
            self._room.found_full(DiskFull("the disk was full when the node started"))
        for key in self._recovery.short_of_room:
            self._begin_opening(key)
        # Also when none waits now: a shard that is opened later may have to wait for a seal then.
        self._context.catalog.on_change(self._on_change)
        for key in list(self._recovery.waiting):
            self._open_if_sealed(key)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, SegmentChanged):
            self._open_if_sealed(change.segment.key.shard_key)

    def _open_if_sealed(self, key: ShardKey) -> None:
        awaited = self._recovery.waiting.get(key)
        if awaited is None or key in self._opening:
            return
        segment = self._context.catalog.segment(awaited)
        if segment is None or segment.seal is not None:
            del self._recovery.waiting[key]
            self._begin_opening(key)

    def _begin_opening(self, key: ShardKey) -> None:
        self._opening.add(key)
        self._tasks.start(self._open_closed(key), name="shard-healing")

    async def _open_closed(self, key: ShardKey) -> None:
        backoff = Backoff()
        while (shard := self._directory.get(key)) is not None:
            async with self._room.turn():
                if await self._opened_again(shard):
                    break
            if not self._room.is_full:
                await backoff.pause()
        await self._go_on(key)

    async def _opened_again(self, shard: ShardLog) -> bool:
        try:
            await self._open_again(shard)
        except (StratalogError, OSError) as error:
            if says_full(error):
                self._room.found_full(error)
            else:
                self._recovery.lines.warning(
                    "shard not opened yet", topic=shard.topic.name, shard=shard.key.shard, error=str(error)
                )
            return False
        except Exception:  # it would stay closed without a word (F48)
            log.error("shard not opened yet: a fault", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
            return False
        return True

    async def _go_on(self, key: ShardKey) -> None:
        """It was opened, or its topic was deleted."""
        self._opening.discard(key)
        if key in self._recovery.unhealed:
            await self._heal(key)
        else:
            self._open_if_sealed(key)  # perhaps it waits for the next one, which was sealed meanwhile

    async def close(self) -> None:
        """What is not healed yet is healed by the next start."""
        await self._tasks.cancel()

    async def _heal(self, key: ShardKey) -> None:
        """One missing range after the other."""
        while (shard := self._directory.get(key)) is not None and (
            missing := self._recovery.unhealed.get(key)
        ) is not None:
            healing, backoff = shard_healing.ShardHealing(missing), Backoff()
            while True:
                async with self._room.turn():
                    last = await self._attempt(shard, missing, healing)
                if not isinstance(last, shard_healing.TryAgain) or self._directory.get(key) is not shard:
                    break
                if not self._room.is_full:
                    await backoff.pause()
            if isinstance(last, shard_healing.StopHealing):
                return

    async def _attempt(
        self, shard: ShardLog, missing: Heal, healing: shard_healing.ShardHealing
    ) -> shard_healing.HealingStep:
        """Returns: the step it ended with."""
        key = missing.segment.key
        event: shard_healing.HealingEvent = shard_healing.AttemptBegun(
            self._context.catalog.segment(key),
            self._context.catalog.log_start_offset(shard.key),
            has_file=self._context.layout.segment(key).exists(),
            may_give_up=shard.rules.gives_up_lost,
        )
        file = HealedFile(self._context, self._remote, key)
        try:
            while True:
                steps = healing.step(event)
                answer = await self._perform(shard, missing, steps, file)
                if answer is None:
                    return steps[-1]
                event = answer
        finally:
            file.close()

    async def _perform(
        self, shard: ShardLog, missing: Heal, steps: list[shard_healing.HealingStep], file: HealedFile
    ) -> shard_healing.HealingEvent | None:
        for step in steps:
            try:
                answer = await self._perform_step(shard, missing, step, file)
            except (Rejected, FlushLost) as error:  # that a second flush succeeds proves nothing
                return shard_healing.AttemptFailed(str(error), is_final=True)
            except (StratalogError, OSError, TimeoutError) as error:
                if says_full(error):
                    self._room.found_full(error)
                return shard_healing.AttemptFailed(str(error) or repr(error), is_final=False)
            except Exception as error:  # one shard's fault must not end in silence (F48)
                log.error("shard stopped by a fault", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
                return shard_healing.AttemptFailed(f"a fault in the node, see its log: {error}", is_final=True)
            if answer is not None:
                return answer
        return None

    # Steps --------------------------------------------------------------------------------------------------------
    async def _perform_step(
        self, shard: ShardLog, missing: Heal, step: shard_healing.HealingStep, file: HealedFile
    ) -> shard_healing.HealingEvent | None:
        match step:
            case RecreateFile(key):
                recreate_file(self._context, key, shard.topic.name)
            case shard_healing.Refill():
                return await file.refill(step)
            case shard_healing.AskStore(segment, _, why):
                shard.handle(ShardStopped(self._waiting(shard, missing, why)))
                missed = await file.ask_store(step)
                return shard_healing.StoreAnswered(
                    missed, self._context.catalog.segment(segment.key), shard.rules.gives_up_lost
                )
            case shard_healing.Pause():
                await file.backoff.pause()
            case shard_healing.GiveUp():
                self._tell_given_up(shard, step)
                await file.give_up(step)
            case RevokeCheckpoints(keys):
                await self._recovery.revoke(keys)
            case shard_healing.EndSegment(key, end_offset):
                await self._context.meta.perform(RollSegment(key, end_offset))
            case shard_healing.DropSegment(key, log_start):
                await self._context.meta.perform(AdvanceLogStart(shard.key, log_start))
                await self._until_dropped(key)
            case shard_healing.ListFiles():
                file.close()  # the pass opens it again, and may cut it
                await self._open_again(shard)
            case shard_healing.TryAgain(why):
                shard.handle(ShardStopped(self._waiting(shard, missing, why)))
            case shard_healing.StopHealing():
                self._stop(shard, step, missing)
            case _:
                assert_never(step)
        return None

    async def _until_dropped(self, key: SegmentKey) -> None:
        while not await catalog_shows(lambda: self._context.catalog.segment(key) is None, _SHOWN_WITHIN_MS):
            log.warning("a segment that was ended and deleted is still in the catalog", segment=str(key))

    async def _open_again(self, shard: ShardLog) -> None:
        await self._recovery.recover_again(shard)
        self._room.found_room()
        self._recovery.hand_over()
        if self._directory.get(shard.key) is shard and shard.stop is None:
            self._context.stats.healed_shards += 1
            log.info("shard healed", topic=shard.topic.name, shard=shard.key.shard, end_offset=shard.end_offset)
            self._context.turn.tell_moved(shard)
        self._begin_noting()

    def _begin_noting(self) -> None:
        if not self._is_noting and not self._recovery.is_examination_noted:
            self._is_noting = True
            self._tasks.start(self._note_examined(), name="examination-noting")

    async def _note_examined(self) -> None:
        """Until the disk has taken it; shards that are opened meanwhile are noted together."""
        backoff = Backoff()
        while not self._recovery.is_examination_noted:
            await self._recovery.note_examined()
            await backoff.pause()
        self._is_noting = False

    def _waiting(self, shard: ShardLog, missing: Heal, why: str) -> Stop:
        reason = (
            f"{describe_missing(missing, shard.topic.name)} and cannot be brought back yet: {why}; it is tried again"
        )
        if shard.stop is None or shard.stop.reason != reason:
            self._recovery.lines.warning("shard not healed yet", reason=reason)
        return Stop(reason, StopCause.HEALING)

    def _stop(self, shard: ShardLog, step: shard_healing.StopHealing, missing: Heal) -> None:
        reason = step.why
        if step.lost:
            path = self._context.layout.segment(missing.segment.key)
            offsets = ", ".join(f"{base_offset} to {end_offset}" for base_offset, end_offset in step.lost)
            reason = (
                f"{shard.topic.name}-{shard.key.shard}: offsets {offsets} were written and are lost: {path} lacks "
                f"them, and {step.why}"
            )
        log.error("shard cannot be healed", topic=shard.topic.name, shard=shard.key.shard, error=reason)
        shard.handle(ShardStopped(Stop(reason, step.cause)))

    def _tell_given_up(self, shard: ShardLog, step: shard_healing.GiveUp) -> None:
        for base_offset, end_offset in step.holes:
            log.error(
                "offsets given up: they are lost, and uncleanSeal=allow",
                topic=shard.topic.name,
                shard=shard.key.shard,
                base_offset=base_offset,
                end_offset=end_offset,
            )
