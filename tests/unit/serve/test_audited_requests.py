"""What Kafka clients change is in the audit log, with the client's name, its address and how it ended."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratalog.kafka import messages
from stratalog.kafka.frames import decode_request_header
from stratalog.machines.audit.lines import Asker
from stratalog.machines.rights.authorizer import Authorizer
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.groups.group import GroupError
from stratalog.model.rights import Operation, Principal, ResourceType
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.api.audited import CHANGES, IN_HANDLER, NOT_CHANGES, ClientAudit
from stratalog_node.serve.connections.client_rights import RightsOfClients
from stratalog_node.serve.connections.context import ConnectionInfo, RequestContext
from stratalog_node.serve.server import data_apis
from support.audit_lines import KeptAudit
from support.control_bench import ControlBench, control_bench, message
from support.kafka_oracle import frame_of, request_class
from support.serve_rig import ServeRig
from support.waiting import eventually
from unit.serve.test_rights_apis import creation, wanted

ALICE = ConnectionInfo("10.0.0.7:555", "node", 9092, "clients", Principal("User", "alice"))


async def audited(
    bench: ControlBench, key: int, version: int, /, *, is_answered: bool = True, **fields: Any
) -> list[dict[str, Any]]:
    """The lines of one request of Alice."""
    audit = KeptAudit()
    frame = memoryview(frame_of(message(request_class(key), version, fields)))[4:]
    header = decode_request_header(frame)
    body = messages.body_of(key, frame, header.body_position)
    api = bench.registry.get(key)
    assert api is not None and api.handler is not None
    services = replace(bench.services, audit=audit)
    answer = await api.handler(RequestContext(services, header, ALICE), messages.decode_body(key, version, body))
    noted = ClientAudit(audit)
    if noted.describes(key):
        noted.note(ALICE, header, body, answer if is_answered else None)
    lines = audit.written()
    assert audit.stats.lost == 0, "a description failed"
    assert all((line["principal"], line["address"]) == ("User:alice", "10.0.0.7") for line in lines)
    return lines


def told(lines: list[dict[str, Any]]) -> list[tuple[str, str, str, str, str | None]]:
    return [(line["action"], line["resource_type"], line["resource"], line["outcome"], line["error"]) for line in lines]


def topic(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} | more


def test_each_api_says_what_it_changes_or_that_it_changes_nothing() -> None:
    served = {api.key for api in (*control_apis(), *data_apis())}
    assert served <= CHANGES.keys() | NOT_CHANGES | IN_HANDLER, "add the API to serve/api/audited.py"
    assert not CHANGES.keys() & NOT_CHANGES and not IN_HANDLER & (CHANGES.keys() | NOT_CHANGES)


@pytest.mark.parametrize("version", [2, 5, 7])
async def test_topics_that_are_created_and_refused_have_a_line_each(version: int) -> None:
    async with control_bench() as bench:
        await bench.topic("there")
        setting = {"name": "retention.ms", "value": "1000"}
        asked = [topic("orders", num_partitions=3, configs=[setting]), topic("there")]
        lines = await audited(bench, 19, version, topics=asked, timeout_ms=1000, validate_only=False)
        assert told(lines) == [
            ("CreateTopics", "TOPIC", "orders", "done", None),
            ("CreateTopics", "TOPIC", "there", "failed", "TOPIC_ALREADY_EXISTS"),
        ]
        assert lines[0]["details"] == {
            "shards": 3,
            "replication_factor": 1,
            "settings": {"retention.ms": "1000"},
        }
        tried = await audited(bench, 19, version, topics=[topic("x")], timeout_ms=1000, validate_only=True)
        assert tried == [], "a trial changes nothing"


@pytest.mark.parametrize("version", [1, 6])
async def test_topics_that_are_deleted_are_named_also_when_they_were_asked_for_by_id(version: int) -> None:
    async with control_bench() as bench:
        made = await bench.topic("orders")
        if version == 1:
            lines = await audited(bench, 20, 1, topic_names=["orders", "nope"], timeout_ms=1000)
        else:
            asked = [{"name": None, "topic_id": made.topic_id}, {"name": "nope", "topic_id": None}]
            lines = await audited(bench, 20, 6, topics=asked, timeout_ms=1000)
            assert lines[0]["details"] == {"topic_id": str(made.topic_id)}
        assert told(lines) == [
            ("DeleteTopics", "TOPIC", "orders", "done", None),
            ("DeleteTopics", "TOPIC", "nope", "failed", "UNKNOWN_TOPIC_OR_PARTITION"),
        ]


async def test_settings_partitions_and_records_that_are_changed_have_lines() -> None:
    async with control_bench() as bench:
        made = await bench.topic("orders")
        bench.shard(made).times = [1, 2, 3]
        config = {"name": "retention.ms", "value": "5000", "config_operation": 0}
        resource = {"resource_type": 2, "resource_name": "orders", "configs": [config]}
        lines = await audited(bench, 44, 1, resources=[resource], validate_only=False)
        assert told(lines) == [("IncrementalAlterConfigs", "TOPIC", "orders", "done", None)]
        assert lines[0]["details"] == {"settings": {"retention.ms": "5000"}}
        config.pop("config_operation")
        lines = await audited(bench, 33, 1, resources=[resource], validate_only=False)
        assert told(lines) == [("AlterConfigs", "TOPIC", "orders", "done", None)]
        grown = [{"name": "orders", "count": 2, "assignments": None}, {"name": "orders2", "count": 2}]
        lines = await audited(bench, 37, 1, topics=grown, timeout_ms=1000, validate_only=False)
        assert told(lines) == [
            ("CreatePartitions", "TOPIC", "orders", "done", None),
            ("CreatePartitions", "TOPIC", "orders2", "failed", "UNKNOWN_TOPIC_OR_PARTITION"),
        ]
        partitions = [{"partition_index": 0, "offset": 2}, {"partition_index": 9, "offset": 1}]
        lines = await audited(bench, 21, 1, topics=[{"name": "orders", "partitions": partitions}], timeout_ms=1000)
        assert [line["outcome"] for line in lines] == ["done", "failed"]
        assert lines[0]["details"] == {"shard": 0, "before_offset": 2, "log_start_offset": 2}


@pytest.mark.parametrize(
    "name, of_type",
    [("ssl.keystore.password", 2), ("retention.ms", 2), ("listener.name.x.sasl.jaas.config", 4), ("x", 99)],
)
async def test_a_password_in_the_wrong_place_is_in_no_line(name: str, of_type: int) -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        config = {"name": name, "value": "hunter2-is-secret", "config_operation": 0}
        resource = {"resource_type": of_type, "resource_name": "orders", "configs": [config]}
        for key, version in ((44, 1), (33, 1)):
            if key == 33:
                config.pop("config_operation")
            lines = await audited(bench, key, version, resources=[resource], validate_only=False)
            assert len(lines) == 1 and lines[0]["outcome"] == "failed"
            assert lines[0]["details"] == {"settings": {name: None}}
            assert "hunter2" not in repr(lines)
        asked = [topic("new", configs=[{"name": name, "value": "hunter2-is-secret"}])]
        lines = await audited(bench, 19, 5, topics=asked, timeout_ms=1000, validate_only=False)
        assert lines[0]["outcome"] == "failed" and "hunter2" not in repr(lines)


async def test_rules_that_are_created_and_deleted_have_a_line_each() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        lines = await audited(bench, 30, 3, creations=[creation(), creation("")])
        assert told(lines) == [
            ("CreateAcls", "TOPIC", "orders", "done", None),
            ("CreateAcls", "TOPIC", "", "failed", "INVALID_REQUEST"),
        ]
        assert lines[0]["details"] == {
            "pattern": "LITERAL",
            "principal": "User:alice",
            "host": "*",
            "operation": "READ",
            "permission": "ALLOW",
        }
        await audited(bench, 30, 3, creations=[creation("more")])
        lines = await audited(bench, 31, 3, filters=[wanted(), wanted(host_filter="nobody")])
        assert sorted(told(lines)) == [
            ("DeleteAcls", "TOPIC", "more", "done", None),
            ("DeleteAcls", "TOPIC", "orders", "done", None),
        ], "a filter that found nothing changed nothing"
        refused = await audited(bench, 31, 3, filters=[wanted(operation=77)])
        assert told(refused) == [("DeleteAcls", "ANY", "", "failed", "INVALID_REQUEST")]


async def test_users_that_are_set_and_deleted_have_a_line_each_without_their_keys() -> None:
    async with control_bench() as bench:
        put = {
            "name": "bob",
            "mechanism": 2,
            "iterations": 4096,
            "salt": b"the-salt-of-bob",
            "salted_password": b"the-salted-password-of-bob" + b"-" * 38,
        }
        lines = await audited(bench, 51, 0, deletions=[{"name": "eve", "mechanism": 1}], upsertions=[put])
        assert told(lines) == [
            ("DeleteUserScramCredentials", "USER", "eve", "failed", "RESOURCE_NOT_FOUND"),
            ("SetUserScramCredentials", "USER", "bob", "done", None),
        ]
        assert lines[1]["details"] == {"mechanism": "SCRAM-SHA-512"}
        text = repr(lines)
        assert "the-salt" not in text and "dGhlLXNhbH" not in text and b"the-salt".hex() not in text


class Groups:
    """Answers of a coordinator."""

    async def delete_groups(self, names: list[str]) -> dict[str, int]:
        return {name: GroupError.NONE if name == "g" else GroupError.GROUP_ID_NOT_FOUND for name in names}

    async def delete_offsets(self, _: str, places: list[Any]) -> Any:
        errors = [GroupError.NONE if place.shard == 0 else GroupError.GROUP_SUBSCRIBED_TO_TOPIC for place in places]
        return SimpleNamespace(error=GroupError.NONE, errors=errors)

    async def commit_offsets(self, commit: Any) -> list[GroupError]:
        return [GroupError.NONE if one.shard == 0 else GroupError.UNKNOWN_TOPIC_OR_PARTITION for one in commit.offsets]


async def test_a_quota_that_is_altered_has_its_own_outcome_whatever_else_is_named() -> None:
    def quota(user: str) -> dict[str, Any]:
        ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]
        return {"entity": [{"entity_type": "user", "entity_name": user}], "ops": ops}

    async with control_bench() as bench:
        entries = [quota("twice"), quota("twice"), quota("bob")]
        lines = await audited(bench, 49, 1, entries=entries, validate_only=False)
        assert [(line["resource"], line["outcome"]) for line in lines if "count" not in line] == [
            ("user=twice", "failed"),
            ("user=bob", "done"),
        ]


async def test_two_entities_of_quotas_never_have_the_same_text() -> None:
    def quota(*parts: tuple[str, str | None]) -> dict[str, Any]:
        ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]
        return {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts], "ops": ops}

    entities: list[tuple[tuple[str, str | None], ...]] = [
        (("user", None),),
        (("user", "<default>"),),
        (("user", "a"), ("client-id", "b")),
        (("user", "a, client-id=b"),),
        (("user", '"a"'),),
        (("user", "a"),),
        (("user", "x" * 300), ("client-id", "b")),
        (("user", "x" * 300), ("client-id", "c")),
    ]
    async with control_bench() as bench:
        entries = [quota(*parts) for parts in entities]
        lines = await audited(bench, 49, 1, entries=entries, validate_only=False)
        assert [line["outcome"] for line in lines] == ["done"] * len(entities)
        named = [line["resource"] for line in lines]
        assert len(set(named)) == len(entities), named
        assert named[:4] == ["user=<default>", 'user="<default>"', "user=a, client-id=b", 'user="a, client-id=b"']


async def test_records_that_are_deleted_by_a_request_which_names_a_shard_twice_have_one_line_with_what_was_done() -> (
    None
):
    async with control_bench() as bench:
        made = await bench.topic("orders")
        bench.shard(made).times = [1, 2, 3]
        asked = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": offset}]} for offset in (99, 2)]
        lines = await audited(bench, 21, 2, topics=asked, timeout_ms=1000)
        assert [line["outcome"] for line in lines] == ["done"]
        assert lines[0]["details"] == {"shard": 0, "before_offset": 2, "log_start_offset": 2}


async def test_what_a_request_names_twice_and_what_is_done_once_has_one_line() -> None:
    async with control_bench() as bench:
        bench.services = replace(bench.services, groups=cast(Any, Groups()))
        lines = await audited(bench, 42, 1, groups_names=["g", "g"])
        assert told(lines) == [("DeleteGroups", "GROUP", "g", "done", None)]
        partitions = [{"partition_index": 0}, {"partition_index": 0}]
        lines = await audited(bench, 47, 0, group_id="g", topics=[{"name": "orders", "partitions": partitions}])
        assert told(lines) == [("OffsetDelete", "GROUP", "g", "done", None)]
        lines = await audited(bench, 20, 1, is_answered=False, topic_names=["orders", "orders"], timeout_ms=1000)
        assert told(lines) == [("DeleteTopics", "TOPIC", "orders", "unknown", None)]
        assert await audited(bench, 20, 1, is_answered=False, topic_names=[], timeout_ms=1000) == []


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_client_without_any_right_cannot_fill_the_log(is_answered: bool) -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        resources = [{"resource_type": 99, "resource_name": f"n{number}", "configs": []} for number in range(2_000)]
        lines = await audited(bench, 44, 1, is_answered=is_answered, resources=resources, validate_only=False)
        assert len(lines) == 251
        assert (lines[-1]["action"], lines[-1]["resource"], lines[-1]["count"]) == (
            "IncrementalAlterConfigs",
            "*",
            1_750,
        )


async def test_groups_and_offsets_that_are_deleted_have_lines() -> None:
    async with control_bench() as bench:
        bench.services = replace(bench.services, groups=cast(Any, Groups()))
        lines = await audited(bench, 42, 1, groups_names=["g", "nope"])
        assert told(lines) == [
            ("DeleteGroups", "GROUP", "g", "done", None),
            ("DeleteGroups", "GROUP", "nope", "failed", "GROUP_ID_NOT_FOUND"),
        ]
        partitions = [{"partition_index": 0}, {"partition_index": 1}]
        lines = await audited(bench, 47, 0, group_id="g", topics=[{"name": "orders", "partitions": partitions}])
        assert told(lines) == [
            ("OffsetDelete", "GROUP", "g", "done", None),
            ("OffsetDelete", "GROUP", "g", "failed", "GROUP_SUBSCRIBED_TO_TOPIC"),
        ]
        assert [line["details"] for line in lines] == [{"topic": "orders", "shard": shard} for shard in (0, 1)]


def commit(member: str = "", generation: int = -1) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "committed_offset": 40 + index, "committed_metadata": "secret?"} for index in (0, 1)
    ]
    return {
        "group_id": "g",
        "member_id": member,
        "generation_id_or_member_epoch": generation,
        "topics": [{"name": "orders", "partitions": partitions}],
    }


async def test_offsets_that_are_reset_have_a_line_and_those_that_a_member_commits_have_none() -> None:
    async with control_bench() as bench:
        bench.services = replace(bench.services, groups=cast(Any, Groups()))
        (line,) = await audited(bench, 8, 7, **commit())
        assert told([line]) == [("OffsetCommit", "GROUP", "g", "done", "UNKNOWN_TOPIC_OR_PARTITION")]
        assert line["details"] == {"offsets": {"orders-0": 40}, "count": 1}
        assert "secret?" not in repr(line)
        assert await audited(bench, 8, 7, **commit("member-1", 3)) == []


async def test_a_request_whose_answer_never_came_is_described_by_what_it_asked_for() -> None:
    async with control_bench(authorizer_class_name="stratalog") as bench:
        await bench.topic("orders")
        config = {"name": "retention.ms", "value": "5000", "config_operation": 0}
        for key, version, fields in (
            (19, 5, {"topics": [topic("a")], "timeout_ms": 1, "validate_only": False}),
            (20, 1, {"topic_names": ["a"], "timeout_ms": 1}),
            (20, 6, {"topics": [{"name": "a", "topic_id": None}], "timeout_ms": 1}),
            (21, 1, {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "offset": 2}]}], "timeout_ms": 1}),
            (30, 3, {"creations": [creation("a")]}),
            (31, 3, {"filters": [wanted(resource_name_filter="a")]}),
            (
                44,
                1,
                {
                    "resources": [{"resource_type": 2, "resource_name": "a", "configs": [config]}],
                    "validate_only": False,
                },
            ),
            (37, 1, {"topics": [{"name": "a", "count": 2}], "timeout_ms": 1, "validate_only": False}),
            (51, 0, {"deletions": [{"name": "a", "mechanism": 1}], "upsertions": []}),
        ):
            (line,) = await audited(bench, key, version, is_answered=False, **fields)
            assert (line["resource"], line["outcome"], line["error"]) == ("a", "unknown", None), line


# Over a connection --------------------------------------------------------------------------------------------------
class AuditRig(ServeRig):
    audit: KeptAudit

    async def start(self) -> None:
        await super().start()
        self.audit = KeptAudit()
        self.server._control.audit = ClientAudit(self.audit)


async def test_a_request_on_a_connection_is_noted_with_the_connections_principal(tmp_path: Any) -> None:
    async with AuditRig(tmp_path) as rig:
        client = rig.connect(info=ALICE)
        asked = [message(request_class(19), 5, {"topics": [topic("orders")], "timeout_ms": 1000}).topics[0]]
        await client.write(client.frame(19, 5, topics=asked, timeout_ms=1000, validate_only=False))
        await client.read_frame()
        await client.write(client.frame(3, 5, topics=None))
        await client.read_frame()
        (line,) = rig.audit.written()
        assert (line["principal"], line["address"], line["resource"]) == ("User:alice", "10.0.0.7", "orders")


async def test_a_client_that_leaves_before_its_answer_leaves_a_line_all_the_same(tmp_path: Any) -> None:
    async with AuditRig(tmp_path) as rig:
        client = rig.connect(info=ALICE)
        rig.meta.hold(CreateTopic)
        asked = [message(request_class(19), 5, {"topics": [topic("orders")], "timeout_ms": 1000}).topics[0]]
        await client.write(client.frame(19, 5, topics=asked, timeout_ms=1000, validate_only=False))
        await eventually(lambda: rig.meta.calls[CreateTopic])
        client.connection.close("its client has gone")
        await eventually(lambda: rig.audit.sink.texts)
        rig.meta.release(CreateTopic)
        (line,) = rig.audit.written()
        assert (line["resource"], line["outcome"]) == ("orders", "unknown")


# Denials ------------------------------------------------------------------------------------------------------------
def test_what_a_client_is_denied_is_counted_by_kind() -> None:
    audit = KeptAudit()
    rights = RightsOfClients(Authorizer(), audit).of(Principal("User", "bob"), "10.0.0.9:555")
    for _ in range(1_000):
        assert not rights.may(Operation.READ, ResourceType.TOPIC, "orders")
    assert not rights.may_topic(Operation.WRITE, "orders")
    assert not rights.may_cluster(Operation.ALTER)
    assert not rights.may_some(Operation.WRITE, ResourceType.TOPIC)
    assert not rights.can(Operation.READ, ResourceType.TOPIC, "hidden"), "what is only not shown is no denial"
    lines = audit.written()
    assert [(line["action"], line["resource_type"], line["resource"], line.get("count", 1)) for line in lines] == [
        ("READ", "TOPIC", "orders", 1),
        ("WRITE", "TOPIC", "orders", 1),
        ("ALTER", "CLUSTER", "kafka-cluster", 1),
        ("WRITE", "TOPIC", "*", 1),
        ("READ", "TOPIC", "orders", 999),
    ]
    assert {(line["principal"], line["address"], line["outcome"]) for line in lines} == {
        ("User:bob", "10.0.0.9", "denied")
    }


def test_the_address_of_a_connection_has_no_port() -> None:
    assert ALICE.asker == Asker("User:alice", "10.0.0.7")
    assert ConnectionInfo("fe80::1:555", "node", 1).asker.address == "fe80::1"
