"""Transitions of the shard table that concern topics and shards.

Pure functions of one transaction; each raises before it changes anything it could not undo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from stratalog.machines.copies.internal_topics import FIXED_SETTINGS, refuse_internal, settings_to_create
from stratalog.machines.copies.placement import place
from stratalog.machines.copies.recovery_rule import ACKS_POLICY, is_quorum
from stratalog.machines.copies.wanted_copies import next_copies
from stratalog.machines.reading.bucket_reads import READ_POLICY, is_only_in_bucket
from stratalog.machines.table.lives import FLUSH_POLICY, FSYNC
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableState, TableTransaction
from stratalog.machines.table.user_mounts import forget_topic
from stratalog.model.commands.table_commands import (
    AddShards,
    AdvanceLogStart,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    WidenTopic,
)
from stratalog.model.counting import counted
from stratalog.model.errors import AlreadyExists, Conflict, InvalidRequest, LimitExceeded, NameCollides
from stratalog.model.ids import MAX_OFFSET, SegmentKey, ShardKey
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.storage_policy import STORAGE_POLICY, StoragePolicy, next_policy
from stratalog.model.topic import Shard, Topic, undotted_name

MAX_SHARDS_PER_TOPIC: Final = 10_000
MAX_REPLICAS: Final = 100
MAX_SETTINGS_CHARACTERS: Final = 64 * 1024
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SHOWN_TRIMS: Final = 3


def create_topic(tx: TableTransaction, command: CreateTopic) -> Steps[Topic]:
    """A topic, its shards and the first segment of each. A topic of the service's own gets its fixed settings."""
    name = command.name
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            f"topic name {name[:300]!r} is not allowed: use 1 to 249 of letters, digits, '.', '_' and '-', not '.' "
            "or '..'"
        )
    if name in tx.state.topic_ids:
        raise AlreadyExists(f"topic {name!r} exists already (id {tx.state.topic_ids[name]}): use it or delete it first")
    undotted = None if command.is_internal else undotted_name(name)
    if undotted is not None and (others := tx.state.undotted.get(undotted)):
        raise NameCollides(
            f"topic {name!r} collides with existing topic {others[0]!r}: as in Kafka, names may not differ "
            "only in '.' and '_'; choose another name"
        )
    if tx.new_id in tx.state.topics:
        raise AlreadyExists(f"topic id {tx.new_id} is taken already: make the topic under a new id")
    if command.replication_factor < 1:
        raise InvalidRequest(f"topic {name!r}: replication factor {command.replication_factor} must be at least 1")
    _check_shard_count(name, command.shard_count)
    factor = command.replication_factor
    if command.is_internal:
        factor = min(factor, max(tx.state.staying_count, 1))
    settings = settings_to_create(name, command.settings, is_internal=command.is_internal)
    _check_settings(name, settings)
    topic = Topic(
        name,
        tx.new_id,
        command.shard_count,
        factor,
        dict(settings),
        tx.now_ms,
        command.is_internal,
    )
    tx.put_topic(topic)
    yield from _open_shards(tx, topic, 0)
    return topic


def delete_topic(tx: TableTransaction, command: DeleteTopic) -> Steps[None]:
    """The topic vanishes; its segments become DELETED and wait for their purge."""
    topic = tx.state.topic(command.topic_id)
    refuse_internal(topic, "deleted")
    entries = [tx.state.shard(ShardKey(topic.topic_id, shard)) for shard in range(topic.shard_count)]
    yield from tx.drop_topic(topic)
    forget_topic(tx, topic.topic_id)
    count = 0
    for entry in entries:
        for epoch in range(entry.first_epoch, entry.next_epoch):
            tx.delete_segment(entry.segments[epoch])
            count += 1
            if count % RECORDS_PER_STEP == 0:
                yield


def add_shards(tx: TableTransaction, command: AddShards) -> Steps[Topic]:
    topic = tx.state.topic(command.topic_id)
    refuse_internal(topic, "given more shards")
    _check_growth(topic, command.shard_count)
    return (yield from _change(tx, topic, replace(topic, shard_count=command.shard_count)))


