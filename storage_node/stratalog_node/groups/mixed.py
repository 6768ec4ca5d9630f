"""Classic members of consumer groups: their JoinGroup, SyncGroup and Heartbeat (docs/group-migration.md section 3).

Thread: the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stratalog.machines.groups.consumer_group_events import ClassicBeat, ClassicJoined, ShareAnswer
from stratalog.machines.groups.group_events import HeartbeatReceived, JoinAnswer, MemberJoined, MemberSynced, SyncAnswer
from stratalog.model.groups.consumer_group import PlacesByName
from stratalog.model.groups.group import CONSUMER_PROTOCOL_TYPE, GroupError
from stratalog.model.ids import ShardKey
from stratalog_node.groups.consumers import TopicsSeen, topics_seen_by
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.groups.membership import Membership
from stratalog_node.groups.offsets import Topics
from stratalog_node.groups.requests import MayDescribe, SyncRequest
from stratalog_node.groups.room import GroupRoom
from stratalog_node.groups.subscription_codec import SubscriptionCodec


class MixedGroups:
    """Requires: groups of the consumer protocol."""

    def __init__(
        self, words: SubscriptionCodec, membership: Membership, room: GroupRoom, catalog: Topics, topics: TopicsSeen
    ) -> None:
        self._words = words
        self._membership = membership
        self._room = room
        self._catalog = catalog
        self._topics = topics

    async def join(self, hosted: HostedGroup, join: MemberJoined, may_describe: MayDescribe | None) -> JoinAnswer:
        """A member that names a topic that it may not describe joins without it, as if there were none: which shards
        the group gives to members would tell of it."""
        subscription = self._words.wishes(join.protocols)
        if subscription is not None and may_describe is not None:
            subscription = subscription._replace(topics=tuple(filter(may_describe, subscription.topics)))
        topics = topics_seen_by(self._topics, may_describe)

        def event(waiter: int) -> ClassicJoined:
            return ClassicJoined(replace(join, waiter=waiter), subscription, topics, self._room.left_bytes)

        return await self._membership.ask(hosted, event, JoinAnswer)

    async def sync(self, hosted: HostedGroup, request: SyncRequest) -> SyncAnswer:
        def event(waiter: int) -> MemberSynced:
            return synced(request, waiter)

        share = await self._membership.ask(hosted, event, ShareAnswer)
        if share.error is not GroupError.NONE:
            return SyncAnswer(share.error)
        assignment = self._words.write_assignment(self._by_name(share.shards, request.may_describe))
        return SyncAnswer(GroupError.NONE, CONSUMER_PROTOCOL_TYPE, share.protocol_name, assignment)

    def _by_name(self, shards: Iterable[ShardKey], may_describe: MayDescribe | None) -> list[PlacesByName]:
        """As classic clients name them. Topics that are gone meanwhile are left out, and those that the member may not
        describe: it subscribed to them before the group changed its protocol, or lost the right since."""
        found: dict[str, list[int]] = {}
        for topic_id, shard in sorted(shards):
            topic = self._catalog.topic_by_id(topic_id)
            if topic is not None and (may_describe is None or may_describe(topic.name)):
                found.setdefault(topic.name, []).append(shard)
        return [PlacesByName(name, tuple(indexes)) for name, indexes in found.items()]

    async def heartbeat(
        self,
        hosted: HostedGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
        may_describe: MayDescribe | None,
    ) -> GroupError:
        topics = topics_seen_by(self._topics, may_describe)

        def event(waiter: int) -> ClassicBeat:
            return ClassicBeat(HeartbeatReceived(waiter, member_id, instance_id, generation), topics)

        return await self._membership.ask(hosted, event, GroupError)


def synced(request: SyncRequest, waiter: int) -> MemberSynced:
    return MemberSynced(
        waiter=waiter,
        member_id=request.member_id,
        instance_id=request.instance_id,
        generation=request.generation,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=request.assignments,
    )
