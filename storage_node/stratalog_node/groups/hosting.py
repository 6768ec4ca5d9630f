"""Which shards of the group log this node coordinates: creates the internal topic, takes shards over, gives them up.

The leader of a shard of `__consumer_offsets` leads its groups. A shard is taken over by reading its log, with retries
until it can be read or another node leads it; meanwhile its groups answer 14. When a shard is given up, all parked
requests get 16, and its state is dropped. Both go in slices: thousands of groups do not hold the event loop.
Thread: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.group import Group
from stratalog.meta_api.client import CommandTaker
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.errors import Corrupt, Fenced, StratalogError
from stratalog.model.groups.consumer_group import ConsumerGroupRecord
from stratalog.model.groups.group import CommittedOffset, GroupError, GroupRecord, GroupState
from stratalog.model.ids import ShardKey
from stratalog.model.mounts import OffsetRange
from stratalog.model.segment import Segment
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.groups.coordinator_validity import CoordinatorValidity
from stratalog_node.groups.group_rewrite import rewrite_group
from stratalog_node.groups.hosted import GroupShard, HostedGroup, ShardState
from stratalog_node.groups.log import Backlog, GroupLog, LogLimits
from stratalog_node.groups.log_topic import LogTopic
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.migration import Migration
from stratalog_node.groups.offsets import Topics
from stratalog_node.groups.placement import shard_of
from stratalog_node.groups.replay import Replay
from stratalog_node.groups.room import GroupRoom, RoomLimits, offset_bytes
from stratalog_node.groups.stats import GroupStats
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.slices import in_slices

_log = logger(__name__)

_OPENING_TIMEOUT_S = 5.0
_LOAD_PAUSE_S = 0.5
"""The longest pause before an unreadable log is tried again: members wait for it."""
_LONGEST_GROUP_ID = 4_096
"""In UTF-8 bytes: what the group log, the caches of names and the search for a group's place can bear many of."""


