"""The group coordinator of one node: every group API as one method, over the shards of the group log it leads.

A group belongs to one shard of the internal topic `__consumer_offsets`; the leader of that shard coordinates the group.
The node calls `start` once and hands every catalog change to `on_change`; shards are then taken over and given up as
their leadership comes and goes. While a shard is being read its groups answer 14, elsewhere 16; but members do not see
that: as in Kafka a Heartbeat is then answered without an error, and a SyncGroup with 27, because some clients treat 14
there as the end of the membership.

Nothing is confirmed before it is durable. Bounded: groups and their bytes on the node, members and bytes of a group,
bytes waiting to be appended. Long requests run in slices.
Thread: the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from stratalog.machines.groups.consumer_group_events import ConsumerLimits
from stratalog.machines.groups.group import Group
from stratalog.machines.groups.group_events import (
    GroupLimits,
    HeartbeatReceived,
    JoinAnswer,
    LeavingMember,
    MemberJoined,
    MembersLeft,
    SyncAnswer,
)
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Change, NodeChanged, SegmentChanged, ShardChanged, TopicChanged, TopicDeleted
from stratalog.model.mounts import OffsetRange
from stratalog.model.segment import Segment
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog_node.groups.consumers import AllTopics, ConsumerGroups, member_error
from stratalog_node.groups.coordinator_validity import CoordinatorValidity
from stratalog_node.groups.forgetting import Forgetting
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.groups.hosting import CoordinatorLimits, GroupHosting, GroupMeta
from stratalog_node.groups.loop_stalls import LoopStalls
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.migration import Migration
from stratalog_node.groups.mixed import MixedGroups, synced
from stratalog_node.groups.offsets import OffsetKeeper, OffsetLimits, Topics
from stratalog_node.groups.placement import OFFSETS_TOPIC
from stratalog_node.groups.requests import (
    CommitRequest,
    DeletedOffsets,
    DescribedGroup,
    FetchedOffsets,
    JoinRequest,
    ListedGroup,
    ListedGroups,
    MayDescribe,
    SyncRequest,
    TopicShard,
    put_off,
)
from stratalog_node.groups.room import GroupRoom
from stratalog_node.groups.stats import GroupStats
from stratalog_node.groups.subscription_codec import SubscriptionCodec
from stratalog_node.shards.catalog.lag import CatalogLag
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.slices import in_slices

_log = logger(__name__)

_LONGEST_NAME = 32_767
"""Limit for the name of a member, its instance, host or protocol, in bytes."""

_MOST_PROTOCOLS = 1_000
"""Limit for the protocols of one member: each is read in every election."""
_ASSIGNMENT_BYTES = 200
"""Estimated bytes of one assignment in a SyncGroup, without its content."""
_MEMBER_ID_PREFIX = 128
"""Characters of a client's own name that its member ids begin with."""


class GroupTopics(Topics, AllTopics, Protocol):
    """The node's catalog, as far as groups need it."""


