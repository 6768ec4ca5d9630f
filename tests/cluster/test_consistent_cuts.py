"""A cut through a cluster that is written to: a record, and all that was acknowledged before it; a new cluster is built
from it, with the bucket alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.admin_api.client import AdminClient as NodeClient
from stratalog.admin_api.cuts import CutRequest, HoldRequest
from stratalog.formats.bucket.cut import decode_cut
from stratalog.model.errors import Conflict, NotFound
from support.causal_chains import out_of_order, running
from support.files import files_below
from support.node_process import NodeProcess
from support.waiting import eventually_sync

STRATALOG = str(Path(sys.executable).with_name("stratalog"))
SHARDS = 4
SETTINGS = {"remote.upload.interval.ms": 50, "meta.snapshot.interval.ms": 100, "offsets.topic.num.partitions": 1}
RETENTION = {"log.retention.check.interval.ms": 100, "remote.delete.delay.ms": 0}


def stratalog(*arguments: str, code: int = 0) -> Any:
    done = subprocess.run([STRATALOG, *arguments, "--output", "json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("cuts")
    with NodeProcess(folder / "data", bucket=str(folder / "bucket"), settings=SETTINGS | RETENTION) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("orders", SHARDS)])["orders"].result(10)
        yield node


@pytest.mark.fault("snapshot-taken-clients-write")
def test_what_was_acknowledged_before_a_record_of_the_cut_is_in_the_cut(node: NodeProcess) -> None:
    with running(node.bootstrap, "orders", SHARDS, (1, SHARDS - 1, 1)) as chains:
        cuts = []
        for number in range(3):
            eventually_sync(lambda: min(len(chain.links) for chain in chains) > 50 * (len(cuts) + 1), timeout=30)
            cuts.append(stratalog("snapshot", "create", f"cut-{number}", *_of(node)))
    for cut in cuts:
        ends = {shard["shard"]: shard["offset"] for shard in cut["shards"] if shard["topic"] == "orders"}
        assert sum(ends.values()) > 0
        assert out_of_order(chains, ends) == []
    listed = stratalog("snapshot", "list", "--bucket", str(node.bucket))
    assert [cut["name"] for cut in listed] == ["cut-0", "cut-1", "cut-2"]
    assert stratalog("snapshot", "show", "cut-1", "--bucket", str(node.bucket)) == cuts[1]
    refused = stratalog("snapshot", "create", "cut-1", *_of(node), code=2)
    assert "there is a snapshot 'cut-1' already" in refused


@pytest.mark.fault("topic-deleted-snapshot-exists")
def test_a_snapshot_outlives_the_deletion_of_its_topic_and_becomes_a_new_cluster(
    node: NodeProcess, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("bills", 2, config={"retention.ms": "-1"})])["bills"].result(10)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(100):
        producer.produce("bills", b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0
    cut = stratalog("snapshot", "create", "month-end", "--topics", "bills", *_of(node))
    topic_id = _topic_id(node, cut)
    for number in range(100, 150):
        producer.produce("bills", b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0
    admin.delete_topics(["bills"])["bills"].result(10)
    eventually_sync(lambda: not _local_files(node, topic_id), timeout=20)  # the deletion is done, as far as it may be
    assert _manifests(node, cut, topic_id) >= 2

    data = tmp_path / "restored"
    restored = stratalog("snapshot", "restore", "month-end", "--bucket", str(node.bucket), "--data", str(data))
    assert restored["new_cluster_id"] != cut["cluster_id"]
    with NodeProcess(data, bucket=node.bucket, settings=SETTINGS) as again:
        consumer = Consumer({"bootstrap.servers": again.bootstrap, "group.id": "none", "enable.auto.commit": False})
        for one in cut["shards"]:
            place = TopicPartition("bills", one["shard"])
            assert consumer.get_watermark_offsets(place, timeout=20) == (one["log_start_offset"], one["offset"])
        consumer.assign([TopicPartition("bills", shard, 0) for shard in range(2)])
        values = []
        while len(values) < 100:
            message = consumer.poll(20)
            assert message is not None and message.error() is None
            values.append(int(message.value() or b""))
        consumer.close()
        assert sorted(values) == list(range(100)), "what came after the cut is not in it"
    stratalog("snapshot", "delete", "month-end", "--bucket", str(node.bucket))
    eventually_sync(lambda: _manifests(node, cut, topic_id) == 0, timeout=20)


@pytest.mark.fault("groups-commit-offsets-producers")
def test_a_restored_cluster_has_the_groups_of_the_snapshot_and_no_later_commit(
    node: NodeProcess, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("invoices", 1, config={"retention.ms": "-1"})])["invoices"].result(10)
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    for number in range(60):
        producer.produce("invoices", b"%d" % number, partition=0)
    assert producer.flush(20) == 0

    def commit(group: str, offset: int) -> None:
        config = {"bootstrap.servers": node.bootstrap, "group.id": group, "enable.auto.commit": False}
        consumer = Consumer(config)
        consumer.commit(offsets=[TopicPartition("invoices", 0, offset)], asynchronous=False)
        consumer.close()

    def committed(bootstrap: str, group: str) -> int:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
        (found,) = consumer.committed([TopicPartition("invoices", 0)], timeout=20)
        consumer.close()
        return int(found.offset)

    commit("billing", 42)
    commit("audit", 7)
    stratalog("snapshot", "create", "with-groups", *_of(node))
    commit("billing", 55)
    commit("later", 1)

    data = tmp_path / "restored"
    stratalog("snapshot", "restore", "with-groups", "--bucket", str(node.bucket), "--data", str(data))
    with NodeProcess(data, bucket=node.bucket, settings=SETTINGS) as again:
        found = {group: committed(again.bootstrap, group) for group in ("billing", "audit", "later")}
        assert found == {"billing": 42, "audit": 7, "later": OFFSET_INVALID}
        asked = AdminClient({"bootstrap.servers": again.bootstrap})
        listed = {group.group_id for group in asked.list_consumer_groups().result(20).valid}
        assert {"billing", "audit"} <= listed and "later" not in listed
    assert committed(node.bootstrap, "billing") == 55, "the old cluster goes on"
    stratalog("snapshot", "delete", "with-groups", "--bucket", str(node.bucket))


def test_a_snapshot_is_mounted_and_read_to_its_offsets(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("notes", 2)])["notes"].result(10)
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
    # Records come all the time, so segments continue behind the cut.
    with running(node.bootstrap, "orders", SHARDS, (1,)):
        for number in range(100):
            producer.produce("notes", b"%d" % number, partition=number % 2)
        assert producer.flush(20) == 0
        cut = stratalog("snapshot", "create", "before", *_of(node))
    for number in range(100, 150):
        producer.produce("notes", b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0

    mount = stratalog("mounts", "create", "old", "--snapshot", "before", "--expires", "1h", "--admin", node.admin)
    assert {"notes@old", "orders@old"} <= set(mount["topics"])
    ends = {(shard["topic"], shard["shard"]): shard["offset"] for shard in cut["shards"]}
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "none", "enable.auto.commit": False})
    for (topic, shard), end in ends.items():
        if topic in ("notes", "orders"):
            assert consumer.get_watermark_offsets(TopicPartition(f"{topic}@old", shard), timeout=20)[1] == end
    for topic, shards in (("notes", 2), ("orders", SHARDS)):
        wanted = sum(ends[topic, shard] for shard in range(shards))
        consumer.assign([TopicPartition(f"{topic}@old", shard, 0) for shard in range(shards)])
        found = set()
        while len(found) < wanted:
            message = consumer.poll(20)
            assert message is not None and message.error() is None
            found.add((message.partition(), message.offset()))
        assert found == {(shard, offset) for shard in range(shards) for offset in range(ends[topic, shard])}
        places = [TopicPartition(f"{topic}@old", shard) for shard in range(shards)]
        assert [one.offset for one in consumer.position(places)] == [ends[topic, shard] for shard in range(shards)]
    consumer.close()

    refusals = {
        ("--snapshot", "never"): "there is no snapshot 'never'",
        ("--snapshot", "before", "--topic", "trains"): "snapshot 'before' has no topic 'trains'",
        ("--snapshot", "before", "--from", "2013-01-01"): "leave out --from and --until",
        ("--topic", "notes"): "say what to mount",
    }
    for words, told in refusals.items():
        assert told in stratalog("mounts", "create", "other", *words, "--admin", node.admin, code=2)


def test_a_snapshot_goes_into_no_bucket_but_the_clusters(node: NodeProcess, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("letters", 1)])["letters"].result(10)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce("letters", b"one")
    assert producer.flush(20) == 0
    other = tmp_path / "other"

    elsewhere = ("--bucket", str(other), "--admin", node.admin, "--topics", "letters")
    refused = stratalog("snapshot", "create", "weekly", *elsewhere, code=2)

    assert "is not its bucket: no snapshot was made" in refused
    assert files_below(other) == []
    assert stratalog("snapshot", "create", "weekly", "--topics", "letters", *_of(node))["topics"] == ["letters"]
    stratalog("snapshot", "delete", "weekly", "--bucket", str(node.bucket))


@pytest.mark.fault("process-holds-nodes-snapshot")
def test_a_hold_ends_by_itself_and_only_one_is_made_at_a_time(node: NodeProcess) -> None:
    admin = NodeClient(node.admin)
    first, second = CutRequest(cut_id=uuid4()), CutRequest(cut_id=uuid4())
    admin.hold_cut(HoldRequest(cut_id=first.cut_id, max_ms=2_000))
    with pytest.raises(Conflict, match="another cut"):
        admin.hold_cut(HoldRequest(cut_id=second.cut_id))
    assert admin.release_cut(first).was_held
    assert not admin.release_cut(first).was_held
    admin.hold_cut(HoldRequest(cut_id=second.cut_id, max_ms=1))
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce("orders", b"goes on", partition=0)
    assert producer.flush(20) == 0
    assert not admin.release_cut(second).was_held, "such a hold makes no cut"
    with pytest.raises(NotFound):
        admin.confirm_cut(first)


def _of(node: NodeProcess) -> tuple[str, ...]:
    return "--bucket", str(node.bucket), "--admin", node.admin


def _topic_id(node: NodeProcess, cut: Any) -> str:
    """Of the only topic of a cut."""
    key = Path(str(node.bucket)) / cut["cluster_id"] / "cuts" / f"{cut['name']}.cut"
    (topic,) = decode_cut(key.read_bytes(), source="cut").topics
    return str(topic.topic_id)


def _manifests(node: NodeProcess, cut: Any, topic_id: str) -> int:
    folder = Path(str(node.bucket)) / cut["cluster_id"] / "data" / topic_id
    return len(files_below(folder, ".manifest"))


def _local_files(node: NodeProcess, topic_id: str) -> list[Path]:
    return files_below(node.data_dir / "node" / "segments" / topic_id, ".seg")
