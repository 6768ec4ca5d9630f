"""Groups of the consumer protocol (KIP-848) on this node: heartbeats of their members, descriptions.

A group uses the protocol of its first member. A group without members switches to the other protocol when a request
uses that, and keeps its offsets; a group with classic members switches if it can (docs/group-migration.md), or says why
it does not. Thread: the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from functools import lru_cache
from typing import Protocol

import re2

from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.consumer_group_events import ConsumerAnswer, ConsumerHeartbeat, SeenTopic, SeenTopics
from stratalog.machines.groups.group import Group
from stratalog.model.groups.group import GroupError, GroupState
from stratalog.model.metadata import Change, TopicChanged, TopicDeleted
from stratalog.model.topic import Topic
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.groups.hosting import GroupHosting
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.requests import ConsumerRequest, DescribedConsumers, MayDescribe
from stratalog_node.groups.room import GroupRoom
from stratalog_node.groups.stats import GroupStats

_JOINS = 0
_LONGEST_NAME = 32_767
_MOST_TOPICS = 10_000
"""Limit for the topics that one member subscribes to by name."""
_LONGEST_REGEX = 4_096


class AllTopics(Protocol):
    """The node's catalog, as far as subscriptions need it."""

    def topic(self, name: str) -> Topic | None: ...

    def topics(self) -> Iterable[Topic]: ...


class TopicsSeen:
    """The catalog's topics as groups see them."""

    view = None

    def __init__(self, catalog: AllTopics) -> None:
        self._catalog = catalog
        self.version = 0

    def on_change(self, change: Change) -> None:
        if isinstance(change, TopicChanged | TopicDeleted):
            self.version += 1

    def topic(self, name: str) -> SeenTopic | None:
        found = self._catalog.topic(name)
        return None if found is None else SeenTopic(found.topic_id, found.shard_count)

    def matching(self, regex: str) -> Collection[str]:
        pattern = compiled(regex)
        if pattern is None:
            return ()
        return [topic.name for topic in self._catalog.topics() if pattern.fullmatch(topic.name)]


def topics_seen_by(topics: TopicsSeen, may_describe: MayDescribe | None) -> SeenTopics:
    """What a client's request shows the group, whose regular expressions are looked up with it."""
    return topics if may_describe is None else _DescribedTopics(topics, may_describe)


class _DescribedTopics:
    """The topics as one client sees them: regular expressions find only what it may describe. What members of a group
    find by the same expression is found once, as the first of them sees it; as in Kafka."""

    def __init__(self, topics: TopicsSeen, may_describe: MayDescribe) -> None:
        self._topics = topics
        self._may_describe = may_describe

    @property
    def version(self) -> int:
        return self._topics.version

    @property
    def view(self) -> tuple[str, Hashable]:
        return self._may_describe.viewer, self._may_describe.revision

    def topic(self, name: str) -> SeenTopic | None:
        return self._topics.topic(name)

    def matching(self, regex: str) -> Collection[str]:
        return [name for name in self._topics.matching(regex) if self._may_describe(name)]


@lru_cache(maxsize=256)
def compiled(regex: str) -> re2._Regexp | None:
    """None if it is not a regular expression of RE2. Matching takes time in proportion to the length of a name
    alone."""
    try:
        return re2.compile(regex, _OPTIONS)
    except re2.error:
        return None


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    return options


_OPTIONS = _options()


