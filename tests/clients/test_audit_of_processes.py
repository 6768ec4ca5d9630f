"""The audit log of real processes: in a directory, on standard error, and over a kill."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess
from support.waiting import eventually_sync


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def actions(path: Path) -> list[tuple[str, str, str]]:
    return [(line["action"], line["resource"], line["outcome"]) for line in lines_of(path)]


def test_changes_of_clients_and_by_http_are_in_the_files_of_the_directory_also_after_a_kill(tmp_path: Path) -> None:
    settings = {"audit.log.dir": str(tmp_path / "audit"), "offsets.topic.num.partitions": 1}
    file = tmp_path / "audit" / "audit-node-1.log"
    with NodeProcess(tmp_path / "data", settings=settings) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(10)
        body = json.dumps({"name": "flights"}).encode()
        request = urllib.request.Request(f"http://{node.admin}/v1/topics", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).read()
        reset = ConsumerGroupTopicPartitions("readers", [TopicPartition("orders", 1, 0)])
        admin.alter_consumer_group_offsets([reset])["readers"].result(20)
        eventually_sync(lambda: len(lines_of(file)) >= 3)
        node.kill()
        node.start()
        after = AdminClient({"bootstrap.servers": node.bootstrap})
        after.delete_topics(["orders"])["orders"].result(10)
        eventually_sync(lambda: len(lines_of(file)) >= 4)
    assert actions(file) == [
        ("CreateTopics", "orders", "done"),
        ("CreateTopic", "flights", "done"),
        ("OffsetCommit", "readers", "done"),
        ("DeleteTopics", "orders", "done"),
    ]
    first = lines_of(file)[0]
    assert (first["part"], first["principal"], first["address"]) == ("node 1", "User:ANONYMOUS", "127.0.0.1")
    assert first["cluster"] == json.loads((tmp_path / "data" / "node" / "node.json").read_text())["cluster_id"]
    assert lines_of(file)[2]["details"] == {"offsets": {"orders-1": 0}, "count": 1}
    assert '"audit"' not in node.log_path.read_text()


def test_without_a_directory_lines_are_on_standard_error_and_none_where_the_log_is_off(tmp_path: Path) -> None:
    for is_on in (True, False):
        settings = {"audit.log.enable": str(is_on).lower()}
        with NodeProcess(tmp_path / f"data-{is_on}", settings=settings) as node:
            admin = AdminClient({"bootstrap.servers": node.bootstrap})
            admin.create_topics([NewTopic("orders", 1)])["orders"].result(10)
        said = [line for line in node.log_path.read_text().splitlines() if '"event":"audit"' in line]
        assert [json.loads(line)["resource"] for line in said] == (["orders"] if is_on else [])


@pytest.mark.fault("audit-log-cannot-written")
def test_a_node_serves_its_clients_while_the_audit_log_has_no_room(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit-node-1.log").symlink_to("/dev/full")
    with NodeProcess(tmp_path / "data", settings={"audit.log.dir": str(tmp_path / "audit")}) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for number in range(5):
            admin.create_topics([NewTopic(f"t{number}", 1)])[f"t{number}"].result(10)
        eventually_sync(lambda: "stratalog_audit_is_failing 1" in node.get("/metrics"))
        (tmp_path / "audit" / "audit-node-1.log").unlink()
        eventually_sync(lambda: "stratalog_audit_is_failing 0" in node.get("/metrics"))
        eventually_sync(lambda: len(actions(tmp_path / "audit" / "audit-node-1.log")) == 5)
    assert "the audit log cannot be written" in node.log_path.read_text()
