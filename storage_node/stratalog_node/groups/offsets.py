"""Commits and reads the offsets of groups; `forgetting` removes them.

An offset changes in memory when its entry is durable, never before, and in the order of the log. Requests run in
slices, and check their preconditions again before anything is written.
Thread: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from stratalog.formats.groups.group_log import KeyValue, OffsetEntry, encode_entry
from stratalog.model.groups.group import NEVER_EXPIRES, CommittedOffset, GroupError
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Node
from stratalog.model.topic import Topic
from stratalog_node.groups.hosted import HostedGroup, ShardState
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.requests import CommitRequest, FetchedOffset, OffsetToCommit, TopicShard
from stratalog_node.groups.room import GroupRoom, offset_bytes
from stratalog_node.groups.stats import GroupStats
from stratalog_node.slices import in_slices

_LATEST_MS = (1 << 63) - 1


class Topics(Protocol):
    """The node's catalog, as far as groups need it."""

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: UUID) -> Topic | None: ...

    def has_shard(self, key: ShardKey) -> bool: ...

    def leader_of(self, key: ShardKey) -> tuple[int, int] | None:
        """Which node, and its epoch."""
        ...

    def nodes(self) -> Iterable[Node]: ...

    @property
    def version(self) -> int:
        """The version of the metadata that it shows."""
        ...


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    retention_ms: int
    metadata_max_bytes: int
    commit_timeout_ms: int = 5_000
    """A commit not durable by then is answered with a retriable error; it may still become durable."""
    max_offsets: int = 2_000_000
    """Committed offsets of all groups on this node, whatever their bytes."""


@dataclass(slots=True)
class _Plan:
    """What one commit comes to: an error for each offset asked, and what is to be written."""

    now_ms: int
    expires_ms: int
    errors: list[GroupError] = field(default_factory=list)
    changes: dict[ShardKey, CommittedOffset | None] = field(default_factory=dict)
    grown_bytes: int = 0


