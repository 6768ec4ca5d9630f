"""Deletes offsets and groups: on request, with their topic, and when they expire.

Only durable state decides about expiry. An offset with a newer commit on its way to the log is left alone, because the
tombstone would follow that commit; a group whose last state did not get into the log is recorded first and counts from
then. Time is the node's age clock (design.md section 11): a step of the wall clock does not expire everything at once.
Everything runs in slices, and an error of one group does not stop the others.
Thread: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from stratalog.formats.groups.group_log import GroupEntry, encode_entry
from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.group_offsets import OffsetExpiry
from stratalog.model.groups.consumer_group import ConsumerGroupRecord
from stratalog.model.groups.group import CONSUMER_PROTOCOL_TYPE, CommittedOffset, GroupError, GroupRecord, GroupState
from stratalog.model.ids import ShardKey
from stratalog.telemetry.logs import logger
from stratalog_node.groups.group_rewrite import rewrite_group
from stratalog_node.groups.hosted import HostedGroup, ShardState
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.offsets import OffsetKeeper, Topics, encoded
from stratalog_node.groups.requests import DeletedOffsets, TopicShard
from stratalog_node.groups.room import GroupRoom
from stratalog_node.groups.stats import GroupStats
from stratalog_node.slices import in_slices

_log = logger(__name__)


class Forgetting:
    def __init__(
        self,
        topics: Topics,
        membership: Membership,
        offsets: OffsetKeeper,
        *,
        subscribed_topics: Callable[[bytes], frozenset[str] | None],
        room: GroupRoom,
        wall_ms: Callable[[], int],
        age_ms: Callable[[], int],
        retention_ms: int,
        stats: GroupStats,
    ) -> None:
        self._topics = topics
        self._membership = membership
        self._offsets = offsets
        self._subscribed_topics = subscribed_topics
        self._room = room
        self._wall_ms = wall_ms
        self._age_ms = age_ms
        self._retention_ms = retention_ms
        self._stats = stats
        self._doubtful: set[UUID] = set()
        """Topics of offsets that were unknown in the last sweep: a lagging catalog does not prove a deletion."""

    # On request -------------------------------------------------------------------------------------------------
    async def delete_offsets(self, hosted: HostedGroup, places: Sequence[TopicShard]) -> DeletedOffsets:
        """Forget offsets on request, but for topics that members are subscribed to."""
        machine = hosted.machine
        if machine.state is not GroupState.EMPTY and machine.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return DeletedOffsets(GroupError.NON_EMPTY_GROUP)
        subscribed = await self.subscribed(hosted)
        errors: list[GroupError] = []
        changes: dict[ShardKey, CommittedOffset | None] = {}
        async for some in in_slices(places):
            for place in some:
                key = self._offsets.key_of(place)
                if key is None:
                    errors.append(GroupError.UNKNOWN_TOPIC_OR_PARTITION)
                elif subscribed is None or key.topic_id in subscribed:
                    errors.append(GroupError.GROUP_SUBSCRIBED_TO_TOPIC)
                else:
                    changes[key] = None
                    errors.append(GroupError.NONE)
        if changes:
            pairs = await encoded(hosted.group_id, changes)
            outcome = hosted.absence
            if outcome is None:
                outcome = await self._offsets.in_time(self._offsets.write(hosted, changes, pairs))
            if outcome is not GroupError.NONE:
                return DeletedOffsets(outcome)
        return DeletedOffsets(GroupError.NONE, tuple(errors))

    async def delete_group(self, hosted: HostedGroup) -> GroupError:
        if hosted.machine.state is not GroupState.EMPTY:
            return GroupError.NON_EMPTY_GROUP
        return await self._offsets.in_time(self._remove(hosted))

    def _remove(self, hosted: HostedGroup) -> asyncio.Future[GroupError]:
        """Write that an empty group and all its offsets are gone; until that is durable the group is not used."""
        outcome: asyncio.Future[GroupError] = asyncio.get_running_loop().create_future()

        def done(error: GroupError) -> None:
            hosted.writes -= 1
            hosted.is_leaving = False
            hosted.is_doubtful = error is not GroupError.NONE
            if error is GroupError.NONE and hosted.shard.state is not ShardState.CLOSED:
                self._stats.offsets -= len(hosted.offsets)
                self._room.change(-hosted.offset_bytes)
                hosted.offsets, hosted.offset_bytes, hosted.durable = {}, 0, None
                self._membership.close(hosted, GroupError.NOT_COORDINATOR)
            if not outcome.done():
                outcome.set_result(error)

        log = hosted.shard.log
        assert log is not None, "a group is hosted only by a loaded shard"
        pair = encode_entry(GroupEntry(hosted.group_id, None, self._wall_ms()))
        hosted.is_leaving = True
        hosted.writes += 1
        log.submit([pair], done)
        return outcome

    # With their topic -------------------------------------------------------------------------------------------
    async def forget_topics(self, groups: Sequence[HostedGroup], topic_ids: set[UUID]) -> None:
        """The topics were deleted: their names no longer resolve, so these offsets cannot be read anyway."""
        for hosted in groups:
            try:
                gone: dict[ShardKey, CommittedOffset] = {}
                async for some in in_slices(list(hosted.offsets.items())):
                    gone.update((key, committed) for key, committed in some if key.topic_id in topic_ids)
                await self._write_off(hosted, gone)
            except Exception:
                _log.exception(
                    "offsets of deleted topics were not forgotten; the next sweep will do it", group=hosted.group_id
                )
            await asyncio.sleep(0)

    async def _write_off(self, hosted: HostedGroup, gone: dict[ShardKey, CommittedOffset]) -> None:
        """Write tombstones for what is still as it was seen."""
        entries: dict[ShardKey, CommittedOffset | None] = dict.fromkeys(gone)
        pairs = await encoded(hosted.group_id, entries)
        if hosted.absence is not None:
            return
        changed = {key for key, seen in gone.items() if not _is_settled(hosted, key, seen)}
        if changed:
            pairs = [pair for key, pair in zip(gone, pairs, strict=True) if key not in changed]
            entries = {key: None for key in gone if key not in changed}
        if pairs:
            self._stats.expired_offsets += len(pairs)
            self._offsets.write(hosted, entries, pairs)

    # In time ----------------------------------------------------------------------------------------------------
    async def sweep(self, groups: Sequence[HostedGroup]) -> None:
        """Forget what has expired, offsets of vanished topics, and groups without any content left."""
        now_ms = self._age_ms()
        doubtful: set[UUID] = set()
        for hosted in groups:
            try:
                await self._sweep_group(hosted, now_ms, doubtful)
            except Exception:
                _log.exception("the search for expired offsets failed; trying again", group=hosted.group_id)
            await asyncio.sleep(0)
        self._doubtful = doubtful

    async def _sweep_group(self, hosted: HostedGroup, now_ms: int, doubtful: set[UUID]) -> None:
        machine = hosted.machine
        if hosted.is_doubtful and await rewrite_group(hosted) is not GroupError.NONE:
            return
        if hosted.absence is not None or machine.state is GroupState.DEAD:
            return
        state, generation = machine.state, machine.generation
        if state is GroupState.EMPTY and not hosted.is_recorded:
            if hosted.writes == 0:
                self._membership.record_again(hosted)
            return
        rules = OffsetExpiry(
            state=state,
            has_members_protocol=machine.protocol_type is not None,
            empty_since_ms=hosted.changed_ms,
            subscribed=await self.subscribed(hosted) if state is GroupState.STABLE else None,
            now_ms=now_ms,
            retention_ms=self._retention_ms,
        )
        seen: dict[ShardKey, CommittedOffset] = {}
        async for some in in_slices(list(hosted.offsets.items())):
            for key, committed in some:
                if rules.is_expired(key, committed) or self._is_orphaned(key, doubtful):
                    seen[key] = committed
        if not _is_as_before(hosted, state, generation):
            return
        gone = {key: committed for key, committed in seen.items() if _is_settled(hosted, key, committed)}
        is_finished = len(gone) == len(hosted.offsets) and hosted.writes == 0
        if is_finished and state is GroupState.EMPTY and not machine.has_pending_members:
            self._stats.expired_offsets += len(gone)
            self._remove(hosted)
        elif gone:
            await self._write_off(hosted, gone)

    def _is_orphaned(self, key: ShardKey, doubtful: set[UUID]) -> bool:
        if self._topics.topic_by_id(key.topic_id) is not None:
            return False
        doubtful.add(key.topic_id)
        return key.topic_id in self._doubtful

    async def subscribed(self, hosted: HostedGroup) -> frozenset[UUID] | None:
        """Topics that members want, by what they said last and by what is in the log; None when what they sent cannot
        be read. Of a group without members: none."""
        machine = hosted.machine
        if machine.state is GroupState.EMPTY:
            return frozenset()
        if isinstance(machine, ConsumerGroup):
            kept = hosted.durable.topics if isinstance(hosted.durable, ConsumerGroupRecord) else {}
            return frozenset({*machine.topics, *kept})
        if machine.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        recorded = hosted.durable.members if isinstance(hosted.durable, GroupRecord) else ()
        offered = [protocols for member in machine.members for protocols in (member.protocols,)]
        offered += [member.protocols for member in recorded]
        metadata = list({protocol.metadata for protocols in offered for protocol in protocols})
        wanted: set[UUID] = set()
        async for some in in_slices(metadata, 20):
            for one in some:
                names = self._subscribed_topics(one)
                if names is None:
                    return None
                wanted.update(topic.topic_id for name in names if (topic := self._topics.topic(name)))
        return frozenset(wanted)


def _is_settled(hosted: HostedGroup, key: ShardKey, seen: CommittedOffset) -> bool:
    """The offset is the one that was looked at, and no other is on its way to the log."""
    return hosted.offsets.get(key) is seen and key not in hosted.writing


def _is_as_before(hosted: HostedGroup, state: GroupState, generation: int) -> bool:
    return hosted.absence is None and (hosted.machine.state, hosted.machine.generation) == (state, generation)
