"""Mounts that people make, in the shard table: sealed ranges of topics, readable under another name until they expire.
A range consists of whole sealed segments, from the first to the last that have data of the requested time. The range of
a snapshot ends where the snapshot does, which may be inside a segment. Sealed data never change, so the ranges are
fixed in the record, and the leaders of the shards serve them; the mount has no holder. Retention applies as usual:
expired data are not readable here either.
Pure functions of one transaction. Cost: O(segments of the topics that are named), in steps.
Source: docs/scaling-spec.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from stratalog.machines.table.bounds import INT64_MAX
from stratalog.machines.table.mounts import MAX_MOUNTS
from stratalog.machines.table.state import RECORDS_PER_STEP, ShardEntry, Steps, TableTransaction
from stratalog.model.commands.mount_commands import CreateMount, MountCut
from stratalog.model.cut import CutShard
from stratalog.model.errors import AlreadyExists, Conflict, InvalidRequest, LimitExceeded, NotFound
from stratalog.model.ids import ShardKey
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange
from stratalog.model.segment import SegmentState
from stratalog.model.topic import Topic

MAX_TOPICS: Final = 1_000
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
NOBODYS: Final = -1
"""As the node of what no retired node left."""
_EMPTY: Final = OffsetRange(0, 0)


def create_mount(tx: TableTransaction, command: CreateMount) -> Steps[Mount]:
    """Nothing is copied: the record says what is read."""
    _check(command)
    _check_free(tx, command.name)
    topics: list[MountedTopic] = []
    for name in dict.fromkeys(command.topics):
        topic_id = tx.state.topic_ids.get(name)
        topic = tx.state.topics[topic_id] if topic_id is not None else None
        if topic is None or topic.is_internal:
            raise NotFound(f"topic {name!r:.80} does not exist, or is the service's own: it cannot be mounted")
        topics.append((yield from _mounted(tx, topic, command)))
    if not any(one.end_offset > one.base_offset for topic in topics for one in topic.ranges):
        raise NotFound(
            f"mount {command.name!r}: no sealed segment of these topics has anything from {command.from_ms} to "
            f"{command.until_ms} ms: seal them first (`stratalog seal TOPIC`), or ask for another time"
        )
    return _put(tx, command.name, topics, command.lasts_ms)


def mount_cut(tx: TableTransaction, command: MountCut) -> Steps[Mount]:
    """As `create_mount`, of what a snapshot has."""
    _check_name(command.name, command.lasts_ms)
    _check_free(tx, command.name)
    wanted: dict[UUID, dict[int, CutShard]] = {}
    for one in command.shards:
        wanted.setdefault(one.key.topic_id, {})[one.key.shard] = one
    topics: list[MountedTopic] = []
    for topic_id, shards in wanted.items():
        topic = tx.state.topics.get(topic_id)
        if topic is None or topic.is_internal:
            raise NotFound(
                f"mount {command.name!r}: topic {topic_id} of the snapshot has been deleted, or is the service's own: "
                "`stratalog snapshot restore` makes a new cluster of what it had, and Spark reads it in the bucket"
            )
        ranges: list[OffsetRange] = []
        for shard in range(topic.shard_count):
            if shard % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                yield
            entry = tx.state.shards[ShardKey(topic_id, shard)]
            cut = shards.get(shard)
            ranges.append(_EMPTY if cut is None else _cut_range(entry, cut, f"shard {shard} of {topic.name}"))
        topics.append(MountedTopic(topic_id, topic.name, tuple(ranges)))
    if not any(one.end_offset > one.base_offset for topic in topics for one in topic.ranges):
        raise NotFound(f"mount {command.name!r}: retention has left nothing of what the snapshot has of these topics")
    return _put(tx, command.name, topics, command.lasts_ms)


def _cut_range(entry: ShardEntry, cut: CutShard, name: str) -> OffsetRange:
    base_offset = max(cut.log_start_offset, entry.log_start_offset)
    if base_offset >= cut.end_offset:
        return OffsetRange(cut.end_offset, cut.end_offset)
    for epoch in range(entry.first_epoch, entry.next_epoch):
        segment = entry.segments[epoch]
        if segment.base_offset >= cut.end_offset:
            break
        if segment.state is not SegmentState.SEALED or segment.seal is None:
            raise Conflict(f"{name}: offsets from {segment.base_offset} on are not sealed yet: ask again in a moment")
        if epoch > cut.epoch and segment.seal.end_offset > segment.base_offset:
            raise Conflict(
                f"{name}: offset {segment.base_offset} has epoch {epoch} now, and {cut.epoch} at most in the snapshot: "
                "its log went another way since"
            )
        if segment.seal.end_offset >= cut.end_offset:
            return OffsetRange(base_offset, cut.end_offset)
    raise Conflict(f"{name}: the snapshot ends at offset {cut.end_offset}, and the log before: it lost records since")


def _check_free(tx: TableTransaction, name: str) -> None:
    if name in tx.state.mounts:
        raise AlreadyExists(f"mount {name!r} exists: end it first, or choose another name")
    if len(tx.state.mounts) >= MAX_MOUNTS:
        raise LimitExceeded(f"there are {MAX_MOUNTS} mounts already: end some")


def _put(tx: TableTransaction, name: str, topics: Sequence[MountedTopic], lasts_ms: int) -> Mount:
    expires_ms = tx.now_ms + lasts_ms if lasts_ms else 0
    mount = Mount(
        name,
        MountMode.HAND_MADE,
        NOBODYS,
        "",
        MountState.SERVING,
        0,
        tx.now_ms,
        topics=tuple(topics),
        expires_ms=expires_ms,
    )
    tx.put_mount(mount)
    return mount


def forget_topic(tx: TableTransaction, topic_id: UUID) -> None:
    """It was deleted: mounts of it lose it, and end with their last one. Cost: O(mounts)."""
    for mount in list(tx.state.mounts.values()):
        left = tuple(topic for topic in mount.topics if topic.topic_id != topic_id)
        if len(left) == len(mount.topics):
            continue
        if left:
            tx.put_mount(replace(mount, topics=left))
        else:
            tx.drop_mount(mount.name)


def _check_name(name: str, lasts_ms: int) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(f"mount {name!r:.80}: a name has 1 to 100 letters, digits, dots, dashes and underscores")
    if lasts_ms > INT64_MAX // 2:
        raise InvalidRequest(f"mount {name!r}: it lasts at most {INT64_MAX // 2} ms; 0 is without an end")


def _check(command: CreateMount) -> None:
    _check_name(command.name, command.lasts_ms)
    if not 0 < len(command.topics) <= MAX_TOPICS:
        raise InvalidRequest(f"mount {command.name!r}: name 1 to {MAX_TOPICS} topics, not {len(command.topics)}")
    if command.from_ms >= command.until_ms:
        raise InvalidRequest(
            f"mount {command.name!r}: it ends at {command.until_ms} ms, which is not after its begin, {command.from_ms}"
        )


def _mounted(tx: TableTransaction, topic: Topic, command: CreateMount) -> Steps[MountedTopic]:
    ranges: list[OffsetRange] = []
    for shard in range(topic.shard_count):
        if shard % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
            yield
        ranges.append(_range(tx.state.shards[ShardKey(topic.topic_id, shard)], command.from_ms, command.until_ms))
    return MountedTopic(topic.topic_id, topic.name, tuple(ranges))


def _range(entry: ShardEntry, from_ms: int, until_ms: int) -> OffsetRange:
    """Of whole sealed segments; an empty one at the log start where none has anything of that time."""
    found: list[int] = []
    for epoch in range(entry.first_epoch, entry.next_epoch):
        segment = entry.segments[epoch]
        seal = segment.seal
        if segment.state is not SegmentState.SEALED or seal is None:
            break  # what follows is sealed later, and the log has no gaps
        if seal.end_offset != seal.base_offset and seal.may_have_record_in(from_ms, until_ms):
            found += [seal.base_offset, seal.end_offset]
    if not found:
        return OffsetRange(entry.log_start_offset, entry.log_start_offset)
    return OffsetRange(max(found[0], entry.log_start_offset), max(found[-1], entry.log_start_offset))