class OffsetKeeper:
    def __init__(
        self,
        topics: Topics,
        membership: Membership,
        *,
        room: GroupRoom,
        wall_ms: Callable[[], int],
        limits: OffsetLimits,
        stats: GroupStats,
    ) -> None:
        self._topics = topics
        self._membership = membership
        self._room = room
        self._wall_ms = wall_ms
        self._limits = limits
        self._stats = stats

    # Committing -------------------------------------------------------------------------------------------------
    async def commit(
        self, hosted: HostedGroup, request: CommitRequest, catch_up: Callable[[], Awaitable[bool]]
    ) -> list[GroupError]:
        """`catch_up` brings the catalog up to date, where it does not know what the request names."""
        hosted.writes += 1  # the group is not forgotten while this request works on it
        try:
            if await self._has_unknown(request.offsets) and not await catch_up():
                return [GroupError.COORDINATOR_LOAD_IN_PROGRESS] * len(request.offsets)
            return await self._commit(hosted, request)
        finally:
            hosted.writes -= 1
            self._membership.forget_if_blank(hosted)

    async def _commit(self, hosted: HostedGroup, request: CommitRequest) -> list[GroupError]:
        refusal = self._refusal(hosted, request)
        if refusal is not GroupError.NONE:
            return [refusal] * len(request.offsets)
        now_ms = self._wall_ms()
        expires_ms = NEVER_EXPIRES
        if request.retention_ms is not None:
            expires_ms = min(now_ms + request.retention_ms, _LATEST_MS)
        plan = _Plan(now_ms, expires_ms)
        async for some in in_slices(request.offsets):
            for wanted in some:
                plan.errors.append(self._plan(plan, hosted, wanted))
        if not plan.changes:
            return plan.errors
        pairs = await encoded(hosted.group_id, plan.changes)
        refusal = self._refusal(hosted, request)
        if refusal is not GroupError.NONE:
            return [refusal] * len(request.offsets)
        outcome = await self.in_time(self.write(hosted, plan.changes, pairs))
        if outcome is GroupError.NONE:
            self._stats.commits += 1
            self._stats.committed_offsets += len(plan.changes)
        return [outcome if error is GroupError.NONE else error for error in plan.errors]

    async def _has_unknown(self, offsets: Sequence[OffsetToCommit]) -> bool:
        async for some in in_slices(offsets):
            if any(self.key_of(TopicShard(wanted.topic, wanted.shard)) is None for wanted in some):
                return True
        return False

    def _refusal(self, hosted: HostedGroup, request: CommitRequest) -> GroupError:
        if (absence := hosted.absence) is not None:
            return absence
        refusal = hosted.machine.commit_error(
            request.member_id, request.instance_id, request.generation, self._membership.now_ms()
        )
        if refusal is GroupError.NONE:
            self._membership.wake_in_time(hosted)
        return refusal

    def _plan(self, plan: _Plan, hosted: HostedGroup, wanted: OffsetToCommit) -> GroupError:
        key = self.key_of(TopicShard(wanted.topic, wanted.shard))
        if key is None:
            return GroupError.UNKNOWN_TOPIC_OR_PARTITION
        if len(wanted.metadata.encode()) > self._limits.metadata_max_bytes:
            return GroupError.OFFSET_METADATA_TOO_LARGE
        committed = CommittedOffset(wanted.offset, wanted.epoch, wanted.metadata, plan.now_ms, plan.expires_ms)
        before = plan.changes.get(key) or hosted.offsets.get(key)
        grown = offset_bytes(committed) - (offset_bytes(before) if before is not None else 0)
        if grown > 0:
            is_over = (
                (before is None and self._stats.offsets + len(plan.changes) >= self._limits.max_offsets)
                or hosted.offset_bytes + plan.grown_bytes + grown > self._room.limits.max_group_offset_bytes
                or not self._room.has(plan.grown_bytes + grown)
            )
            if is_over:
                return GroupError.INVALID_COMMIT_OFFSET_SIZE
        plan.grown_bytes += grown
        plan.changes[key] = committed
        return GroupError.NONE

    async def in_time(self, outcome: asyncio.Future[GroupError]) -> GroupError:
        timer = asyncio.get_running_loop().call_later(self._limits.commit_timeout_ms / 1000, _give_up, outcome)
        try:
            return await outcome
        finally:
            timer.cancel()

    def key_of(self, place: TopicShard) -> ShardKey | None:
        topic = self._topics.topic(place.topic)
        if topic is None or not 0 <= place.shard < topic.shard_count:
            return None
        return ShardKey(topic.topic_id, place.shard)

    def write(
        self, hosted: HostedGroup, changes: Mapping[ShardKey, CommittedOffset | None], pairs: Sequence[KeyValue]
    ) -> asyncio.Future[GroupError]:
        """Make the changes durable (`pairs` are their entries), then take them over."""
        outcome: asyncio.Future[GroupError] = asyncio.get_running_loop().create_future()

        def done(error: GroupError) -> None:
            hosted.writes -= 1
            for key in changes:
                if hosted.writing[key] == 1:
                    del hosted.writing[key]
                else:
                    hosted.writing[key] -= 1
            if error is GroupError.NONE:
                self._take_over(hosted, changes)
            if not outcome.done():
                outcome.set_result(error)
            self._membership.forget_if_blank(hosted)

        log = hosted.shard.log
        assert log is not None, "a group is hosted only by a loaded shard"
        hosted.writes += 1
        for key in changes:
            hosted.writing[key] = hosted.writing.get(key, 0) + 1
        log.submit(pairs, done)
        return outcome

    def _take_over(self, hosted: HostedGroup, changes: Mapping[ShardKey, CommittedOffset | None]) -> None:
        if hosted.shard.state is ShardState.CLOSED or not hosted.is_present:
            return
        count, size_bytes = len(hosted.offsets), hosted.offset_bytes
        for key, value in changes.items():
            before = hosted.offsets.pop(key, None)
            if before is not None:
                hosted.offset_bytes -= offset_bytes(before)
            if value is not None:
                hosted.offsets[key] = value
                hosted.offset_bytes += offset_bytes(value)
        self._stats.offsets += len(hosted.offsets) - count
        self._room.change(hosted.offset_bytes - size_bytes)

    # Reading ----------------------------------------------------------------------------------------------------
    async def fetch(self, hosted: HostedGroup | None, wanted: Sequence[TopicShard] | None) -> list[FetchedOffset]:
        """The offsets wanted, each once, None where none is committed; or all there are, by topic and shard."""
        offsets = hosted.offsets if hosted is not None else {}
        if wanted is None:
            return await self._fetch_all(offsets)
        found: list[FetchedOffset] = []
        async for some in in_slices(list(dict.fromkeys(wanted))):
            for place in some:
                key = self.key_of(place)
                found.append(FetchedOffset(place.topic, place.shard, offsets.get(key) if key else None))
        return found

    async def has_unplaced(self, hosted: HostedGroup, wanted: Sequence[TopicShard] | None) -> bool:
        """Whether "nothing is committed there" may be false: something asked for is not in the catalog, and the group
        has offsets of topics or shards that are not in it."""
        if wanted is not None:
            is_placed = True
            async for some in in_slices(wanted):
                is_placed = is_placed and all(self.key_of(place) is not None for place in some)
            if is_placed:
                return False
        async for keys in in_slices(list(hosted.offsets)):
            for key in keys:
                topic = self._topics.topic_by_id(key.topic_id)
                if topic is None or key.shard >= topic.shard_count:
                    return True
        return False

    async def _fetch_all(self, offsets: Mapping[ShardKey, CommittedOffset]) -> list[FetchedOffset]:
        by_topic: dict[UUID, list[tuple[int, CommittedOffset]]] = {}
        async for some in in_slices(list(offsets.items())):
            for key, committed in some:
                by_topic.setdefault(key.topic_id, []).append((key.shard, committed))
        named = [(topic.name, placed) for key, placed in by_topic.items() if (topic := self._topics.topic_by_id(key))]
        found: list[FetchedOffset] = []
        async for topics in in_slices(sorted(named)):
            for name, placed in topics:
                async for shards in in_slices(sorted(placed)):
                    found += [FetchedOffset(name, shard, committed) for shard, committed in shards]
        return found


async def encoded(group_id: str, changes: Mapping[ShardKey, CommittedOffset | None]) -> list[KeyValue]:
    """The log entries of these changes."""
    pairs: list[KeyValue] = []
    async for some in in_slices(list(changes.items())):
        pairs += [encode_entry(OffsetEntry(group_id, key, value)) for key, value in some]
    return pairs


def _give_up(outcome: asyncio.Future[GroupError]) -> None:
    if not outcome.done():
        outcome.set_result(GroupError.COORDINATOR_NOT_AVAILABLE)