class ConsumerGroups:
    def __init__(
        self,
        hosting: GroupHosting,
        membership: Membership,
        room: GroupRoom,
        catalog: AllTopics,
        stats: GroupStats,
        catch_up: Callable[[], Awaitable[bool]],
    ) -> None:
        """`catch_up` brings the catalog up to date; False when that cannot be said now."""
        self._hosting = hosting
        self._membership = membership
        self._room = room
        self._stats = stats
        self._catch_up = catch_up
        self.topics = TopicsSeen(catalog)

    async def heartbeat(self, request: ConsumerRequest) -> ConsumerAnswer:
        """ConsumerGroupHeartbeat: joins, stays, leaves; answered when what it changed is durable."""
        refusal = _refusal(request)
        if refusal is not None:
            return refusal
        hosted = await self._hosting.arrive(request.group_id)
        if hosted is None and request.member_epoch != _JOINS:
            return ConsumerAnswer(GroupError.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id!r}")
        if hosted is None:
            hosted = self._hosting.create(request.group_id, is_consumers=True)
        if isinstance(hosted, GroupError):
            return ConsumerAnswer(hosted)
        error = self._hosting.convert_without_members(hosted, to_consumers=True)
        if error is not GroupError.NONE:
            return ConsumerAnswer(error)
        if isinstance(hosted.machine, Group) and request.member_epoch != _JOINS:
            return ConsumerAnswer(GroupError.UNKNOWN_MEMBER_ID, "the group has members of the classic protocol only")
        if (refused := await self._upgrade(hosted, request)) is not None:
            return refused
        if request.member_epoch == _JOINS:
            self._stats.joins += 1
        return await self._membership.ask(hosted, lambda waiter: self._event(waiter, request), ConsumerAnswer)

    async def _upgrade(self, hosted: HostedGroup, request: ConsumerRequest) -> ConsumerAnswer | None:
        """Nothing is between its end and what comes next, where the group may be asked."""
        joining = self._event(0, request)
        refused = self._membership.upgrade(hosted, joining)
        if isinstance(refused, frozenset) and await self._catch_up():
            if hosted.absence is not None:
                return ConsumerAnswer(hosted.absence)
            refused = self._membership.upgrade(hosted, joining, gone=refused)
        if isinstance(refused, frozenset):
            why = "this node does not know yet all that the group's classic members have"
            return ConsumerAnswer(GroupError.COORDINATOR_LOAD_IN_PROGRESS, why)
        return refused

    def _event(self, waiter: int, request: ConsumerRequest) -> ConsumerHeartbeat:
        return ConsumerHeartbeat(
            waiter,
            request.member_id,
            request.member_epoch,
            topics_seen_by(self.topics, request.may_describe),
            request.instance_id,
            request.rack_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.topic_names,
            request.topic_regex,
            request.assignor,
            request.owned,
            self._room.left_bytes,
        )

    async def describe(self, group_id: str) -> DescribedConsumers:
        """ConsumerGroupDescribe, of one group."""
        hosted = await self._hosting.arrive(group_id)
        if isinstance(hosted, GroupError):
            return DescribedConsumers(hosted, group_id)
        machine = None if hosted is None else hosted.machine
        if isinstance(machine, ConsumerGroup) and machine.state is not GroupState.DEAD:
            return DescribedConsumers(GroupError.NONE, group_id, None, machine.status())
        why = f"there is no group {group_id!r}" if machine is None else f"{group_id!r} speaks the classic protocol"
        return DescribedConsumers(GroupError.GROUP_ID_NOT_FOUND, group_id, why)


def member_error(hosted: HostedGroup, member_id: str | None, epoch: int) -> GroupError:
    """Whether a client that claims to be a member may read the group's offsets."""
    machine = hosted.machine
    if not isinstance(machine, ConsumerGroup) or (member_id is None and epoch < 0):
        return GroupError.NONE
    return machine.member_error(member_id or "", epoch)


def _refusal(request: ConsumerRequest) -> ConsumerAnswer | None:
    """What can be said of a request by itself."""
    if not request.group_id:
        return ConsumerAnswer(GroupError.INVALID_REQUEST, "no group id")
    if not request.member_id:
        return ConsumerAnswer(GroupError.INVALID_REQUEST, "no member id")
    if request.member_epoch < -2:
        return ConsumerAnswer(GroupError.INVALID_REQUEST, f"{request.member_epoch} is not a member epoch")
    if request.instance_id == "" or (request.member_epoch == -2 and request.instance_id is None):
        return ConsumerAnswer(GroupError.INVALID_REQUEST, "no instance id")
    names = request.topic_names or ()
    texts = (request.member_id, request.instance_id, request.rack_id, request.client_id, request.client_host, *names)
    if len(names) > _MOST_TOPICS or any(len((text or "").encode()) > _LONGEST_NAME for text in texts):
        return ConsumerAnswer(GroupError.INVALID_REQUEST, f"a name is too long, or more than {_MOST_TOPICS} topics")
    if request.member_epoch == _JOINS:
        if request.topic_names is None and request.topic_regex is None:
            return ConsumerAnswer(GroupError.INVALID_REQUEST, "who joins must say what it subscribes to")
        if request.rebalance_timeout_ms is None:
            return ConsumerAnswer(GroupError.INVALID_REQUEST, "who joins must say its rebalance timeout")
        if request.owned:
            return ConsumerAnswer(GroupError.INVALID_REQUEST, "who joins can have no partitions yet")
    regex = request.topic_regex
    if regex and (len(regex) > _LONGEST_REGEX or compiled(regex) is None):
        return ConsumerAnswer(GroupError.INVALID_REGULAR_EXPRESSION, f"no regular expression of RE2: {regex[:200]!r}")
    return None
