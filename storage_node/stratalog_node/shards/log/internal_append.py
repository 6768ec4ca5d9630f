"""Appends of the node itself, such as group offsets: checked whole, then offered as a client's batches are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stratalog.formats.batches.record_batch import check_batch
from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.model.append import AppendFailure
from stratalog.model.errors import DiskFull, Fenced, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic
from stratalog_node.shards.log.append import AppendRefusal

_ERRORS: dict[AppendRefusal, type[StratalogError]] = {
    AppendFailure.NO_ROOM: DiskFull,
    AppendFailure.NOT_LEADER: Fenced,
    AppendFailure.MOVING: Fenced,
    AppendFailure.NOT_ENOUGH_REPLICAS_LEFT: OutcomeUnknown,
    AppendFailure.OUTCOME_UNKNOWN: OutcomeUnknown,
}
"""Only `DiskFull` promises to end by itself, only `Fenced` says that another leads, only `OutcomeUnknown` that it may
be appended. All else is `Unavailable`: nothing was done."""


class OfferedTo(Protocol):
    """A shard that takes batches."""

    key: ShardKey
    topic: Topic

    @property
    def end_offset(self) -> int: ...

    def offer(self, batch: OfferedBatch) -> None: ...


async def append_internally(shard: OfferedTo, batches: Sequence[bytes]) -> int:
    """Returns the first one's offset once all are committed. Raises: Corrupt (nothing was appended), and what
    `ShardView.append` names."""
    if not batches:
        return shard.end_offset
    request = InternalAppend(len(batches))
    source = f"batch for {shard.topic.name}-{shard.key.shard}"
    # All are checked before one is offered: of what is refused here nothing is appended.
    headers = [check_batch(data, source=source) for data in batches]
    for slot, (data, header) in enumerate(zip(batches, headers, strict=True)):
        shard.offer(
            OfferedBatch(
                memoryview(bytearray(data)),
                len(data),
                header.record_count,
                header.max_timestamp_ms,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                -1,
                request,
                slot,
            )
        )
    return await request.first_offset


class InternalAppend:
    """Answers of batches that the node itself appends, as one awaitable. Slots count from 0, in the order offered."""

    __slots__ = ("_first", "_missing", "first_offset")

    def __init__(self, count: int) -> None:
        self.first_offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._missing = count
        self._first = -1

    def appended(self, slot: int, base_offset: int, append_time_ms: int, log_start_offset: int) -> None:
        if self.first_offset.done():
            return
        if slot == 0:
            self._first = base_offset
        self._missing -= 1
        if self._missing == 0:
            self.first_offset.set_result(self._first)

    def refused(self, slot: int, why: AppendRefusal, message: str, log_start_offset: int) -> None:
        if not self.first_offset.done():
            kind = _ERRORS.get(why, Unavailable)
            self.first_offset.set_exception(kind(f"append refused: {message}"))
