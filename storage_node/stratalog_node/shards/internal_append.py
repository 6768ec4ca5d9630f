"""Appends of the node itself, such as group offsets: checked whole, then offered as a client's batches are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stratalog.formats.record_batch import check_batch
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.segment_leader import OfferedBatch
from stratalog.model.errors import DiskFull, Fenced, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic

_APPEND_ERRORS: dict[int, type[StratalogError]] = {
    ErrorCode.KAFKA_STORAGE_ERROR: DiskFull,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Fenced,
    ErrorCode.REQUEST_TIMED_OUT: OutcomeUnknown,
}
"""What each refusal promises: only `Fenced` says that another leads, only `OutcomeUnknown` that it may be appended."""


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
    for place, (data, header) in enumerate(zip(batches, headers, strict=True)):
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
                place,
            )
        )
    return await request.first_offset


class InternalAppend:
    """Answers of batches that the node itself appends, as one awaitable."""

    __slots__ = ("_first", "_missing", "first_offset")

    def __init__(self, count: int) -> None:
        self.first_offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._missing = count
        self._first = -1

    def settle(
        self,
        place: int,
        error_code: int,
        base_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        message: str | None = None,
    ) -> None:
        if self.first_offset.done():
            return
        if error_code:
            kind = _APPEND_ERRORS.get(error_code, Unavailable)
            self.first_offset.set_exception(kind(f"append refused: {ErrorCode(error_code).name}: {message}"))
            return
        if place == 0:
            self._first = base_offset
        self._missing -= 1
        if self._missing == 0:
            self.first_offset.set_result(self._first)
