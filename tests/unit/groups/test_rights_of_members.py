"""What members of both protocols learn of topics that their client may not describe.

"clicks" is such a topic; the client that asks may use the group and describe "orders".
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.kafka.subscription import read_assignment, write_assignment
from stratalog.machines.groups.group_events import JoinAnswer
from stratalog.model.groups.consumer_group import PlacesByName
from stratalog.model.groups.group import GroupError, MemberProtocol
from stratalog.model.metadata import TopicChanged
from support.group_node import GroupNode, beating, joining, subscription, syncing

OK = GroupError.NONE
BOTH = (MemberProtocol("range", subscription("orders", "clicks")),)


class _MayDescribe:
    viewer, revision = "User:alice", 0

    def __call__(self, name: str, /) -> bool:
        return name == "orders"


may_describe = _MayDescribe()


def id_of(node: GroupNode, name: str) -> UUID:
    topic = node.topics.topic(name)
    assert topic is not None
    return topic.topic_id


async def join(node: GroupNode, member_id: str = "") -> JoinAnswer:
    """As a classic member that names both topics."""
    joined = await node.groups.join(joining("g", "old", member_id, protocols=BOTH, may_describe=may_describe))
    assert joined.error is OK
    return joined


async def topics_given(node: GroupNode, joined: JoinAnswer, **given: bytes) -> set[str]:
    request = syncing("g", joined.member_id, joined.generation, **given)
    synced = await node.groups.sync(replace(request, may_describe=may_describe))
    assert synced.error is OK
    places = read_assignment(synced.assignment)
    assert places is not None
    return {place.topic for place in places}


async def test_a_classic_member_gets_no_shards_of_a_topic_that_its_client_may_not_describe() -> None:
    node = await GroupNode().start()
    first = await node.groups.consumers.heartbeat(beating("g", "new", may_describe=may_describe))
    assert first.error is OK
    joined = await join(node)
    assert await topics_given(node, joined) <= {"orders"}
    described = await node.groups.consumers.describe("g")
    assert described.status is not None
    members = {member.member_id: member for member in described.status.members}
    assert members[joined.member_id].topic_names == ("orders",)
    assert {key.topic_id for key in members[joined.member_id].target} == {id_of(node, "orders")}


@pytest.mark.parametrize("asks_by", ["heartbeat", "join"])
async def test_a_classic_member_finds_no_more_topics_for_a_regular_expression(asks_by: str) -> None:
    node = await GroupNode().start()
    wishes = {"topic_names": (), "topic_regex": ".*", "may_describe": may_describe}
    first = await node.groups.consumers.heartbeat(beating("g", "new", **wishes))
    assert {key.topic_id for key in first.assignment or ()} == {id_of(node, "orders")}
    old = await join(node)
    created = node.topics.add("hidden")
    node.groups.on_change(TopicChanged(created))  # the expression is looked up again
    if asks_by == "join":
        await join(node, old.member_id)
    else:
        await node.groups.heartbeat("g", old.member_id, None, old.generation, may_describe)
    described = await node.groups.consumers.describe("g")
    assert described.status is not None
    wanted = {key.topic_id for member in described.status.members for key in member.target}
    assert wanted == {id_of(node, "orders")}


async def test_a_group_that_changes_its_protocol_tells_its_classic_members_of_no_other_topics() -> None:
    node = await GroupNode().start()
    old = await join(node)
    shares = write_assignment([PlacesByName("orders", (0,)), PlacesByName("clicks", (0, 1))])
    assert await topics_given(node, old, **{old.member_id: shares}) == {"orders", "clicks"}, "its leader's own words"
    first = await node.groups.consumers.heartbeat(beating("g", "new", may_describe=may_describe))
    assert first.error is OK
    await node.groups.heartbeat("g", old.member_id, None, old.generation, may_describe)
    again = await join(node, old.member_id)
    assert await topics_given(node, again) <= {"orders"}


@pytest.mark.parametrize("topic", ["clicks", "absent"])
async def test_a_group_that_changes_its_protocol_keeps_no_shards_that_no_member_subscribed_to(topic: str) -> None:
    """Whether they are kept would tell a client that may describe the group that the topic exists."""
    node = await GroupNode().start()
    joined = await node.groups.join(joining("g", "old", may_describe=may_describe))
    shares = write_assignment([PlacesByName("orders", (0,)), PlacesByName(topic, (0,))])
    await topics_given(node, joined, **{joined.member_id: shares})
    assert (await node.groups.consumers.heartbeat(beating("g", "new", may_describe=may_describe))).error is OK
    described = await node.groups.consumers.describe("g")
    assert described.status is not None
    had = {key.topic_id for member in described.status.members for key in (*member.assigned, *member.target)}
    assert had == {id_of(node, "orders")}