class GroupCoordinator:
    """See the module. `led_shard` gives the view of a shard that this node leads now, None for every other; `heard_ms`
    and `lease_ms` say how long no other node replaces this one (`coordinator_validity.py`); `age_ms` is the time that
    data ages by;
    `words` encodes the messages of classic consumers; `is_lost`: a person gave up all that nodes had of a segment."""

    def __init__(
        self,
        *,
        node_id: int,
        settings: ProcessSettings,
        topics: GroupTopics,
        meta: GroupMeta,
        led_shard: Callable[[ShardKey], ShardView | None],
        wall_ms: Callable[[], int],
        age_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        heard_ms: Callable[[], int] = lambda: 0,
        lease_ms: Callable[[], int] = lambda: 0,
        loop_s: Callable[[], float] = time.monotonic,
        new_member_id: Callable[[str], str],
        words: SubscriptionCodec,
        limits: CoordinatorLimits | None = None,
        is_lost: Callable[[Segment], bool] = lambda _: False,
    ) -> None:
        self.stats = GroupStats()

        def stamp_ms() -> int:
            # What is stamped expires by age: that must know of a step back of the wall clock, however short it is.
            age_ms()
            return wall_ms()

        self._new_member_id = new_member_id
        self.read_assignment = words.read_assignment
        limits = limits or CoordinatorLimits()
        self._sweep_interval_s = limits.sweep_interval_s
        self._sweeper: asyncio.Task[None] | None = None
        self.loop_stalls = LoopStalls(loop_s)
        self._forgetting: asyncio.Task[None] | None = None
        self._topics_gone: set[UUID] = set()
        self._lag = CatalogLag(topics, meta)
        room = GroupRoom(limits.room, self.stats)
        self._room = room
        migration = _migration(words, settings, limits)
        self.membership = Membership(
            loop_stalls=self.loop_stalls,
            room=room,
            monotonic_ms=monotonic_ms,
            wall_ms=stamp_ms,
            migration=migration,
            stats=self.stats,
        )
        offset_limits = OffsetLimits(
            retention_ms=settings.offsets_retention_minutes * 60_000,
            metadata_max_bytes=settings.offset_metadata_max_bytes,
        )
        self._offsets = OffsetKeeper(
            topics, self.membership, room=room, wall_ms=stamp_ms, limits=offset_limits, stats=self.stats
        )
        self._forgetter = Forgetting(
            topics,
            self.membership,
            self._offsets,
            subscribed_topics=words.subscribed_topics,
            room=room,
            wall_ms=stamp_ms,
            age_ms=age_ms,
            retention_ms=offset_limits.retention_ms,
            stats=self.stats,
        )
        self._hosting = GroupHosting(
            node_id=node_id,
            settings=settings,
            topics=topics,
            meta=meta,
            led_shard=led_shard,
            membership=self.membership,
            migration=migration,
            room=room,
            standing=CoordinatorValidity(
                heard_ms=heard_ms, lease_ms=lease_ms, monotonic_ms=monotonic_ms, stats=self.stats
            ),
            wall_ms=stamp_ms,
            limits=limits,
            stats=self.stats,
            is_lost=is_lost,
        )

        self.consumers = ConsumerGroups(self._hosting, self.membership, room, topics, self.stats, self._lag.catch_up)
        self._mixed = MixedGroups(words, self.membership, room, topics, self.consumers.topics)

    # Life -------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Take over the shards led here (in the background) and begin to look for what expires."""
        self.loop_stalls.start()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_forever(), name="group-sweep")
        self._hosting.adopt()

    async def stop(self) -> None:
        """Parked requests are answered NOT_COORDINATOR; appends under way are waited for."""
        tasks = [task for task in (self._sweeper, self._forgetting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.loop_stalls.stop()
        await self._hosting.stop()
        self.membership.stop()

    async def ensure_ready(self) -> None:
        """Make sure the internal topic exists and what is led here is taken over; FindCoordinator may call it first.

        Raises: Unavailable, OutcomeUnknown: the client asks again.
        """
        await self._hosting.ensure_ready()

    def shard_key_of(self, group_id: str) -> ShardKey | None:
        """The shard whose leader coordinates the group; None before the internal topic exists."""
        return self._hosting.shard_key_of(group_id)

    def hosted(self) -> Iterator[HostedGroup]:
        """The groups that this node coordinates, to be read only."""
        return self._hosting.hosted()

    async def subscribed(self, hosted: HostedGroup) -> frozenset[UUID]:
        """Topics that members of a group want, as far as they say it in words that are known here."""
        return await self._forgetter.subscribed(hosted) or frozenset()

    @property
    def given_up(self) -> Mapping[int, Sequence[OffsetRange]]:
        """By shard of the group log: what its groups began again without, in this life of the node."""
        return self._hosting.given_up

    def adopt(self) -> None:
        """Compare with what this node leads now: load what is new, give up what is gone."""
        self._hosting.adopt()

    async def load(self, index: int) -> None:
        """Take one shard over; returns when its groups can be used, or when it turned out not to be ours."""
        await self._hosting.load(index)

    def unload(self, index: int) -> None:
        """Give one shard up: parked requests get NOT_COORDINATOR."""
        self._hosting.unload(index)

    def on_change(self, change: Change) -> None:
        """A catalog listener: follows leadership of the internal topic, and forgets offsets of deleted topics."""
        self.consumers.topics.on_change(change)
        match change:
            case TopicDeleted(topic) if topic.name == OFFSETS_TOPIC:
                self._hosting.unload_all()
            case TopicDeleted(topic):
                self._topics_gone.add(topic.topic_id)
                if self._forgetting is None:
                    self._forgetting = asyncio.get_running_loop().create_task(self._forget_topics())
            case TopicChanged(topic) if topic.name == OFFSETS_TOPIC:
                self._hosting.adopt_soon()
            case SegmentChanged(segment) if self._hosting.is_ours(segment.key.shard_key):
                self._hosting.shard_changed(segment.key.shard_key)
            case ShardChanged(shard) if self._hosting.is_ours(shard.key):
                self._hosting.shard_changed(shard.key)
            case NodeChanged():
                self._hosting.nodes_changed()
            case _:
                pass

    async def _forget_topics(self) -> None:
        """Handles all topics deleted meanwhile in one pass over the offsets."""
        try:
            while self._topics_gone:
                gone, self._topics_gone = self._topics_gone, set()
                await self._forgetter.forget_topics(list(self._hosting.hosted()), gone)
        finally:
            self._forgetting = None

    # Members ----------------------------------------------------------------------------------------------------
    async def join(self, request: JoinRequest) -> JoinAnswer:
        """JoinGroup; waits until the rebalance has its members."""
        hosted = await self._hosting.arrive(request.group_id) if request.group_id else GroupError.INVALID_GROUP_ID
        if hosted is None and request.member_id:
            hosted = GroupError.UNKNOWN_MEMBER_ID
        if not isinstance(hosted, GroupError) and (len(request.protocols) > _MOST_PROTOCOLS or _has_long_text(request)):
            hosted = GroupError.INVALID_REQUEST
        if hosted is None:
            hosted = self._hosting.create(request.group_id)
        if isinstance(hosted, HostedGroup) and (
            error := self._hosting.convert_without_members(hosted, to_consumers=False)
        ):
            hosted = error
        if isinstance(hosted, GroupError):
            return JoinAnswer(hosted, request.member_id)
        self.stats.joins += 1
        prefix = (request.instance_id or request.client_id)[:_MEMBER_ID_PREFIX]
        new_member_id = "" if request.member_id else self._new_member_id(prefix)

        def event(waiter: int) -> MemberJoined:
            return MemberJoined(
                waiter=waiter,
                member_id=request.member_id,
                new_member_id=new_member_id,
                instance_id=request.instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=request.protocols,
                requires_known_id=request.requires_known_id,
                can_skip_assignment=request.can_skip_assignment,
            )

        if not isinstance(hosted.machine, Group):
            return await self._mixed.join(hosted, event(0), request.may_describe)
        grown = hosted.machine.growth_bytes(event(0))
        if grown > 0 and not self._room.has(grown):
            self.membership.forget_if_blank(hosted)
            return JoinAnswer(GroupError.GROUP_MAX_SIZE_REACHED, request.member_id)
        return await self.membership.ask(hosted, event, JoinAnswer)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """SyncGroup; waits until the leader's assignments are durable."""
        hosted = await self._member_group(request.group_id)
        if hosted is GroupError.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance it belongs to was lost with the coordinator before this one: the member joins again.
            return SyncAnswer(GroupError.REBALANCE_IN_PROGRESS)
        if isinstance(hosted, GroupError):
            return SyncAnswer(hosted)
        if not isinstance(hosted.machine, Group):
            return await self._mixed.sync(hosted, request)
        brought = sum(_ASSIGNMENT_BYTES + len(assignment) for _, assignment in request.assignments)
        if not self._room.has(brought):
            return SyncAnswer(GroupError.COORDINATOR_NOT_AVAILABLE)

        self._room.change(brought)  # held while it is parked, whether or not it comes from the leader
        try:
            return await self.membership.ask(hosted, lambda waiter: synced(request, waiter), SyncAnswer)
        finally:
            self._room.change(-brought)

    async def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        may_describe: MayDescribe | None = None,
    ) -> GroupError:
        hosted = await self._member_group(group_id)
        if hosted is GroupError.COORDINATOR_LOAD_IN_PROGRESS:
            return GroupError.NONE  # whether it is a member cannot be said yet, and its session begins again
        if isinstance(hosted, GroupError):
            return hosted
        if not isinstance(hosted.machine, Group):
            return await self._mixed.heartbeat(hosted, member_id, instance_id, generation, may_describe)
        return await self.membership.ask(
            hosted, lambda waiter: HeartbeatReceived(waiter, member_id, instance_id, generation), GroupError
        )

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> tuple[GroupError, tuple[GroupError, ...]]:
        """LeaveGroup: an error of the group, and one per member."""
        hosted = await self._member_group(group_id)
        if hosted is GroupError.UNKNOWN_MEMBER_ID:
            return GroupError.NONE, (hosted,) * len(members)
        if isinstance(hosted, GroupError):
            return hosted, (hosted,) * len(members)
        errors: list[GroupError] = []
        async for some in in_slices(members):
            leavers = tuple(some)

            def event(waiter: int, leavers: tuple[LeavingMember, ...] = leavers) -> MembersLeft:
                return MembersLeft(waiter, leavers)

            errors += await self.membership.ask(hosted, event, tuple)
        return GroupError.NONE, tuple(errors)

    # Offsets ----------------------------------------------------------------------------------------------------
    async def commit_offsets(self, request: CommitRequest) -> list[GroupError]:
        """OffsetCommit: one error per offset, answered when they are durable."""
        hosted = await self._hosting.arrive(request.group_id)
        if hosted is None:
            hosted = (
                GroupError.ILLEGAL_GENERATION if request.generation >= 0 else self._hosting.create(request.group_id)
            )
        if isinstance(hosted, GroupError):
            return [hosted] * len(request.offsets)
        return await self._offsets.commit(hosted, request, self._lag.catch_up)

    async def fetch_offsets(
        self, group_id: str, wanted: Sequence[TopicShard] | None, member_id: str | None = None, member_epoch: int = -1
    ) -> FetchedOffsets:
        """OffsetFetch: what is committed and durable; None asks for all the group has. A member of a group of the
        consumer protocol identifies itself, and gets nothing at another epoch.

        "Nothing is committed" is returned only if the catalog is at least as new as the question.
        """
        hosted = await self._hosting.arrive(group_id)
        if isinstance(hosted, GroupError):
            return FetchedOffsets(hosted)
        if hosted is not None:
            if error := member_error(hosted, member_id, member_epoch):
                return FetchedOffsets(error)
            if await self._offsets.has_unplaced(hosted, wanted) and not await self._lag.catch_up():
                return FetchedOffsets(GroupError.COORDINATOR_LOAD_IN_PROGRESS)
            if hosted.absence is not None:  # given up meanwhile: it holds no offsets any more
                return FetchedOffsets(hosted.absence)
        return FetchedOffsets(GroupError.NONE, tuple(await self._offsets.fetch(hosted, wanted)))

    async def delete_offsets(self, group_id: str, places: Sequence[TopicShard]) -> DeletedOffsets:
        hosted = await self._hosting.arrive(group_id)
        if hosted is None:
            return DeletedOffsets(GroupError.GROUP_ID_NOT_FOUND)
        if isinstance(hosted, GroupError):
            return DeletedOffsets(hosted)
        return await self._forgetter.delete_offsets(hosted, places)

    # Groups -----------------------------------------------------------------------------------------------------
    async def describe(self, group_id: str) -> DescribedGroup:
        hosted = await self._hosting.arrive(group_id)
        if isinstance(hosted, HostedGroup):
            if isinstance(hosted.machine, Group):
                return DescribedGroup(GroupError.NONE, hosted.machine.status())
            return put_off(group_id, GroupError.NONE)  # by this API one of the other protocol is none, as in Kafka
        return put_off(group_id, hosted or GroupError.NONE)

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> ListedGroups:
        """Groups of this node, of all states and types or of those named (in any case of letters)."""
        self._hosting.adopt()  # shards that became usable and were not requested yet
        is_sure = await self._hosting.is_sure()
        wanted, of_types = ({word.lower() for word in words} for words in (states, types))
        listed: list[ListedGroup] = []
        async for some in in_slices(list(self._hosting.hosted())):
            found = [
                ListedGroup(
                    hosted.group_id,
                    hosted.machine.protocol_type or "",
                    hosted.machine.state.value,
                    "classic" if isinstance(hosted.machine, Group) else "consumer",
                )
                for hosted in some
            ]
            listed += [
                group
                for group in found
                if (not wanted or group.state.lower() in wanted) and (not of_types or group.group_type in of_types)
            ]
        is_whole = is_sure and not self._hosting.is_loading
        error = GroupError.NONE if is_whole else GroupError.COORDINATOR_LOAD_IN_PROGRESS
        return ListedGroups(error, tuple(listed))

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, GroupError]:
        """An error for each group named. When the log takes nothing, the rest is not tried."""
        errors: dict[str, GroupError] = {}
        async for some in in_slices(list(dict.fromkeys(group_ids)), 100):
            outcomes = await asyncio.gather(*(self._delete_group(group_id) for group_id in some))
            errors.update(zip(some, outcomes, strict=True))
            if all(error is GroupError.COORDINATOR_NOT_AVAILABLE for error in outcomes):
                return {group_id: errors.get(group_id, GroupError.COORDINATOR_NOT_AVAILABLE) for group_id in group_ids}
        return errors

    async def _delete_group(self, group_id: str) -> GroupError:
        hosted = await self._hosting.arrive(group_id)
        if hosted is None:
            return GroupError.GROUP_ID_NOT_FOUND
        if isinstance(hosted, GroupError):
            return hosted
        return await self._forgetter.delete_group(hosted)

    async def _member_group(self, group_id: str) -> HostedGroup | GroupError:
        if not group_id:
            return GroupError.INVALID_GROUP_ID
        return await self._hosting.reach(group_id) or GroupError.UNKNOWN_MEMBER_ID

    # Upkeep -----------------------------------------------------------------------------------------------------
    async def sweep(self) -> None:
        """Forget offsets and groups whose time is over; the sweeper calls it."""
        await self._forgetter.sweep(list(self._hosting.hosted()))

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_interval_s)
            try:
                await self.sweep()
            except Exception:
                _log.exception("the search for expired offsets failed; trying again")


def _migration(words: SubscriptionCodec, settings: ProcessSettings, limits: CoordinatorLimits) -> Migration:
    group_limits = GroupLimits(
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        max_members=settings.group_max_size,
        new_member_join_timeout_ms=limits.new_member_join_timeout_ms,
    )
    policy = settings.group_consumer_migration_policy
    consumer_limits = ConsumerLimits(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_members=settings.group_max_size,
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        may_downgrade=policy.may_downgrade,
    )
    return Migration(words, group_limits, consumer_limits, may_upgrade=policy.may_upgrade)


def _has_long_text(request: JoinRequest) -> bool:
    """A name that the group log has no room for."""
    names = [
        request.member_id,
        request.instance_id or "",
        request.client_id,
        request.client_host,
        request.protocol_type,
    ]
    names += [protocol.name for protocol in request.protocols]
    return any(4 * len(name) > _LONGEST_NAME and len(name.encode()) > _LONGEST_NAME for name in names)
