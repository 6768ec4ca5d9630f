"""Fills the gap between a recovery's source and the end of its segment (docs/replication.md section 6.4).

No other replica has more; it would be the source instead. The object store provides what it has, byte for byte. Where
the record says that the recovery gave batches up, batches without records take their place, so that the log has no gap.
Batches that the object store should have and lacks are reported and waited for, as in any segment, unless the topic
allows giving them up: the same decisions (`machines.restart.shard_healing`) and the same writing
(`shards/restart/healed_file.py`) as healing. Lives on the event loop; the file is read and written on the disk threads.
Requires: nothing else writes to the file meanwhile, and its content is flushed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from stratalog.machines.restart import shard_healing
from stratalog.machines.restart.restart_events import Heal, RecoveredLog, RecreateFile, RevokeCheckpoints
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.errors import Rejected, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.settings.choices import UncleanSeal
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.files import FlushLost
from stratalog_node.shards.copies.cold_reads import RemoteBatches
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.restart.healed_file import HealedFile
from stratalog_node.shards.restart.opening import recreate_file

log = logger(__name__)

_LONGEST_PAUSE_S = 30.0


class CopyFilling:
    """One copy, until it is whole."""

    def __init__(self, context: ShardContext, remote: RemoteBatches | None, key: SegmentKey, topic: str) -> None:
        """`remote` is None on a node without an object store."""
        self._context = context
        self._remote = remote
        self._key = key
        self._topic = topic

    async def fill(self, local_end: int, end_offset: int, is_due: Callable[[], bool]) -> None:
        """Returns once the file holds all up to `end_offset`, or `is_due` says that this node no longer has to fill it.
        Raises: FlushLost: it is unknown what the disk holds."""
        backoff = Backoff(longest_s=_LONGEST_PAUSE_S)
        while is_due():
            segment = self._context.catalog.segment(self._key)
            if segment is None:
                return
            healing = shard_healing.ShardHealing(Heal(segment, local_end, end_offset, RecoveredLog()))
            if isinstance(last := await self._attempt(healing), shard_healing.ListFiles):
                return
            assert isinstance(last, shard_healing.TryAgain | shard_healing.StopHealing), f"{last} ends no attempt"
            log.error("a copy cannot be made whole yet", segment=str(self._key), end_offset=end_offset, error=last.why)
            await backoff.pause()

    async def _attempt(self, healing: shard_healing.ShardHealing) -> shard_healing.HealingStep:
        """Returns: the step that it ended with."""
        event: shard_healing.HealingEvent = shard_healing.AttemptBegun(
            self._context.catalog.segment(self._key),
            self._context.catalog.log_start_offset(self._key.shard_key),
            has_file=self._context.layout.segment(self._key).exists(),
            may_give_up=self._may_give_up(),
        )
        file = HealedFile(self._context, self._remote, self._key)
        try:
            while True:
                steps = healing.step(event)
                answer = await self._perform(steps, file)
                if answer is None:
                    return steps[-1]
                event = answer
        finally:
            file.close()

    def _may_give_up(self) -> bool:
        if self._context.catalog.topic_by_id(self._key.topic_id) is None:
            return False
        return self._context.catalog.topic_settings(self._key.topic_id).unclean_seal is UncleanSeal.ALLOW

    async def _perform(
        self, steps: list[shard_healing.HealingStep], file: HealedFile
    ) -> shard_healing.HealingEvent | None:
        for step in steps:
            try:
                answer = await self._perform_step(step, file)
            except FlushLost:
                raise
            except Rejected as error:
                return shard_healing.AttemptFailed(str(error), is_final=True)
            except (StratalogError, OSError, TimeoutError) as error:
                return shard_healing.AttemptFailed(str(error) or repr(error), is_final=False)
            if answer is not None:
                return answer
        return None

    async def _perform_step(
        self, step: shard_healing.HealingStep, file: HealedFile
    ) -> shard_healing.HealingEvent | None:
        match step:
            case RecreateFile(key):
                recreate_file(self._context, key, self._topic)
            case shard_healing.Refill():
                return await file.refill(step)
            case shard_healing.AskStore():
                missed = await file.ask_store(step)
                return shard_healing.StoreAnswered(
                    missed, self._context.catalog.segment(self._key), self._may_give_up()
                )
            case shard_healing.Pause():
                await file.backoff.pause()
            case shard_healing.GiveUp():
                self._tell_given_up(step)
                await file.give_up(step)
            case shard_healing.DropSegment(_, log_start):
                # All of it lies below the log start: the record goes with that, and the copy with the record.
                await self._context.meta.perform(AdvanceLogStart(self._key.shard_key, log_start))
            case shard_healing.EndSegment():
                raise AssertionError("only a segment that has ended has a source")
            case (
                RevokeCheckpoints() | shard_healing.ListFiles() | shard_healing.TryAgain() | shard_healing.StopHealing()
            ):
                pass
            case _:
                assert_never(step)
        return None

    def _tell_given_up(self, step: shard_healing.GiveUp) -> None:
        for base_offset, end_offset in step.holes:
            log.error(
                "batches without records take the place of what no replica and no object store has",
                segment=str(self._key),
                base_offset=base_offset,
                end_offset=end_offset,
            )
