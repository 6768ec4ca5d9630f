"""Decides what a client gets for a shard that this node does not know.

The client may know the topic from a node with newer metadata. So a producer gets "no such topic" only once this node
has caught up with the meta service. An idempotent producer's batch that was refused until then is remembered: otherwise
its next batch, which may come once the shard is here, would count as the producer's first. Lives on the event loop.
Cost: nothing while every shard that is written to is known; for unknown ones one read of the meta service at a time,
shared by all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from stratalog.event_loop.task_set import TaskSet
from stratalog.formats.batches.offered_batch import FaultyBatch, check_offered
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.chain_events import BatchesRefusedBefore
from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.machines.leading.rejected_batches import RejectedBeforeShards
from stratalog.model.batch import LARGEST_BATCH_BYTES
from stratalog.telemetry.logs import logger
from stratalog_node.serve.connections.serving import Serving
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.slices import Slices

log = logger(__name__)


class Pending(Protocol):
    def fail(self, slot: Any, code: int, message: str | None = None, log_start_offset: int = -1) -> None: ...


def missing_shard_error(catalog: Catalog, topic: str, shard: int) -> int:
    """Unknown here: is it being created (retriable), or is there no such shard?"""
    known = catalog.topic(topic)
    if known is not None and 0 <= shard < known.shard_count:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class UnknownShards:
    """Batches for shards that are not here."""

    def __init__(
        self,
        serving: Serving,
        catalog: Catalog,
        shard_of: Callable[[str, int], ShardLog | None],
        catch_up: Callable[[], Awaitable[bool]],
    ) -> None:
        """`catch_up`: see `CatalogLag`."""
        self._serving = serving
        self._catalog = catalog
        self._shard_of = shard_of
        self._catch_up = catch_up
        self._waiting: list[tuple[str, int, Pending, object]] = []
        self._tasks = TaskSet()
        self.owed = RejectedBeforeShards()

    def refuse(
        self, topic: str, shard: int, records: memoryview | None, acks: int, pending: Pending, slot: object
    ) -> None:
        """Answers at once if the client does not wait (`acks` 0), or if the shard is known to be in creation."""
        if records is not None:
            self._note_rejected(topic, shard, records)
        code = missing_shard_error(self._catalog, topic, shard)
        if acks == 0 or code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            pending.fail(slot, code)
            return
        self._waiting.append((topic, shard, pending, slot))
        if not self._tasks:
            self._tasks.start(self._answer_once_sure(), name="unknown-shards")

    def _note_rejected(self, topic: str, shard: int, records: memoryview) -> None:
        header = check_offered(records, LARGEST_BATCH_BYTES)
        if isinstance(header, FaultyBatch):
            return  # no topic would have taken it: no topic's own limit is checked here
        _, _, _, _, _, _, _, _, timestamp, producer_id, epoch, sequence, count = header
        if producer_id >= 0:
            batch = OfferedBatch(None, len(records), count, timestamp, producer_id, epoch, sequence, 0, None, None)
            self.owed.refused(topic, shard, batch, self._serving.turn.now_ms)

    def report_rejected(self, shard: ShardLog, topic: str, number: int) -> None:
        """The shard is here now, and takes a batch."""
        if batches := self.owed.pop(topic, number, self._serving.turn.now_ms):
            shard.handle(BatchesRefusedBefore(batches))

    async def _answer_once_sure(self) -> None:
        work = Slices()
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                is_sure = await self._catch_up()
            except Exception:  # the waiting requests must be answered (F48)
                log.error("the newest metadata cannot be waited for: a fault", exc_info=True)
                is_sure = False
            for topic, shard, pending, slot in asked:
                pending.fail(slot, self._code(topic, shard, is_sure=is_sure))
                await work.did()
            self._serving.turn.request()

    def _code(self, topic: str, shard: int, *, is_sure: bool) -> int:
        if self._serving.leader_of(topic, shard) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._shard_of(topic, shard) is not None or not is_sure:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return missing_shard_error(self._catalog, topic, shard)

    async def close(self) -> None:
        await self._tasks.cancel()