def widen_topic(tx: TableTransaction, command: WidenTopic) -> Topic:
    """More replicas for an internal topic, once there are nodes for them. What is open gets them at its next roll."""
    topic = tx.state.topic(command.topic_id)
    if not topic.is_internal:
        raise InvalidRequest(f"topic {topic.name!r} keeps the replication factor that it was created with")
    if not 1 <= command.replication_factor <= MAX_REPLICAS:
        raise InvalidRequest(f"replication factor {command.replication_factor} is not between 1 and {MAX_REPLICAS}")
    factor = min(command.replication_factor, tx.state.staying_count)
    if factor <= topic.replication_factor:
        return topic
    settings = FIXED_SETTINGS.get(topic.name, topic.settings)  # an older release may have made it with others
    changed = replace(topic, replication_factor=factor, settings=dict(settings))
    tx.put_topic(changed)
    return changed


def alter_topic(tx: TableTransaction, command: AlterTopic) -> Steps[Topic]:
    """Settings and number of shards, both or neither."""
    topic = tx.state.topic(command.topic_id)
    refuse_internal(topic, "altered")
    if command.expected is not None and dict(command.expected) != dict(topic.settings):
        raise Conflict(
            f"the settings of topic {topic.name!r} changed since they were read: read them again, then alter"
        )
    _check_settings(topic.name, command.settings)
    if is_quorum(command.settings) is not is_quorum(topic.settings):
        raise InvalidRequest(
            f"topic {topic.name!r} keeps its {ACKS_POLICY}: what its segments have acknowledged rests on it, and "
            "a recovery by the other rule could lose some; make a new topic"
        )
    if command.shard_count is not None:
        _check_growth(topic, command.shard_count)
    shard_count = topic.shard_count if command.shard_count is None else command.shard_count
    changed = replace(topic, settings=dict(command.settings), shard_count=shard_count)
    if tx.state.reads_bucket(topic) and not tx.state.reads_bucket(changed):
        yield from _refuse_unreadable(tx, topic)
    was, wanted = (one.settings.get(FLUSH_POLICY) for one in (topic, changed))
    if was not in (wanted, FSYNC):
        changed = replace(changed, unflushed_until_ms=(yield from _newest_opened_ms(tx, topic)))
    return (yield from _change(tx, topic, changed))


def _refuse_unreadable(tx: TableTransaction, topic: Topic) -> Steps[None]:
    """Keep readers in the object store while records are there alone: what a consumer could read a moment ago would be
    an error for it, though nothing is lost."""
    count = 0
    ends: dict[int, int] = {}
    for shard in range(topic.shard_count):
        entry = tx.state.shard(ShardKey(topic.topic_id, shard))
        for number, segment in enumerate(entry.segments.values(), 1):
            if number % RECORDS_PER_STEP == 0:
                yield
            if segment.state is SegmentState.SEALED and is_only_in_bucket(segment):
                count += 1
                ends[shard] = segment.seal.end_offset if segment.seal is not None else segment.base_offset
    if count:
        have = counted(count, "sealed segment", verb=("is", "are"))
        trims = [
            f"`stratalog topics trim {topic.name} --shard {shard} --to-offset {end}`" for shard, end in ends.items()
        ]
        rest = f", and so in {counted(len(ends) - _SHOWN_TRIMS, 'more shard')}" if len(ends) > _SHOWN_TRIMS else ""
        raise InvalidRequest(
            f"topic {topic.name!r} cannot change to {READ_POLICY}=Disable: {have} in the object store alone, and "
            "consumers would get errors there. Keep the policy, or delete these records first: "
            f"{', '.join(trims[:_SHOWN_TRIMS])}{rest}; with local.retention.ms=-1 set now, what is written from now on "
            "stays on the nodes"
        )


def _newest_opened_ms(tx: TableTransaction, topic: Topic) -> Steps[int]:
    """No segment that is there was opened later, nor is it later now: the clock may have been set back."""
    newest_ms = max(tx.now_ms, topic.unflushed_until_ms)
    for shard in range(topic.shard_count):
        entry = tx.state.shard(ShardKey(topic.topic_id, shard))
        newest_ms = max(newest_ms, entry.segments[entry.next_epoch - 1].opened_ms)
        if shard % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
            yield
    return newest_ms


