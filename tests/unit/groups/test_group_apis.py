"""The group APIs in every version, with kafka-python at both ends: fields, null rules, where errors stand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratalog.kafka import messages
from stratalog.kafka.frames import decode_request_header
from stratalog.telemetry.audit_log import NO_AUDIT
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.connections.context import ConnectionInfo, NodeServices, RequestContext
from stratalog_node.serve.connections.registry import Registry
from support.control_bench import message
from support.group_node import GroupNode, committing, subscription
from support.kafka_oracle import decode_response, frame_of, request_class

REGISTRY = Registry(control_apis())
PROTOCOLS = [{"name": "range", "metadata": subscription("orders")}]


def versions(key: int) -> list[int]:
    api = REGISTRY.get(key)
    assert api is not None
    return list(range(api.min_version, api.max_version + 1))


async def ask(node: GroupNode, key: int, version: int, /, **fields: Any) -> Any:
    frame = memoryview(frame_of(message(request_class(key), version, fields)))[4:]
    header = decode_request_header(frame)
    request = messages.decode_request(key, version, frame, header.body_position)
    services = cast(NodeServices, SimpleNamespace(groups=node.groups, audit=NO_AUDIT))  # all that these handlers reach
    context = RequestContext(services, header, ConnectionInfo("127.0.0.1:40000", "advertised.example", 9092))
    api = REGISTRY.get(key)
    assert api is not None and api.handler is not None
    entity = await api.handler(context, request)
    return decode_response(key, version, messages.encode_response(key, version, header.correlation_id, entity))


async def join(node: GroupNode, version: int = 9, group_id: str = "g", member_id: str = "", **fields: Any) -> Any:
    defaults = {
        "group_id": group_id,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
        "reason": "because",
    }
    return await ask(node, 11, version, **(defaults | fields))


async def sync(node: GroupNode, member_id: str, version: int = 5, generation: int = 1) -> Any:
    return await ask(
        node,
        14,
        version,
        group_id="g",
        generation_id=generation,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member_id, "assignment": b"work"}],
    )


async def stable(node: GroupNode) -> str:
    """A stable group `g` of one member."""
    told = await join(node)
    member_id: str = (await join(node, member_id=told.member_id)).member_id
    await sync(node, member_id)
    return member_id


@pytest.fixture
async def node() -> GroupNode:
    return await GroupNode().start()


@pytest.mark.parametrize("version", versions(11))
async def test_joining_takes_one_step_before_version_4_and_two_from_there(node: GroupNode, version: int) -> None:
    joined = await join(node, version)
    if version >= 4:
        assert (joined.error_code, joined.generation_id, joined.members) == (79, -1, [])
        assert joined.protocol_name == (None if version >= 7 else "")
        joined = await join(node, version, member_id=joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == "oracle-1"
    assert [(one.member_id, one.metadata) for one in joined.members] == [("oracle-1", subscription("orders"))]
    if version >= 7:
        assert joined.protocol_type == "consumer"


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9])
async def test_static_members_join_at_once_and_come_back(node: GroupNode, version: int) -> None:
    joined = await join(node, version, group_instance_id="one")
    assert (joined.error_code, joined.members[0].group_instance_id) == (0, "one")
    await sync(node, joined.member_id)
    again = await join(node, version, group_instance_id="one")
    assert (again.error_code, again.generation_id) == (0, 1)
    assert again.leader == (again.member_id if version >= 9 else joined.member_id)
    if version >= 9:
        assert again.skip_assignment is True
    late = await ask(node, 12, 4, group_id="g", generation_id=1, member_id=joined.member_id, group_instance_id="one")
    assert late.error_code == 82


@pytest.mark.parametrize("version", versions(14))
async def test_members_get_their_assignment(node: GroupNode, version: int) -> None:
    told = await join(node)
    member_id = (await join(node, member_id=told.member_id)).member_id
    synced = await sync(node, member_id, version)
    assert (synced.error_code, synced.assignment) == (0, b"work")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert (await sync(node, member_id, version, generation=9)).error_code == 22
    assert (await sync(node, "stranger", version)).error_code == 25


@pytest.mark.parametrize("version", versions(12))
async def test_heartbeats(node: GroupNode, version: int) -> None:
    member_id = await stable(node)

    async def beat(member_id: str, generation: int) -> int:
        fields = {"group_id": "g", "generation_id": generation, "member_id": member_id, "group_instance_id": None}
        error: int = (await ask(node, 12, version, **fields)).error_code
        return error

    assert [await beat(member_id, 1), await beat(member_id, 2), await beat("x", 1)] == [0, 22, 25]


@pytest.mark.parametrize("version", versions(13))
async def test_leaving_is_one_member_up_to_2_and_a_batch_from_3(node: GroupNode, version: int) -> None:
    member_id = await stable(node)
    if version < 3:
        assert (await ask(node, 13, version, group_id="g", member_id="x")).error_code == 25
        assert (await ask(node, 13, version, group_id="g", member_id=member_id)).error_code == 0
    else:
        members = [{"member_id": one, "group_instance_id": None, "reason": "done"} for one in (member_id, "x")]
        left = await ask(node, 13, version, group_id="g", members=members)
        assert left.error_code == 0
        assert [(one.member_id, one.error_code) for one in left.members] == [(member_id, 0), ("x", 25)]
    assert (await node.groups.describe("g")).status.state == "Empty"


@pytest.mark.parametrize("version", versions(8))
async def test_commits_answer_each_partition(node: GroupNode, version: int) -> None:
    partitions = [
        {"partition_index": index, "committed_offset": 5, "committed_leader_epoch": 3, "committed_metadata": text}
        for index, text in ((0, "note"), (1, None), (9, ""))
    ]
    committed = await ask(
        node,
        8,
        version,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[{"name": "orders", "partitions": partitions}, {"name": "nowhere", "partitions": partitions[:1]}],
    )
    assert [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions]) for topic in committed.topics
    ] == [("orders", [(0, 0), (1, 0), (9, 3)]), ("nowhere", [(0, 3)])]
    fetched = await node.groups.fetch_offsets("g", None)
    assert [(found.committed.metadata, found.committed.epoch) for found in fetched.offsets if found.committed] == [
        ("note", 3 if version >= 6 else -1),
        ("", 3 if version >= 6 else -1),
    ]


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_old_clients_may_ask_for_a_retention(node: GroupNode, version: int) -> None:
    partitions = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    await ask(
        node,
        8,
        version,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=60_000,
        topics=[{"name": "orders", "partitions": partitions}],
    )
    fetched = await node.groups.fetch_offsets("g", None)
    assert fetched.offsets[0].committed is not None
    assert fetched.offsets[0].committed.expires_ms == node.wall_ms + 60_000


@pytest.mark.parametrize("version", versions(9))
async def test_what_was_committed_is_fetched(node: GroupNode, version: int) -> None:
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("clicks", 1, 6)))
    topics = [{"name": "orders", "partition_indexes": [0, 1]}]
    answer = await fetch(node, version, topics)
    (topic,) = answer.topics
    assert topic.name == "orders"
    assert [(one.partition_index, one.committed_offset, one.metadata, one.error_code) for one in topic.partitions] == [
        (0, 5, "at 5", 0),
        (1, -1, "", 0),
    ]
    if version >= 5:
        assert [one.committed_leader_epoch for one in topic.partitions] == [3, -1]


@pytest.mark.parametrize("version", versions(9)[1:])
async def test_null_topics_ask_for_everything(node: GroupNode, version: int) -> None:
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("orders", 2, 7), ("clicks", 1, 6)))
    answer = await fetch(node, version, None)
    found = {
        topic.name: [(one.partition_index, one.committed_offset) for one in topic.partitions] for topic in answer.topics
    }
    assert found == {"clicks": [(1, 6)], "orders": [(0, 5), (2, 7)]}


@pytest.mark.parametrize("version", versions(9))
async def test_an_error_of_the_group_stands_where_the_version_looks_for_it(node: GroupNode, version: int) -> None:
    node.shard_of("g").is_led = False
    node.groups.unload(node.shard_of("g").key.shard)
    answer = await fetch(node, version, [{"name": "orders", "partition_indexes": [0]}])
    if version == 1:
        assert [one.error_code for one in answer.topics[0].partitions] == [16]
    else:
        assert answer.error_code == 16


async def fetch(node: GroupNode, version: int, topics: Any) -> Any:
    """The answer, or from version 8 on that of its only group."""
    if version < 8:
        return await ask(node, 9, version, group_id="g", topics=topics, require_stable=True)
    groups = [{"group_id": "g", "topics": topics}, {"group_id": "other", "topics": topics}]
    answer = await ask(node, 9, version, groups=groups, require_stable=True)
    assert [one.group_id for one in answer.groups] == ["g", "other"]
    return answer.groups[0]


@pytest.mark.parametrize("version", versions(15))
async def test_groups_are_described(node: GroupNode, version: int) -> None:
    await stable(node)
    described = await ask(node, 15, version, groups=["g", "nobody"], include_authorized_operations=True)
    group, nobody = described.groups
    assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("oracle", "/127.0.0.1", b"work")
    assert member.member_metadata == subscription("orders")
    assert (nobody.error_code, nobody.group_state, nobody.members) == (0, "Dead", [])


@pytest.mark.parametrize("version", versions(16))
async def test_groups_are_listed(node: GroupNode, version: int) -> None:
    await stable(node)
    await node.groups.commit_offsets(committing("alone", ("orders", 0, 5)))
    listed = await ask(node, 16, version, states_filter=["STABLE"])
    names = sorted(group.group_id for group in listed.groups)
    assert (listed.error_code, names) == (0, ["g"] if version >= 4 else ["alone", "g"])


@pytest.mark.parametrize("version", versions(42))
async def test_groups_are_deleted(node: GroupNode, version: int) -> None:
    await stable(node)
    await node.groups.commit_offsets(committing("alone", ("orders", 0, 5)))
    deleted = await ask(node, 42, version, groups_names=["alone", "g", "nobody"])
    assert [(one.group_id, one.error_code) for one in deleted.results] == [("alone", 0), ("g", 68), ("nobody", 69)]


async def test_offsets_are_deleted(node: GroupNode) -> None:
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("clicks", 0, 5)))
    await stable(node)
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("orders", "clicks")]
    deleted = await ask(node, 47, 0, group_id="g", topics=topics)
    assert deleted.error_code == 0
    assert [(topic.name, topic.partitions[0].error_code) for topic in deleted.topics] == [("orders", 86), ("clicks", 0)]
    assert (await ask(node, 47, 0, group_id="nobody", topics=topics)).error_code == 69
