"""The Java client: Kafka's own console, performance and admin tools against a node."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramMechanism

from support.client_programs import Login, java_settings
from support.closed_node import PASSWORD, ClosedNode
from support.foreign_clients import CLIENTS, Message
from support.java_client import JavaTools
from support.node_process import NodeProcess
from support.topics import create_topic, produce, read, values_of

# The first run may fetch the jars.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def java(repository: Path) -> JavaTools:
    return JavaTools.find(repository)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_console_tools_write_and_read(codec: str, java: JavaTools, node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    lines = [f"line {number} {'of text ' * 10}" for number in range(200)]
    at = ("--bootstrap-server", node.bootstrap, "--topic", topic)
    java.run("ConsoleProducer", *at, "--compression-codec", codec, standard_input="\n".join(lines) + "\n")
    assert values_of(read(node.bootstrap, topic, 200)) == [line.encode() for line in lines]

    printed = java.run("consumer.ConsoleConsumer", *at, "--from-beginning", "--max-messages", "200", "--group", topic)
    assert [line for line in printed.splitlines() if line.startswith("line ")] == lines


def test_the_java_consumer_speaks_the_consumer_protocol(java: JavaTools, node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, 3)
    expected = [f"line {number}" for number in range(90)]
    for shard in range(3):
        produce(node.bootstrap, topic, [line.encode() for line in expected[shard::3]], partition=shard)
    at = ("--bootstrap-server", node.bootstrap)
    speaking = ("--command-property", "group.protocol=consumer", "--command-property", "auto.offset.reset=earliest")
    printed = java.run(
        "consumer.ConsoleConsumer", *at, *speaking, "--include", f"{topic}.*", "--max-messages", "90", "--group", topic
    )
    assert sorted(line for line in printed.splitlines() if line.startswith("line ")) == sorted(expected)
    described = java.run("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", topic)
    lines = [line.split() for line in described.splitlines() if line.split()[1:2] == [topic]]
    assert [line[3:6] for line in lines] == [["30", "30", "0"]] * 3, "committed, end, lag"
    listed = java.run("consumer.group.ConsumerGroupCommand", *at, "--list", "--type", "consumer")
    assert topic in listed.split()


def test_the_java_consumer_reads_what_the_others_compressed(java: JavaTools, node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    expected = []
    for client in CLIENTS:
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            if client.missing(codec) is None:
                message = Message(client.name.encode(), f"{codec} by {client.name} {'again ' * 30}".strip().encode())
                client.produce(node.bootstrap, topic, [message] * 3, codec)
                expected += [message.value.decode()] * 3
    at = ("--bootstrap-server", node.bootstrap, "--topic", topic)
    printed = java.run("consumer.ConsoleConsumer", *at, "--from-beginning", "--max-messages", str(len(expected)))
    assert [line for line in printed.splitlines() if " by " in line] == expected


def test_the_performance_tools_run_through(java: JavaTools, node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, 4)
    count = 100_000
    report = java.run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", "200", "--throughput", "-1"),
        *("--bootstrap-server", node.bootstrap, "--command-property", "acks=all"),
    )
    assert re.search(rf"^{count} records sent", report, re.MULTILINE), report
    assert "Exception" not in report
    report = java.run(
        "ConsumerPerformance", "--bootstrap-server", node.bootstrap, "--topic", topic, "--num-records", str(count)
    )
    *_, last = [line for line in report.splitlines() if line[:2].isdigit()]
    assert int(last.split(",")[4]) >= count, report


@pytest.mark.slow  # nine JVM starts
def test_the_admin_tools_manage_topics_settings_groups_and_offsets(
    java: JavaTools, node: NodeProcess, topic: str
) -> None:
    at = ("--bootstrap-server", node.bootstrap)
    java.run("TopicCommand", *at, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=900000")
    described = java.run("TopicCommand", *at, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described and "retention.ms=900000" in described
    produce(node.bootstrap, topic, [b"x"] * 50, partition=1)
    assert f"{topic}:1:50" in java.run("GetOffsetShell", *at, "--topic", topic)

    entity = ("--entity-type", "topics", "--entity-name", topic)
    java.run("kafka.admin.ConfigCommand", *at, *entity, "--alter", "--add-config", "segment.bytes=65536")
    assert "segment.bytes=65536" in java.run("kafka.admin.ConfigCommand", *at, *entity, "--describe")

    group = f"{topic}-group"
    reset = ("--group", group, "--topic", topic, "--reset-offsets", "--to-offset", "20", "--execute")
    java.run("consumer.group.ConsumerGroupCommand", *at, *reset)
    described = java.run("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", group)
    (line,) = [line.split() for line in described.splitlines() if line.split()[1:3] == [topic, "1"]]
    assert line[3:6] == ["20", "50", "30"], "committed, end, lag"

    java.run("TopicCommand", *at, "--delete", "--topic", topic)
    assert topic not in java.run("TopicCommand", *at, "--list").split()


def test_the_tools_of_acls_and_users_manage_them(java: JavaTools, start_node: Callable[..., NodeProcess]) -> None:
    standard = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    node = start_node(settings={"authorizer.class.name": standard, "super.users": "User:ANONYMOUS"})
    acls = ("AclCommand", "--bootstrap-server", node.bootstrap)
    prefixed = ("--topic", "team-", "--resource-pattern-type", "prefixed")
    java.run(*acls, "--add", "--allow-principal", "User:alice", "--producer", *prefixed)
    java.run(*acls, "--add", "--deny-principal", "User:bob", "--operation", "All", "--group", "*")
    found = java.run(*acls, "--list", "--topic", "team-orders", "--resource-pattern-type", "match")
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        assert f"(principal=User:alice, host=*, operation={operation}, permissionType=ALLOW)" in found
    java.run(*acls, "--remove", "--force", *prefixed)
    left = java.run(*acls, "--list")
    assert "(principal=User:bob, host=*, operation=ALL, permissionType=DENY)" in left and "alice" not in left

    users = ("kafka.admin.ConfigCommand", "--bootstrap-server", node.bootstrap, "--entity-type", "users")
    alice = ("--entity-name", "alice", "--alter")
    java.run(*users, *alice, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=alice-secret]")
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    (info,) = admin.describe_user_scram_credentials(["alice"])["alice"].result(30).scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_512, 8_192)
    java.run(*users, *alice, "--delete-config", "SCRAM-SHA-512")
    assert admin.describe_user_scram_credentials().result(30) == {}


def test_the_tool_of_settings_sets_shows_and_removes_quotas(
    java: JavaTools, start_node: Callable[..., NodeProcess]
) -> None:
    node = start_node()
    configs = ("kafka.admin.ConfigCommand", "--bootstrap-server", node.bootstrap)
    alice = ("--entity-type", "users", "--entity-name", "alice")
    of_each_client = (*alice, "--entity-type", "clients", "--entity-default")
    everywhere = ("--entity-type", "ips", "--entity-default")
    java.run(*configs, *alice, "--alter", "--add-config", "producer_byte_rate=1048576,request_percentage=12.5")
    java.run(*configs, *of_each_client, "--alter", "--add-config", "consumer_byte_rate=2048")
    java.run(*configs, *everywhere, "--alter", "--add-config", "connection_creation_rate=20")
    shown = java.run(*configs, *alice, "--describe")
    assert "user-principal 'alice' are" in shown
    assert "producer_byte_rate=1048576.0" in shown and "request_percentage=12.5" in shown
    shown = java.run(*configs, *of_each_client, "--describe")
    assert "the default client-id are consumer_byte_rate=2048.0" in shown
    assert "the default ip are connection_creation_rate=20.0" in java.run(*configs, *everywhere, "--describe")
    java.run(*configs, *alice, "--alter", "--delete-config", "producer_byte_rate,request_percentage")
    assert "byte_rate" not in java.run(*configs, *alice, "--describe")


@pytest.mark.slow  # eight JVM starts
def test_the_tools_log_in_by_a_file_with_settings(java: JavaTools, tmp_path: Path) -> None:
    guarded = {"authorizer.class.name": "stratalog", "super.users": "User:ANONYMOUS;User:admin"}
    with ClosedNode(tmp_path, guarded) as node:
        node.set_user("admin", "SCRAM-SHA-512")
        at = ("--bootstrap-server", node.closed)
        settings = {}
        for user, password in (("admin", PASSWORD), ("carol", "carol-secret")):
            settings[user] = tmp_path / f"{user}.properties"
            login = java_settings(Login("", node.ca, "SCRAM-SHA-512", user, password), tmp_path)
            del login["bootstrap.servers"]
            settings[user].write_text("".join(f"{name}={value}\n" for name, value in login.items()))
        as_admin = ("--command-config", str(settings["admin"]))
        users = ("kafka.admin.ConfigCommand", *at, *as_admin, "--entity-type", "users", "--entity-name", "carol")
        java.run(*users, "--alter", "--add-config", "SCRAM-SHA-512=[password=carol-secret]")
        java.run(*users, "--alter", "--add-config", "producer_byte_rate=1048576")
        assert "producer_byte_rate=1048576.0" in java.run(*users, "--describe")
        java.run("TopicCommand", *at, *as_admin, "--create", "--topic", "orders")
        acls = ("AclCommand", *at, *as_admin, "--add", "--allow-principal", "User:carol", "--topic", "orders")
        java.run(*acls, "--producer")
        java.run(*acls, "--consumer", "--group", "team")
        as_carol = ("--command-config", str(settings["carol"]))
        topic = (*at, "--topic", "orders", *as_carol)
        java.run("ConsoleProducer", *topic, standard_input="one\ntwo\n")
        group = ("--from-beginning", "--group", "team", "--max-messages", "2")
        printed = java.run("consumer.ConsoleConsumer", *topic, *group).splitlines()
        assert [line for line in printed if line in ("one", "two")] == ["one", "two"]