def _change(tx: TableTransaction, topic: Topic, changed: Topic) -> Steps[Topic]:
    if changed == topic:
        return topic
    tx.put_topic(changed)
    if changed.shard_count > topic.shard_count:
        yield from _open_shards(tx, changed, topic.shard_count)
    return changed


def advance_log_start(tx: TableTransaction, command: AdvanceLogStart) -> Steps[Shard]:
    """Move the log start up; what lies wholly below it becomes DELETED, but never the ACTIVE segment.

    Log start first, objects and files later (F29): the segments stay listed until the grace period has passed. The same
    offset again deletes segments that have ended below it since.
    """
    entry = tx.state.shard(command.shard)
    if command.offset > MAX_OFFSET:
        raise InvalidRequest(f"log start {command.offset} is not an offset: the largest is {MAX_OFFSET}")
    if command.offset > entry.log_start_offset:
        tx.move_log_start(entry, command.offset)
    yield from tx.delete_below_log_start(command.shard, also_unsealed=True)
    return tx.state.view(command.shard)


def _open_shards(tx: TableTransaction, topic: Topic, first_shard: int) -> Steps[None]:
    factor, policy = next_copies(topic), next_policy(topic.settings)
    nodes = tx.state.hosts(factor)
    state, shards = tx.state, topic.shard_count - first_shard
    placed = place(shards, factor, nodes, state.load, state.scarcities(), _led_racks(state, topic, first_shard))
    for shard, replicas in enumerate(placed, first_shard):
        key = SegmentKey(topic.topic_id, shard, 0, 0)
        isr = tuple(node for node in replicas if node == replicas[0] or state.is_working(node))
        tx.open_shard(Segment(key, SegmentState.ACTIVE, replicas[0], replicas, isr, 0, tx.now_ms, policy=policy))
        if shard % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
            yield


def _led_racks(state: TableState, topic: Topic, shard_count: int) -> set[str]:
    """Where the topic's first shards are led. Cost: O(shard_count), once for a topic that grows."""
    entries = (state.shard(ShardKey(topic.topic_id, shard)) for shard in range(shard_count))
    leaders = {entry.segments[entry.next_epoch - 1].leader for entry in entries}
    nodes = (state.nodes.get(node_id) for node_id in leaders if node_id is not None)
    return {node.info.rack for node in nodes if node is not None and node.info.rack is not None}


def _check_shard_count(name: str, shard_count: int) -> None:
    if shard_count < 1:
        raise InvalidRequest(f"topic {name!r}: the number of shards must be at least 1, not {shard_count}")
    if shard_count > MAX_SHARDS_PER_TOPIC:
        raise LimitExceeded(
            f"topic {name!r}: {shard_count} shards are more than the {MAX_SHARDS_PER_TOPIC} that one topic may have: "
            "spread the data over several topics"
        )


def _check_growth(topic: Topic, shard_count: int) -> None:
    if shard_count <= topic.shard_count:
        raise InvalidRequest(
            f"topic {topic.name!r} has {counted(topic.shard_count, 'shard')} and cannot change to {shard_count}: "
            "the number of shards only grows"
        )
    _check_shard_count(topic.name, shard_count)


def _check_settings(name: str, settings: Mapping[str, str]) -> None:
    size = sum(len(key) + len(value) for key, value in settings.items())
    if size > MAX_SETTINGS_CHARACTERS:
        raise LimitExceeded(
            f"topic {name!r}: its settings are {size} characters long, above {MAX_SETTINGS_CHARACTERS}: shorten them"
        )
    if is_quorum(settings) and next_policy(settings) is StoragePolicy.DIRECT:
        raise InvalidRequest(
            f"topic {name!r}: {STORAGE_POLICY}=Direct has no replicas of which a majority could acknowledge: leave out "
            f"{ACKS_POLICY}"
        )
