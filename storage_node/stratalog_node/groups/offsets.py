"""Commits, reads, deletes and expires the offsets of groups.

An offset changes in memory when its entry is durable, never before, and in the order of the log.
Thread: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from stratalog.formats.group_log import GroupEntry, LogEntry, OffsetEntry
from stratalog.kafka.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from stratalog.machines.group_events import GroupClosed
from stratalog.machines.group_offsets import expired_offsets
from stratalog.model.errors import InvalidRequest
from stratalog.model.group import NEVER_EXPIRES, CommittedOffset, GroupError, GroupState
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic
from stratalog_node.groups.hosted import HostedGroup, ShardState
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.requests import CommitRequest, DeletedOffsets, FetchedOffset, TopicShard
from stratalog_node.groups.stats import GroupStats


class Topics(Protocol):
    """The node's catalog, as far as groups need it."""

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: UUID) -> Topic | None: ...


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    retention_ms: int
    metadata_max_bytes: int
    commit_timeout_ms: int = 5_000
    """A commit not durable by then is answered with a retriable error; it may still become durable."""
    max_offsets: int = 2_000_000
    """Committed offsets of all groups on this node: about 500 bytes each."""


class OffsetKeeper:
    def __init__(
        self,
        topics: Topics,
        membership: Membership,
        *,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        limits: OffsetLimits,
        stats: GroupStats,
    ) -> None:
        self._topics = topics
        self._membership = membership
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._limits = limits
        self._stats = stats
        self._doubtful: set[tuple[str, ShardKey]] = set()
        """Offsets whose topic was unknown in the last sweep: a catalog that lags is no proof of a deletion."""

    # Committing -------------------------------------------------------------------------------------------------
    async def commit(self, hosted: HostedGroup, request: CommitRequest) -> list[GroupError]:
        refusal = hosted.machine.commit_error(
            request.member_id, request.instance_id, request.generation, self._monotonic_ms()
        )
        if refusal is not GroupError.NONE:
            return [refusal] * len(request.offsets)
        self._membership.wake_in_time(hosted)
        now_ms = self._wall_ms()
        expires_ms = NEVER_EXPIRES if request.retention_ms is None else now_ms + request.retention_ms
        errors: list[GroupError] = []
        changes: dict[ShardKey, CommittedOffset | None] = {}
        for wanted in request.offsets:
            key = self._key_of(TopicShard(wanted.topic, wanted.shard))
            if key is None:
                errors.append(GroupError.UNKNOWN_TOPIC_OR_PARTITION)
            elif len(wanted.metadata.encode()) > self._limits.metadata_max_bytes:
                errors.append(GroupError.OFFSET_METADATA_TOO_LARGE)
            elif key not in hosted.offsets and self._stats.offsets + len(changes) >= self._limits.max_offsets:
                errors.append(GroupError.INVALID_COMMIT_OFFSET_SIZE)
            else:
                changes[key] = CommittedOffset(wanted.offset, wanted.epoch, wanted.metadata, now_ms, expires_ms)
                errors.append(GroupError.NONE)
        if not changes:
            return errors
        outcome = await self._in_time(self._write(hosted, changes))
        if outcome is GroupError.NONE:
            self._stats.commits += 1
            self._stats.committed_offsets += len(changes)
        return [outcome if error is GroupError.NONE else error for error in errors]

    async def _in_time(self, outcome: asyncio.Future[GroupError]) -> GroupError:
        timer = asyncio.get_running_loop().call_later(self._limits.commit_timeout_ms / 1000, _give_up, outcome)
        try:
            return await outcome
        finally:
            timer.cancel()

    def _key_of(self, place: TopicShard) -> ShardKey | None:
        topic = self._topics.topic(place.topic)
        if topic is None or not 0 <= place.shard < topic.shard_count:
            return None
        return ShardKey(topic.topic_id, place.shard)

    def _write(
        self, hosted: HostedGroup, changes: dict[ShardKey, CommittedOffset | None]
    ) -> asyncio.Future[GroupError]:
        """Make the changes durable, then take them over."""
        outcome: asyncio.Future[GroupError] = asyncio.get_running_loop().create_future()

        def done(error: GroupError) -> None:
            hosted.writes -= 1
            if error is GroupError.NONE:
                self._take_over(hosted, changes)
            if not outcome.done():
                outcome.set_result(error)
            if hosted.is_forgettable:
                hosted.shard.forget(hosted)

        log = hosted.shard.log
        assert log is not None, "a group is hosted only by a loaded shard"
        entries: list[LogEntry] = [OffsetEntry(hosted.group_id, key, value) for key, value in changes.items()]
        hosted.writes += 1
        try:
            log.submit(entries, done)
        except InvalidRequest:  # the group's name is longer than the format holds
            asyncio.get_running_loop().call_soon(done, GroupError.INVALID_COMMIT_OFFSET_SIZE)
        return outcome

    def _take_over(self, hosted: HostedGroup, changes: dict[ShardKey, CommittedOffset | None]) -> None:
        if hosted.shard.state is ShardState.CLOSED:
            return
        before = len(hosted.offsets)
        for key, value in changes.items():
            if value is None:
                hosted.offsets.pop(key, None)
            else:
                hosted.offsets[key] = value
        self._stats.offsets += len(hosted.offsets) - before

    # Reading ----------------------------------------------------------------------------------------------------
    def fetch(self, hosted: HostedGroup | None, wanted: Sequence[TopicShard] | None) -> tuple[FetchedOffset, ...]:
        """The offsets wanted, None where none is committed; or all there are."""
        offsets = hosted.offsets if hosted is not None else {}
        if wanted is not None:
            return tuple(
                FetchedOffset(place.topic, place.shard, offsets.get(key) if (key := self._key_of(place)) else None)
                for place in wanted
            )
        named = ((self._topics.topic_by_id(key.topic_id), key, committed) for key, committed in offsets.items())
        return tuple(
            sorted(FetchedOffset(topic.name, key.shard, committed) for topic, key, committed in named if topic)
        )

    # Forgetting -------------------------------------------------------------------------------------------------
    async def delete(self, hosted: HostedGroup, places: Sequence[TopicShard]) -> DeletedOffsets:
        """Forget offsets on request, but for topics that members are subscribed to."""
        machine = hosted.machine
        is_used = machine.state is not GroupState.EMPTY
        if is_used and machine.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return DeletedOffsets(GroupError.NON_EMPTY_GROUP)
        subscribed = self._subscribed(hosted) if is_used else frozenset()
        errors: list[GroupError] = []
        changes: dict[ShardKey, CommittedOffset | None] = {}
        for place in places:
            key = self._key_of(place)
            if key is None:
                errors.append(GroupError.UNKNOWN_TOPIC_OR_PARTITION)
            elif subscribed is None or key.topic_id in subscribed:
                errors.append(GroupError.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                changes[key] = None
                errors.append(GroupError.NONE)
        if changes:
            outcome = await self._in_time(self._write(hosted, changes))
            if outcome is not GroupError.NONE:
                return DeletedOffsets(outcome)
        return DeletedOffsets(GroupError.NONE, tuple(errors))

    async def delete_group(self, hosted: HostedGroup) -> GroupError:
        if hosted.machine.state is not GroupState.EMPTY:
            return GroupError.NON_EMPTY_GROUP
        return await self._in_time(self._remove(hosted))

    def _remove(self, hosted: HostedGroup) -> asyncio.Future[GroupError]:
        """Write that an empty group and all its offsets are gone; until then nobody may use it."""
        outcome: asyncio.Future[GroupError] = asyncio.get_running_loop().create_future()

        def done(error: GroupError) -> None:
            hosted.writes -= 1
            hosted.is_leaving = False
            if error is GroupError.NONE and hosted.shard.state is not ShardState.CLOSED:
                self._stats.offsets -= len(hosted.offsets)
                hosted.offsets.clear()
                hosted.durable = None
                self._membership.step(hosted, GroupClosed(GroupError.NOT_COORDINATOR))
                hosted.shard.forget(hosted)
            if not outcome.done():
                outcome.set_result(error)

        log = hosted.shard.log
        assert log is not None, "a group is hosted only by a loaded shard"
        hosted.is_leaving = True
        hosted.writes += 1
        log.submit([GroupEntry(hosted.group_id, None, self._wall_ms())], done)
        return outcome

    def forget_topic(self, hosted: HostedGroup, topic_id: UUID) -> None:
        """The topic was deleted: its name resolves no longer, so nobody can read these offsets as it is."""
        gone = [key for key in hosted.offsets if key.topic_id == topic_id]
        if gone and not hosted.is_leaving:
            self._stats.expired_offsets += len(gone)
            self._write(hosted, dict.fromkeys(gone))

    async def sweep(self, groups: Sequence[HostedGroup]) -> None:
        """Forget what has expired, offsets of vanished topics, and groups of which nothing is left."""
        doubtful: set[tuple[str, ShardKey]] = set()
        for hosted in groups:
            self._sweep_group(hosted, doubtful)
            await asyncio.sleep(0)
        self._doubtful = doubtful

    def _sweep_group(self, hosted: HostedGroup, doubtful: set[tuple[str, ShardKey]]) -> None:
        machine = hosted.machine
        if hosted.is_leaving or machine.state is GroupState.DEAD:
            return
        gone = dict.fromkeys(self._expired(hosted) + self._orphaned(hosted, doubtful))
        self._stats.expired_offsets += len(gone)
        is_finished = len(gone) == len(hosted.offsets) and hosted.writes == 0
        if is_finished and machine.state is GroupState.EMPTY and not machine.has_pending_members:
            self._remove(hosted)
        elif gone:
            self._write(hosted, gone)

    def _expired(self, hosted: HostedGroup) -> list[ShardKey]:
        machine = hosted.machine
        return expired_offsets(
            hosted.offsets,
            state=machine.state,
            has_members_protocol=machine.protocol_type is not None,
            empty_since_ms=hosted.changed_ms,
            subscribed=self._subscribed(hosted) if machine.state is GroupState.STABLE else None,
            now_ms=self._wall_ms(),
            retention_ms=self._limits.retention_ms,
        )

    def _orphaned(self, hosted: HostedGroup, doubtful: set[tuple[str, ShardKey]]) -> list[ShardKey]:
        unknown = [key for key in hosted.offsets if self._topics.topic_by_id(key.topic_id) is None]
        orphaned = [key for key in unknown if (hosted.group_id, key) in self._doubtful]
        doubtful.update((hosted.group_id, key) for key in unknown)
        return orphaned

    def _subscribed(self, hosted: HostedGroup) -> frozenset[UUID] | None:
        """Topics that members want; None when what they sent cannot be read."""
        if hosted.machine.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        wanted: set[UUID] = set()
        for member in hosted.machine.members:
            for protocol in member.protocols:
                names = subscribed_topics(protocol.metadata)
                if names is None:
                    return None
                wanted.update(topic.topic_id for name in names if (topic := self._topics.topic(name)))
        return frozenset(wanted)


def _give_up(outcome: asyncio.Future[GroupError]) -> None:
    if not outcome.done():
        outcome.set_result(GroupError.COORDINATOR_NOT_AVAILABLE)
