"""Finds the shard of a request's topic name and partition index on this node, or the error code.

Only the leader of the active segment answers questions about offsets, so that two answers never contradict.
"""

from __future__ import annotations

import re

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import Fenced, NotFound, StratalogError
from stratalog.model.ids import ShardKey
from stratalog_node.serve.connections.context import NodeServices
from stratalog_node.shards.flush.shard_lookup import ShardLookup

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
ANY_EPOCH = -1
"""What a client sends as current leader epoch when it does not know one."""


class NotHere(StratalogError):
    """This node cannot answer for a partition; `code` says what the client should do."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def is_topic_name(name: str) -> bool:
    """Whether a topic may be called so. Kafka's rule."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def led_shard(
    services: NodeServices,
    topic_name: str,
    partition: int,
    leader_epoch: int = ANY_EPOCH,
    *,
    needs_end: bool = True,
) -> ShardLookup:
    """The shard, if this node leads it under the epoch the client knows, and knows where its log ends.

    `needs_end=False`: also one whose end is not known, for answers that do not depend on it.
    Raises: NotHere with 3, 5, 6, 56, 74 or 75, all retriable after a metadata refresh.
    """
    where = f"{topic_name}-{partition}"
    topic = services.catalog.topic(topic_name)
    if topic is None or not 0 <= partition < topic.shard_count:
        raise NotHere(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{where} does not exist")
    key = ShardKey(topic.topic_id, partition)
    active = services.catalog.active_segment(key)
    if active is None or active.leader is None:
        raise NotHere(ErrorCode.LEADER_NOT_AVAILABLE, f"{where} has no active segment at present: try again")
    if active.leader != services.node_id:
        raise NotHere(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{where} is led by node {active.leader}")
    shard = services.shards.read(key)
    if shard is None:
        raise NotHere(ErrorCode.LEADER_NOT_AVAILABLE, f"{where} is still being opened on this node: try again")
    if not shard.is_leader:
        raise NotHere(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{where} was led by this node: ask again who leads")
    if leader_epoch != ANY_EPOCH:
        # A roll does not change the leader: as in a fetch, an epoch since which this node has led is good enough.
        order = shard.compare_epoch(leader_epoch)
        if order < 0:
            raise NotHere(ErrorCode.FENCED_LEADER_EPOCH, f"{where} is at epoch {active.epoch}, not {leader_epoch}")
        if order > 0:
            raise NotHere(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{where}: epoch {leader_epoch} is not known here yet")
    if needs_end and not shard.is_end_known:
        raise end_unknown(shard, partition)
    return shard


def end_unknown(shard: ShardLookup, partition: int) -> NotHere:
    """The log was not opened as a whole: an end that is too low would make consumers jump (F40)."""
    return NotHere(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"{shard.topic.name}-{partition} could not be opened, its end is not known: see the node's status",
    )


def offset_error(error: StratalogError) -> ErrorCode:
    """The code for a failed offset lookup. Not knowing yet is never OFFSET_OUT_OF_RANGE, which makes consumers jump
    (trap 10), but one of the codes that every client retries: 78 (OFFSET_NOT_AVAILABLE) kills an aiokafka consumer."""
    match error:
        case NotHere():
            return error.code
        case Fenced() | NotFound():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case _:
            return ErrorCode.KAFKA_STORAGE_ERROR
