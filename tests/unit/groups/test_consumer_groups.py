"""Groups of the consumer protocol on a node: what they keep, what they refuse, and when they speak another protocol."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from stratalog.kafka import messages
from stratalog.kafka.reader import read_entity
from stratalog.machines.groups.group_events import LeavingMember
from stratalog.model.groups.group import GroupError
from stratalog.telemetry.audit_log import NO_AUDIT
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.room import RoomLimits
from stratalog_node.serve.api.groups import p68_consumer_group_heartbeat
from stratalog_node.serve.connections.context import ConnectionInfo, NodeServices, RequestContext
from support.group_node import GroupNode, beating, committing, joining

DAY_MS = 24 * 3_600_000
OK = GroupError.NONE
INVALID = GroupError.INVALID_REQUEST


async def offsets(node: GroupNode, group_id: str) -> dict[tuple[str, int], int]:
    fetched = await node.groups.fetch_offsets(group_id, None)
    assert fetched.error is OK
    return {(topic, shard): committed.offset for topic, shard, committed in fetched.offsets if committed}


async def sweep(node: GroupNode) -> None:
    await node.groups.sweep()
    await node.settle()


# From one protocol to the other -------------------------------------------------------------------------------------
@pytest.mark.fault("group-changes-protocol-member")
async def test_a_member_that_is_refused_takes_no_offsets_from_a_consumer_that_assigns_itself() -> None:
    node = await GroupNode().start()
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 5))) == [OK]
    refused = await node.groups.consumers.heartbeat(beating("g", "a", assignor="mine"))
    assert refused.error is not OK
    await sweep(node)
    assert await offsets(node, "g") == {("orders", 0): 5}, "offsets committed just now expired"
    await node.grow_older(6 * DAY_MS)
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 6))) == [OK]
    await node.grow_older(6 * DAY_MS)
    await sweep(node)
    assert await offsets(node, "g") == {("orders", 0): 6}


@pytest.mark.fault("group-changes-protocol-member")
async def test_a_classic_member_that_does_not_come_back_takes_no_offsets_from_a_group_that_just_lost_its_members() -> (
    None
):
    node = await GroupNode().start()
    epoch = (await node.groups.consumers.heartbeat(beating("g", "a"))).member_epoch
    commit = committing("g", ("orders", 0, 5), member_id="a", generation=epoch)
    assert await node.groups.commit_offsets(commit) == [OK]
    await node.grow_older(30 * DAY_MS)
    assert (await node.groups.consumers.heartbeat(beating("g", "a", -1))).error is OK
    assert (await node.groups.join(joining("g", "b", requires_known_id=True))).error is GroupError.MEMBER_ID_REQUIRED
    await node.wait(10_001)
    await sweep(node)
    await sweep(node)
    assert await offsets(node, "g") == {("orders", 0): 5}, "the retention counts from when the last member left"
    await node.grow_older(7 * DAY_MS)
    await sweep(node)
    assert await offsets(node, "g") == {}


@pytest.mark.fault("epoch-group-fall-changes")
async def test_the_epoch_continues_over_a_change_of_protocol_and_back() -> None:
    node = await GroupNode().start()
    consumers, seen = node.groups.consumers, []
    for _ in range(3):
        seen.append((await consumers.heartbeat(beating("g", "a"))).member_epoch)
        await consumers.heartbeat(beating("g", "a", -1))
        joined = await node.groups.join(joining("g", "b"))
        seen.append(joined.generation)
        await node.groups.leave("g", [LeavingMember(joined.member_id, None)])
        await node.settle()
    assert seen == sorted(set(seen)), "a commit of long ago must not be taken for one of now"


@pytest.mark.fault("group-changes-protocol-member")
async def test_what_is_converted_and_never_joined_is_the_same_after_a_restart() -> None:
    node = await GroupNode().start()
    joined = await node.groups.join(joining("g", "b"))
    commit = committing("g", ("orders", 0, 5))
    await node.groups.leave("g", [LeavingMember(joined.member_id, None)])
    await node.settle()
    assert await node.groups.commit_offsets(commit) == [OK]
    await node.groups.consumers.heartbeat(beating("g", "a", assignor="mine"))
    await sweep(node)
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 5}
    answer = await node.groups.consumers.heartbeat(beating("g", "a"))
    assert answer.error is OK and answer.member_epoch > joined.generation
    await node.kill()
    assert (await node.groups.consumers.heartbeat(beating("g", "a", answer.member_epoch))).error is OK


# Bounds -------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("member-sends-name-group")
async def test_a_name_that_the_log_cannot_hold_is_refused_without_harm_to_others() -> None:
    node = await GroupNode().start()
    consumers = node.groups.consumers
    epoch = (await consumers.heartbeat(beating("g", "a"))).member_epoch
    long = beating("g", "b", topic_names=("orders", "x" * 70_000))
    assert (await consumers.heartbeat(long)).error is GroupError.INVALID_REQUEST
    assert (await consumers.heartbeat(beating("g", "a", epoch))).error is OK
    assert (await consumers.heartbeat(beating("g", "c"))).error is OK


@pytest.mark.fault("members-subscribe-topics-name")
async def test_a_member_that_wishes_for_more_takes_no_more_room_than_the_node_has() -> None:
    node = await GroupNode(limits=CoordinatorLimits(room=RoomLimits(200_000, 1 << 30))).start()
    consumers = node.groups.consumers
    many = tuple(f"a-topic-of-many-{number}" for number in range(1_000))
    for number in range(10):
        joined = await consumers.heartbeat(beating(f"g{number}", "a"))
        if joined.error is not OK:
            break
        answer = await consumers.heartbeat(beating(f"g{number}", "a", joined.member_epoch, topic_names=many))
        assert answer.error in (OK, GroupError.GROUP_MAX_SIZE_REACHED)
    assert node.groups.stats.held_bytes <= 200_000 + 10_000
    refused = await consumers.heartbeat(beating("late", "a", topic_names=many))
    assert refused.error is GroupError.GROUP_MAX_SIZE_REACHED
    assert "late" not in {group.group_id for group in (await node.groups.list_groups()).groups}


@pytest.mark.fault("members-subscribe-topics-name")
@pytest.mark.parametrize(("count", "error"), [(1_000, GroupError.UNKNOWN_MEMBER_ID), (1_000_001, INVALID)])
async def test_a_member_that_names_more_partitions_than_exist_is_refused(count: int, error: GroupError) -> None:
    node = await GroupNode().start()
    places = ({"topic_id": UUID(int=7), "partitions": (-1,) * count},)
    said = {"group_id": "g", "member_id": "m", "member_epoch": 1, "instance_id": None, "rack_id": None}
    wishes = {"subscribed_topic_names": None, "subscribed_topic_regex": None, "server_assignor": None}
    request = messages.build(
        messages.request_type(68, 1), **said, **wishes, rebalance_timeout=-1, topic_partitions=places
    )
    services = cast(NodeServices, SimpleNamespace(groups=node.groups, audit=NO_AUDIT))  # all that this handler reaches
    header = SimpleNamespace(api_version=1, client_id="c")
    connection = ConnectionInfo("127.0.0.1:40000", "advertised.example", 9092)
    context = RequestContext(services, cast(Any, header), connection)  # it reads no more of the header
    answer = await p68_consumer_group_heartbeat.handle(context, request)
    told = read_entity(messages.response_type(68, 1), answer.data)
    assert told.error_code == error
