"""ListOffsets (2): the offset of a place in a shard, or of a moment.

Special timestamps: -1 HW (LSO for read_committed), -2 log start, -3 the record with the greatest timestamp (v7), -4
earliest local (v8), -5 last tiered (v9; -1 when nothing is). At or above 0: the first record at or after that time,
exact inside a compressed batch, else offset and timestamp -1. A partition that is named repeatedly: 42.
Versions: isolation level and throttle time from 2, leader epochs from 4, flexible from 6. Version 0 answered lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.api.distinct import partitions_asked
from stratalog_node.serve.api.known_topics import learn_topics
from stratalog_node.serve.api.placement import ANY_EPOCH, NotHere, end_unknown, led_shard, offset_error
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.flush.shard_lookup import FoundOffset, ShardLookup
from stratalog_node.shards.read.epochs import epoch_of_offset

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_FROM_THE_END = (LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL)
"""Places that follow from where the log ends."""
_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_READ_COMMITTED = 1
_TOGETHER = 256
"""Partitions looked up at a time."""
_NOTHING = FoundOffset(-1, -1, -1)


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    is_committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED
    asked = await partitions_asked(request.topics, lambda topic: topic.name, lambda one: one.partition_index)
    denied = await context.rights.denied(Operation.DESCRIBE, ResourceType.TOPIC, asked)
    await learn_topics(context.services, [name for name in asked if name not in denied])
    questions = [(name, several) for name, partitions in asked.items() for several in partitions.values()]
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    for begin in range(0, len(questions), _TOGETHER):
        some = questions[begin : begin + _TOGETHER]
        # By time they wait for the disk or the object store: together, not one after the other.
        found = await asyncio.gather(*(_once(context, name, several, is_committed, denied) for name, several in some))
        for (name, _), answer in zip(some, found, strict=True):
            answers[name].append(answer)
    topics = [{"name": name, "partitions": partitions} for name, partitions in answers.items()]
    return await encoded(messages.response_type(2, version), len(questions), lambda: {"topics": topics})


async def _once(
    context: RequestContext, topic: str, several: list[Any], is_committed: bool, denied: Collection[str]
) -> dict[str, Any]:
    """As in Kafka, a partition that is named repeatedly is refused. `denied`: what the client may not describe."""
    if topic in denied:
        return _offset_fields(several[0].partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _NOTHING)
    if len(several) > 1:
        return _offset_fields(several[0].partition_index, ErrorCode.INVALID_REQUEST, _NOTHING)
    return await _answer(context, topic, several[0], is_committed)


async def _answer(context: RequestContext, topic: str, asked: Any, is_committed: bool) -> dict[str, Any]:
    error = ErrorCode.NONE
    found = _NOTHING
    try:
        shard = led_shard(
            context.services,
            topic,
            asked.partition_index,
            getattr(asked, "current_leader_epoch", ANY_EPOCH),
            needs_end=asked.timestamp in _FROM_THE_END,
        )
        found = await _find(shard, asked.timestamp, is_committed, context.header.api_version)
        if not context.rights.may_topic(Operation.DESCRIBE, topic):  # it may have read from a disk or the bucket
            return _offset_fields(asked.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _NOTHING)
        if found is _NOTHING and asked.timestamp >= 0 and not shard.is_end_known:
            raise end_unknown(shard, asked.partition_index)  # the record may lie behind what is known
    except StratalogError as problem:
        error = offset_error(problem)
    return _offset_fields(asked.partition_index, error, found)


def _offset_fields(partition: int, error: ErrorCode, found: FoundOffset) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "error_code": error,
        "timestamp": found.timestamp_ms,
        "offset": found.offset,
        "leader_epoch": found.epoch,
    }


async def _find(shard: ShardLookup, timestamp: int, is_committed: bool, version: int) -> FoundOffset:
    if timestamp >= 0:
        return _below_end(await shard.offset_for_time(timestamp), shard, is_committed)
    if version < _SINCE.get(timestamp, 1 << 15):
        raise NotHere(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is not known to ListOffsets v{version}")
    if timestamp == LATEST:
        end = shard.last_stable_offset if is_committed else shard.high_watermark
        return FoundOffset(end, -1, shard.epoch)
    if timestamp == MAX_TIMESTAMP:
        return await shard.offset_of_max_timestamp() or _NOTHING
    if timestamp == EARLIEST:
        offset = shard.log_start_offset
    elif timestamp == EARLIEST_LOCAL:
        offset = shard.earliest_local_offset()
    else:
        offset = shard.last_tiered_offset()
    return FoundOffset(offset, -1, epoch_of_offset(shard.segments, offset) if offset >= 0 else -1)


def _below_end(found: FoundOffset | None, shard: ShardLookup, is_committed: bool) -> FoundOffset:
    """A record that a read_committed consumer cannot read yet is not an answer for it."""
    if found is None or (is_committed and found.offset >= shard.last_stable_offset):
        return _NOTHING
    return found


_NEEDS = (Need(Operation.DESCRIBE, ResourceType.TOPIC, "29 for its partitions"),)

API = Api(2, "ListOffsets", 1, 9, handle, needs=_NEEDS)