class GroupMeta(CommandTaker, Protocol):
    """What groups ask of the meta service; `MetaClient` is one."""

    async def read_version(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    max_groups: int = 100_000
    sweep_interval_s: float = 600.0
    """Time between two sweeps for expired offsets."""
    new_member_join_timeout_ms: int = 300_000
    log: LogLimits = field(default_factory=LogLimits)
    room: RoomLimits = field(default_factory=RoomLimits)


class GroupHosting:
    """Shards by index; a group is found through the shard that its name falls on."""

    def __init__(
        self,
        *,
        node_id: int,
        settings: ProcessSettings,
        topics: Topics,
        meta: GroupMeta,
        led_shard: Callable[[ShardKey], ShardView | None],
        membership: Membership,
        migration: Migration,
        room: GroupRoom,
        standing: CoordinatorValidity,
        wall_ms: Callable[[], int],
        limits: CoordinatorLimits,
        stats: GroupStats,
        is_lost: Callable[[Segment], bool],
    ) -> None:
        self._node_id = node_id
        self._is_lost = is_lost
        self.given_up: dict[int, tuple[OffsetRange, ...]] = {}
        """By shard of the group log: what its groups began again without, in this life of the node."""
        self._meta = meta
        self._led_shard = led_shard
        self._membership = membership
        self._room = room
        self._wall_ms = wall_ms
        self._backlog = Backlog()
        self._limits = limits
        self._stats = stats
        self._migration = migration
        self._shards: dict[int, GroupShard] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._is_stopped = False
        self._standing = standing
        self._log_topic = LogTopic(node_id=node_id, settings=settings, topics=topics, meta=meta, settled=self._adopted)
        self._tasks = TaskSet()
        self._closings = TaskSet()
        """Those of them that tell the groups of a shard given up: no stop ends these."""

    # The internal topic -----------------------------------------------------------------------------------------
    async def ensure_ready(self) -> None:
        """Make sure the internal topic exists and take over what is led here: FindCoordinator calls it first.

        Raises: Unavailable, OutcomeUnknown: the client asks again.
        """
        await self._log_topic.ensure()
        self.adopt()

    def shard_key_of(self, group_id: str) -> ShardKey | None:
        """The shard whose leader coordinates the group; None before the internal topic exists."""
        topic = self._log_topic.topic
        return None if topic is None else ShardKey(topic.topic_id, shard_of(group_id, topic.shard_count))

    def is_ours(self, key: ShardKey) -> bool:
        topic = self._log_topic.topic
        return topic is not None and topic.topic_id == key.topic_id

    async def _adopted(self) -> None:
        """A client that asked for the topic continues with JoinGroup: a short wait here saves it a round of errors."""
        self.adopt()
        if self._loads:
            await asyncio.wait(set(self._loads.values()), timeout=_OPENING_TIMEOUT_S)

    def nodes_changed(self) -> None:
        """One came or went."""
        if not self._is_stopped:
            self._log_topic.widen_if_due()

    # Finding ----------------------------------------------------------------------------------------------------
    async def arrive(self, group_id: str) -> HostedGroup | GroupError | None:
        """`find` for requests that need an answer before there is any group too: the first of all makes the internal
        topic."""
        if self._log_topic.topic is None:
            try:
                await self.ensure_ready()
            except StratalogError as failure:
                _log.warning("the topic of group offsets is not there yet", reason=str(failure))
                return GroupError.COORDINATOR_NOT_AVAILABLE
        return await self.reach(group_id)

    async def reach(self, group_id: str) -> HostedGroup | GroupError | None:
        """`find`, once it is sure that this node coordinates the group (`standing`)."""
        found = self.find(group_id)
        if isinstance(found, GroupError):
            return found
        key = self.shard_key_of(group_id)
        assert key is not None, "checked by find"
        shard = self._shards[key.shard]
        if self._standing.is_sure(shard):
            return found
        return await self._standing.refusal(shard) or self.find(group_id)

    async def is_sure(self) -> bool:
        """Whether this holds for all shards that are here."""
        ready = [shard for shard in self._shards.values() if shard.state is ShardState.READY]
        return not any(await asyncio.gather(*(self._standing.refusal(shard) for shard in ready)))

    def find(self, group_id: str) -> HostedGroup | GroupError | None:
        """The group; None when this node would coordinate it but there is none."""
        if len(group_id) > _LONGEST_GROUP_ID or len(group_id.encode()) > _LONGEST_GROUP_ID:
            return GroupError.INVALID_GROUP_ID
        key = self.shard_key_of(group_id)
        if key is None:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        shard = self._shards.get(key.shard) or self._found_to_be_ours(key)
        if shard is None:
            return GroupError.NOT_COORDINATOR
        if shard.state is not ShardState.READY:
            return GroupError.COORDINATOR_LOAD_IN_PROGRESS
        hosted = shard.groups.get(group_id)
        if hosted is not None and hosted.absence is not None:
            if hosted.is_doubtful and not hosted.is_leaving and not self._is_stopped:
                self._tasks.start(self._rewrite(hosted), name="group-restate")
            return GroupError.COORDINATOR_LOAD_IN_PROGRESS
        return hosted

    async def _rewrite(self, hosted: HostedGroup) -> None:
        error = await rewrite_group(hosted)
        if error is not GroupError.NONE:
            _log.warning("a group whose deletion failed could not be written again", group=hosted.group_id, error=error)
        self._membership.forget_if_blank(hosted)

    def create(self, group_id: str, *, is_consumers: bool = False) -> HostedGroup | GroupError:
        """Requires: `find` answered None just now. A group that gets nothing is the caller's to forget again."""
        if self._stats.hosted >= self._limits.max_groups or not self._room.has(0):
            return GroupError.GROUP_MAX_SIZE_REACHED
        key = self.shard_key_of(group_id)
        assert key is not None, "checked by find"
        shard = self._shards[key.shard]
        hosted = HostedGroup(shard, self._new_machine(group_id, is_consumers=is_consumers))
        shard.add(hosted)
        self._membership.count(hosted)
        return hosted

    def _new_machine(self, group_id: str, *, is_consumers: bool) -> Group | ConsumerGroup:
        if is_consumers:
            return ConsumerGroup(group_id, self._migration.consumer_limits)
        return Group(group_id, self._migration.group_limits)

    def convert_without_members(self, hosted: HostedGroup, *, to_consumers: bool) -> GroupError:
        """Have a group speak the other protocol if it has no members. Its offsets stay, and so does what says how long
        they do: that it had members, and its generation."""
        machine = hosted.machine
        if isinstance(machine, ConsumerGroup) is to_consumers:
            return GroupError.NONE
        if machine.state is not GroupState.EMPTY or machine.has_pending_members:
            return GroupError.NONE
        if hosted.writes:
            return GroupError.COORDINATOR_LOAD_IN_PROGRESS  # what is on its way to the log is the former machine's
        generation = machine.generation
        if to_consumers:
            limits = self._migration.consumer_limits
            hosted.machine = ConsumerGroup(hosted.group_id, limits, former_generation=generation)
        else:
            former = GroupRecord(generation, machine.protocol_type, None, None, ())
            hosted.machine = Group(hosted.group_id, self._migration.group_limits, former)
        self._membership.count(hosted)
        return GroupError.NONE

    def hosted(self) -> Iterator[HostedGroup]:
        for shard in list(self._shards.values()):
            if shard.state is ShardState.READY:
                yield from list(shard.groups.values())

    # Taking over and giving up ----------------------------------------------------------------------------------
    def adopt(self) -> None:
        """Compare with what this node leads now: load what is new, give up what is gone."""
        topic = self._log_topic.topic
        if topic is None or self._is_stopped:
            return
        for index in range(topic.shard_count):
            is_led = self._led_shard(ShardKey(topic.topic_id, index)) is not None
            if is_led and index not in self._shards:
                self._begin_load(index)
            elif not is_led and index in self._shards:
                self.unload(index)
        self._log_topic.widen_if_due()

    def shard_changed(self, key: ShardKey) -> None:
        """Something of a shard of the group log changed. What others may write from now on is given up at once: when
        this node leads it again its groups must be read again."""
        shard = self._shards.get(key.shard)
        if shard is not None:
            shard.news.set()
            if self._led_shard(key) is None:
                self.unload(key.shard)
        self.adopt_soon()

    def _found_to_be_ours(self, key: ShardKey) -> GroupShard | None:
        """Some shards become usable without a change of metadata, for example once healed from the object store. So a
        request for a shard that is not loaded makes this node check."""
        if not self._is_stopped and self._led_shard(key) is not None:
            self._begin_load(key.shard)
        return self._shards.get(key.shard)

    @property
    def is_loading(self) -> bool:
        return any(shard.state is ShardState.LOADING for shard in self._shards.values())

    async def load(self, index: int) -> None:
        """Take one shard over; returns when its groups can be used, or when it turned out not to be ours."""
        if index not in self._shards:
            self._begin_load(index)
        loading = self._loads.get(index)
        if loading is not None:
            await asyncio.wait({loading})

    def unload_all(self) -> None:
        for index in list(self._shards):
            self.unload(index)

    def unload(self, index: int) -> None:
        """Give one shard up: parked requests get NOT_COORDINATOR."""
        shard = self._shards.pop(index, None)
        if shard is None:
            return
        if (loading := self._loads.pop(index, None)) is not None:
            loading.cancel()
        self._stats.shards_loaded -= shard.state is ShardState.READY
        shard.state = ShardState.CLOSED
        if shard.log is not None:
            shard.log.close()
        self._closings.start(self._close_groups(shard), name=f"group-close-{index}")

    async def _close_groups(self, shard: GroupShard) -> None:
        async for some in in_slices(list(shard.groups.values())):
            for hosted in some:
                self._stats.offsets -= len(hosted.offsets)
                self._room.change(-hosted.offset_bytes)
                hosted.offsets, hosted.offset_bytes = {}, 0
                self._membership.close(hosted, GroupError.NOT_COORDINATOR)

    def adopt_soon(self) -> None:
        """After the other listeners of the same change: one of them opens the shard."""
        asyncio.get_running_loop().call_soon(self.adopt)

    def _begin_load(self, index: int) -> None:
        shard = self._shards[index] = GroupShard(index, self._stats)
        self._loads[index] = self._tasks.start(self._load(shard), name=f"group-load-{index}")

    async def _load(self, shard: GroupShard) -> None:
        backoff, last_logged = Backoff(longest_s=_LOAD_PAUSE_S), ""
        while shard.state is ShardState.LOADING:
            topic = self._log_topic.topic
            view = None if topic is None else self._led_shard(ShardKey(topic.topic_id, shard.index))
            if topic is None or view is None:
                break
            shard.news.clear()
            if shard.log is None:
                shard.log = self._log_of(shard, view)
            try:
                await self._take_over(shard, await shard.log.load(self._node_id))
            except Fenced:
                break
            except Corrupt as damage:
                backoff = _after_a_fault()
                _log.error("group log cannot be read; its groups wait", shard=shard.index, reason=str(damage))
            except StratalogError as failure:
                if str(failure) != last_logged:  # repeats while the segment before is being sealed
                    last_logged = str(failure)
                    _log.warning("group log not loaded yet", shard=shard.index, reason=last_logged)
            except Exception:
                backoff = _after_a_fault()
                _log.exception("group log not loaded", shard=shard.index)
                await self._close_groups(shard)  # what was taken over of it already
            else:
                self._loads.pop(shard.index, None)
                return
            await _pause(backoff, shard.news)
        self._loads.pop(shard.index, None)
        self.unload(shard.index)

    def _log_of(self, shard: GroupShard, view: ShardView) -> GroupLog:
        topic_id = view.key.topic_id

        async def trim(index: int, offset: int) -> None:
            # The snapshot first: a power cut may take what is not flushed, and what is trimmed stays trimmed.
            await view.make_durable()
            await self._meta.perform(AdvanceLogStart(ShardKey(topic_id, index), offset))

        return GroupLog(
            shard.index,
            view,
            shard,
            wall_ms=self._wall_ms,
            trim=trim,
            on_fenced=lambda: self._fenced(shard),
            backlog=self._backlog,
            limits=self._limits.log,
            stats=self._stats,
            is_lost=self._is_lost,
        )

    def _fenced(self, shard: GroupShard) -> None:
        if self._shards.get(shard.index) is shard:
            self.unload(shard.index)

    def _tell_given_up(self, shard: int, ranges: Sequence[OffsetRange]) -> None:
        """An empty range says that nothing is known to be lost: a rebuild and a restore leave one per segment."""
        if lost := [tuple(one) for one in ranges if one.base_offset < one.end_offset]:
            words = (
                "part of the group log was given up: groups that wrote nowhere else start empty, others as of before"
            )
            _log.warning(words, shard=shard, ranges=lost)
        else:
            words = "disks that had the end of the group log are gone, nothing is known to be lost: groups continue"
            _log.info(words, shard=shard, offsets=[one.base_offset for one in ranges])

    async def _take_over(self, shard: GroupShard, replay: Replay) -> None:
        if replay.given_up:
            self._stats.incomplete_loads += 1
            self.given_up[shard.index] = tuple(replay.given_up)
            self._tell_given_up(shard.index, replay.given_up)
        elif not replay.begins_complete:
            self._stats.incomplete_loads += 1
            _log.error(
                "the beginning of the group log is missing: groups that did not write since are forgotten",
                shard=shard.index,
            )
        async for some in in_slices(list(replay.groups.items()), 100):
            for group_id, replayed in some:
                hosted = HostedGroup(shard, self._machine_of(group_id, replayed.record))
                hosted.durable, hosted.changed_ms = replayed.record, replayed.changed_ms
                shard.add(hosted)
                self._membership.count(hosted)
                await self._take_offsets(hosted, replayed.offsets)
        if shard.state is not ShardState.LOADING:
            return
        self._stats.shards_loaded += 1
        self._stats.loads += 1
        shard.state = ShardState.READY
        _log.info("group log loaded", shard=shard.index, groups=len(shard.groups))
        async for hosts in in_slices(list(shard.groups.values())):
            for hosted in hosts:
                # Only from here on its members' heartbeats count.
                hosted.machine.begin_sessions(self._membership.now_ms())
                self._membership.downgrade_if_due(hosted)  # whoever coordinated it before may not have come to that
                self._membership.wake_in_time(hosted)
        if shard.log is not None:
            shard.log.loaded()

    def _machine_of(self, group_id: str, record: GroupRecord | ConsumerGroupRecord | None) -> Group | ConsumerGroup:
        now_ms = self._membership.now_ms()
        if isinstance(record, ConsumerGroupRecord):
            return ConsumerGroup(group_id, self._migration.consumer_limits, record, now_ms)
        return Group(group_id, self._migration.group_limits, record, now_ms)

    async def _take_offsets(self, hosted: HostedGroup, offsets: dict[ShardKey, CommittedOffset]) -> None:
        size_bytes = 0
        async for some in in_slices(list(offsets.values())):
            size_bytes += sum(offset_bytes(committed) for committed in some)
        if hosted.shard.state is ShardState.LOADING:
            hosted.offsets, hosted.offset_bytes = offsets, size_bytes
            self._stats.offsets += len(offsets)
            self._room.change(size_bytes)

    # Tasks ------------------------------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Parked requests are answered NOT_COORDINATOR; appends under way are waited for."""
        self._is_stopped = True
        await self._log_topic.close()
        await self._tasks.cancel()
        await self._closings.ended()
        shards = list(self._shards.values())
        self.unload_all()
        await self._closings.ended()
        for shard in shards:
            if shard.log is not None:
                await shard.log.drained()


def _after_a_fault() -> Backoff:
    backoff = Backoff()
    backoff.expect_little()
    return backoff


async def _pause(backoff: Backoff, news: asyncio.Event) -> None:
    """Until it is time to try again, or there is a reason to."""
    waits = [asyncio.ensure_future(backoff.pause()), asyncio.ensure_future(news.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
