"""The commands that ask a node, against a real one."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from typer.testing import CliRunner, Result

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import AlterTopic
from stratalog.admin_api.rolls import RollElsewhereRequest, SegmentName
from stratalog.formats.bucket.claim import Claim, encode_claim
from stratalog_cli.entry import build_app
from support.node_process import NodeProcess
from support.waiting import eventually_sync

APP = build_app()
SETTINGS = {
    "remote.upload.interval.ms": 50,
    "log.retention.check.interval.ms": 100,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    root = tmp_path_factory.mktemp("node")
    with NodeProcess(root / "data", str(root / "bucket"), SETTINGS) as running:
        yield running


@pytest.fixture
def ask(node: NodeProcess) -> Asker:
    return Asker(node)


class Asker:
    def __init__(self, node: NodeProcess) -> None:
        self.node = node

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(APP, list(arguments), env={"STRATALOG_ADMIN": self.node.admin})

    def json(self, *arguments: str, code: int = 0) -> Any:
        ran = self.run(*arguments, "--output", "json")
        assert ran.exit_code == code, ran.output
        return json.loads(ran.stdout)

    def produce(self, topic: str, count: int, shard: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.node.bootstrap, "linger.ms": 0, "batch.num.messages": 10})
        for number in range(count):
            producer.produce(topic, key=str(number), value=b"v" * 100, partition=shard)
        assert producer.flush(20) == 0


@pytest.mark.fault("client-admin-api-command")
def test_an_internal_topic_is_neither_made_nor_altered_nor_deleted(ask: Asker) -> None:
    log = "__consumer_offsets"
    member = Consumer({"bootstrap.servers": ask.node.bootstrap, "group.id": "any"})
    member.committed([TopicPartition("nothing", 0)], timeout=20)
    member.close()
    for arguments in (
        ("create", log, "--shards", "5"),
        ("create", "__stratalog_mine"),
        ("alter", log, "--set", "segment.bytes=1000"),
        ("alter", log, "--shards", "9"),
        ("delete", log, "--yes"),
    ):
        ran = ask.run("topics", *arguments)
        assert ran.exit_code == 2, ran.output
        assert any(word in ran.output for word in ("reserved", "internal", "exists already"))
    assert ask.json("topics", "describe", log)["topic"]["settings"]["retention.ms"] == "-1"


def test_a_topic_is_created_described_altered_listed_and_deleted(ask: Asker) -> None:
    ran = ask.run("topics", "create", "life", "--shards", "2", "--set", "segment.bytes=100000")
    assert ran.exit_code == 0 and "created topic life with 2 shards" in ran.stdout

    detail = ask.json("topics", "describe", "life")
    assert detail["topic"]["settings"] == {"segment.bytes": "100000"}
    assert [shard["shard"] for shard in detail["shards"]] == [0, 1]
    assert {"key": "segment.bytes", "value": "100000", "source": "topic"}.items() <= next(
        setting for setting in detail["settings"] if setting["key"] == "segment.bytes"
    ).items()

    altered = ask.run(
        "topics", "alter", "life", "--set", "retention.ms=1000", "--unset", "segment.bytes", "--shards", "3"
    )
    assert altered.exit_code == 0, altered.output
    eventually_sync(lambda: ask.json("topics", "describe", "life")["topic"]["settings"] == {"retention.ms": "1000"})
    eventually_sync(lambda: len(ask.json("topics", "describe", "life")["shards"]) == 3)
    assert "life" in ask.run("topics", "list").stdout

    assert ask.run("topics", "delete", "life", "--yes").exit_code == 0
    eventually_sync(lambda: "life" not in [topic["name"] for topic in ask.json("topics", "list")])


def test_a_topic_is_described_with_segments_by_tier_and_with_settings_that_differ(ask: Asker) -> None:
    made = ask.run("topics", "create", "told", "--set", "retention.ms=7d", "--set", "local.retention.ms=1h")
    assert made.exit_code == 0, made.output
    ask.produce("told", 20)
    assert ask.run("seal", "told").exit_code == 0

    def tiers() -> dict[str, int]:
        found: dict[str, int] = ask.json("topics", "describe", "told")["segments_by_tier"]["0"]
        return found

    eventually_sync(lambda: tiers().get("both") == 1, 60)
    shown, every = ask.run("topics", "describe", "told").stdout, ask.run("topics", "describe", "told", "--all").stdout
    assert "1 both" in shown and "604800000" in shown and "3600000" in shown
    assert "compression.type" not in shown and "--all shows them" in shown
    assert "compression.type" in every


def test_a_topic_takes_names_of_kafkas_by_each_way_and_keeps_ours(ask: Asker) -> None:
    made = ask.run("topics", "create", "kafkas", "--set", "unclean.leader.election.enable=true")
    assert made.exit_code == 0, made.output

    def settings() -> dict[str, str]:
        found: dict[str, str] = ask.json("topics", "describe", "kafkas")["topic"]["settings"]
        return found

    assert settings() == {"uncleanSeal": "allow"}
    admin = KafkaAdmin({"bootstrap.servers": ask.node.bootstrap})
    there = ConfigResource("topic", "kafkas")
    told = admin.describe_configs([there])[there].result(30)
    assert told["unclean.leader.election.enable"].value == "true"

    def change(operation: AlterConfigOpType, key: str, value: str | None) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource("topic", "kafkas", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    change(AlterConfigOpType.SET, "unclean.leader.election.enable", "false")
    eventually_sync(lambda: settings() == {"uncleanSeal": "deny"}, 30)
    change(AlterConfigOpType.DELETE, "unclean.leader.election.enable", None)
    eventually_sync(lambda: settings() == {}, 30)
    with pytest.raises(KafkaException, match="no effect here: segment files grow"):
        change(AlterConfigOpType.SET, "preallocate", "true")
    refused = ask.run("topics", "create", "other", "--set", "preallocate=true")
    assert refused.exit_code == 2 and "topic.settings.without.effect.enable=true" in refused.stderr
    assert ask.run("topics", "alter", "kafkas", "--set", "flush.messages=1").exit_code == 0
    eventually_sync(lambda: settings() == {"flush.policy": "fsync"}, 30)
    assert ask.run("topics", "alter", "kafkas", "--unset", "flush.messages").exit_code == 0
    eventually_sync(lambda: settings() == {}, 30)


@pytest.mark.fault("clients-change-topic-kafka")
def test_changes_of_one_topic_at_once_lose_none_of_each_other(ask: Asker) -> None:
    ask.run("topics", "create", "busy")
    client = AdminClient(ask.node.admin)
    with ThreadPoolExecutor(8) as threads:
        for number in range(1, 21):
            pair = [AlterTopic(set={key: str(5000 + number)}) for key in ("retention.ms", "segment.ms")]
            list(threads.map(lambda change: client.alter_topic("busy", change), pair))
            expected = dict.fromkeys(("retention.ms", "segment.ms"), str(5000 + number))
            eventually_sync(lambda: client.topic("busy").topic.settings == expected)  # noqa: B023


@pytest.mark.fault("clients-change-topic-kafka")
def test_a_change_with_a_bad_number_of_shards_changes_no_setting(ask: Asker) -> None:
    ask.run("topics", "create", "fixed", "--shards", "2")
    for shards in ("1", "2", "20000"):
        ran = ask.run("topics", "alter", "fixed", "--set", "retention.ms=5000", "--shards", shards)
        assert ran.exit_code == 2, ran.output
    told = ask.json("topics", "describe", "fixed")["topic"]
    assert (told["settings"], told["shards"]) == ({}, 2)


def test_a_topic_that_cannot_be_is_refused_with_the_reason(ask: Asker) -> None:
    ask.run("topics", "create", "there")
    twice = ask.run("topics", "create", "there")
    misspelt = ask.run("topics", "create", "other", "--set", "retenton.ms=1")
    compacted = ask.run("topics", "create", "other", "--set", "cleanup.policy=compact")

    assert {twice.exit_code, misspelt.exit_code, compacted.exit_code} == {2}
    assert "there" in twice.stderr
    assert "did you mean retention.ms" in misspelt.stderr
    assert "immutable" in compacted.stderr
    assert "other" not in [topic["name"] for topic in ask.json("topics", "list")]


def test_a_dry_run_creates_nothing(ask: Asker) -> None:
    assert "could create" in ask.run("topics", "create", "maybe", "--dry-run").stdout
    assert ask.run("topics", "describe", "maybe").exit_code == 2


@pytest.mark.parametrize("name", ["", "x" * 250, "a b"])
def test_a_topic_name_that_is_not_allowed_is_refused_in_words(ask: Asker, name: str) -> None:
    ran = ask.run("topics", "create", name)
    assert ran.exit_code == 2
    assert "is not allowed: use 1 to 249 of letters" in ran.stderr


def test_a_snapshot_of_nodes_without_a_bucket_is_refused_at_once(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", None, SETTINGS) as without:
        ran = Asker(without).run("snapshot", "create", "never", "--bucket", str(tmp_path))
    assert ran.exit_code == 2
    assert "has no object store, so a snapshot can never be whole" in ran.stderr


def test_deleting_asks_first(ask: Asker) -> None:
    ask.run("topics", "create", "precious")
    eventually_sync(lambda: ask.run("topics", "describe", "precious").exit_code == 0)

    refused = CliRunner().invoke(
        APP, ["topics", "delete", "precious"], input="n\n", env={"STRATALOG_ADMIN": ask.node.admin}
    )

    assert refused.exit_code != 0
    assert ask.run("topics", "describe", "precious").exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        "topics describe nope",
        "topics alter nope --shards 2",
        "topics delete nope -y",
        "segments nope",
        "locate nope 0 0",
    ],
)
def test_an_unknown_topic_is_named_and_the_next_step_told(ask: Asker, command: str) -> None:
    ran = ask.run(*command.split())

    assert ran.exit_code == 2
    assert "'nope' does not exist" in ran.stderr and "topics list" in ran.stderr


def test_a_segment_is_sealed_and_found_again(ask: Asker) -> None:
    ask.run("topics", "create", "log")
    ask.produce("log", 30)

    (sealed,) = ask.json("seal", "log")
    assert sealed["outcome"] == "sealed" and sealed["end_offset"] == 30
    (empty,) = ask.json("seal", "log", "0")
    assert empty["outcome"] == "empty"

    first, second = ask.json("segments", "log")
    assert (first["state"], first["base_offset"], first["end_offset"]) == ("sealed", 0, 30)
    assert (second["state"], second["base_offset"]) == ("active", 30)
    assert Path(first["places"][0]).is_file()
    assert "sealed" in ask.run("segments", "log").stdout


def test_a_range_is_mounted_by_hand_listed_read_and_ended(ask: Asker) -> None:
    assert "no mounts" in ask.run("mounts", "list").stdout
    ask.run("topics", "create", "past", "--shards", "1")
    ask.produce("past", 20)
    ask.json("seal", "past")
    when = ("--topic", "past", "--from", "2020-01-01", "--until", "2100-01-01T00:00+01:00")
    made = ask.json("mounts", "create", "all", *when, "--expires", "2h")
    assert (made["topics"], made["segments"], made["mode"]) == (["past@all"], 1, "hand-made")
    assert made["expires_ms"] == made["created_ms"] + 2 * 3_600_000
    shown = ask.run("mounts", "list").stdout
    assert "past@all" in shown and "leaders" in shown and "serving" in shown
    for wrong, told in (
        (("create", "all", *when), "'all' exists"),
        (("create", "b", "--topic", "past", "--from", "x", "--until", "2100-01-01"), "--from 'x'"),
        (("create", "b", *when, "--expires", "2 weeks"), "such as 7d"),
        (("create", "b", "--topic", "nothing", *when[2:]), "'nothing' does not exist"),
        (("move", "all"), "created by a user"),
        (("move", "none"), "no mount 'none'"),
        (("end", "all", "--force", "some-disk"), "it has no data of its own to give up"),
    ):
        refused = ask.run("mounts", *wrong)
        assert refused.exit_code and told in refused.stderr, (wrong, refused.output)
    assert ask.run("mounts", "end", "all").exit_code == 0
    for name in ("all", "nope"):
        gone = ask.run("mounts", "end", name)
        assert gone.exit_code == 2 and f"there is no mount '{name}'" in gone.stderr, "it was said to have ended"
    eventually_sync(lambda: ask.json("mounts", "list") == [])


def test_an_offset_is_located_in_the_local_file(ask: Asker) -> None:
    ask.run("topics", "create", "spot")
    ask.produce("spot", 30)

    found = ask.json("locate", "spot", "0", "17")

    assert found["is_readable"] and found["tier"] == "local"
    assert found["batch_base_offset"] <= 17 < found["batch_end_offset"]
    stored = Path(found["place"]).read_bytes()[found["position"] : found["position"] + found["batch_size_bytes"]]
    assert int.from_bytes(stored[:8], "big") == found["batch_base_offset"]
    above = ask.json("locate", "spot", "0", "30", code=1)
    assert not above["is_readable"] and "high watermark 30" in above["why"][0]
    assert ask.run("locate", "spot", "7", "0").exit_code == 2


def test_a_freed_segment_is_located_in_the_bucket_and_verified_there(ask: Asker) -> None:
    ask.run("topics", "create", "cold", "--set", "local.retention.bytes=0")
    ask.produce("cold", 40)
    ask.json("seal", "cold")
    eventually_sync(lambda: ask.json("segments", "cold")[0]["tier"] == "cold", 20)

    (first, active) = ask.json("segments", "cold")
    assert (first["remote_state"], first["end_offset"], active["base_offset"]) == ("complete", 40, 40)
    found = ask.json("locate", "cold", "0", "23")
    assert found["is_readable"] and found["tier"] == "cold"
    assert found["batch_base_offset"] <= 23 < found["batch_end_offset"]
    place = Path(found["place"].removeprefix("file://"))
    stored = place.read_bytes()[found["position"] : found["position"] + found["batch_size_bytes"]]
    assert int.from_bytes(stored[:8], "big") == found["batch_base_offset"]
    assert "freed" in " ".join(found["why"])
    verified = ask.json("verify", "cold")
    assert (verified["errors"], verified["local_bytes"]) == (0, 0) and verified["cold_bytes"] == first["size_bytes"]

    place.unlink()
    damaged = ask.json("verify", "cold", code=1)
    assert any("missing" in finding["what"] for finding in damaged["findings"])


def test_what_a_node_leaves_is_clean_for_the_doctor(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    with NodeProcess(tmp_path / "data", str(bucket), SETTINGS) as node:
        asker = Asker(node)
        asker.run("topics", "create", "kept", "--shards", "3", "--set", "segment.bytes=2000")
        for shard in range(3):
            asker.produce("kept", 60, shard)
        asker.json("seal", "kept", "1")
        eventually_sync(lambda: asker.json("status")["upload_lag_bytes"] == 0, 20)
    ran = CliRunner().invoke(APP, ["doctor", str(tmp_path / "data"), "--bucket", str(bucket), "-o", "json"])

    seen = json.loads(ran.stdout)
    assert ran.exit_code == 0, seen
    assert [finding for part in seen for finding in part["findings"] if finding["severity"] == "error"] == []
    assert seen[0]["segments"] >= 6 and seen[1]["objects"] >= 3


def test_a_clean_node_verifies_clean_and_damage_is_found(ask: Asker) -> None:
    ask.run("topics", "create", "checked")
    ask.produce("checked", 30)
    ask.json("seal", "checked")
    clean = ask.json("verify", "checked")
    assert (clean["errors"], clean["findings"]) == (0, [])
    assert clean["segments"] == 2 and clean["local_bytes"] > 3000

    path = Path(ask.json("segments", "checked")[0]["places"][0])
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)

    damaged = ask.json("verify", "checked", code=1)
    assert damaged["errors"] == 1 and damaged["findings"][0]["place"] == str(path)
    table = ask.run("verify", "checked")
    assert table.exit_code == 1 and "1 error," in table.stdout
    assert ask.run("verify", "--shard", "0").exit_code == 2


def test_the_status_reports_what_the_node_holds(ask: Asker) -> None:
    ask.run("topics", "create", "held")
    ask.produce("held", 10)

    status = ask.json("status")

    assert status["is_ready"] and status["kafka_address"] == ask.node.bootstrap
    assert status["bytes"]["local"] > 0 and status["shards"] >= 1
    assert status["disk_total_bytes"] > status["disk_free_bytes"] > 0
    assert "ready" in ask.run("status").stdout


def test_the_status_page_stands_on_its_own(ask: Asker) -> None:
    ask.run("topics", "create", "page-topic")
    eventually_sync(lambda: "page-topic" in ask.node.get("/topics"))

    page = ask.node.get("/")

    assert page.startswith("<!doctype html>") and "Upload lag" in page
    assert "://" not in page.replace(f"http://{ask.node.admin}", ""), "nothing from elsewhere"


def test_a_request_that_makes_no_sense_is_answered_with_the_reason(ask: Asker) -> None:
    def send(method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, str]]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{ask.node.admin}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    assert send("POST", "/v1/topics", b"{")[0] == 400
    assert send("POST", "/v1/topics", b'{"name": "x", "shards": 0}')[1]["message"].startswith("POST /v1/topics: shards")
    assert send("POST", "/v1/topics", b'{"name": "x", "colour": "red"}')[0] == 400
    assert send("GET", "/v1/locate?shard=0&offset=0")[0] == 400
    assert send("GET", "/v1/locate?topic=x&shard=a&offset=0")[0] == 400
    assert send("GET", "/v1/topics/nope") == (404, send("GET", "/v1/topics/nope")[1])
    assert send("POST", "/v1/verify", b'{"topic": "nope"}')[1]["error"] == "NotFound"


def test_a_leader_says_which_of_the_named_segments_it_ends_with_another_successor(ask: Asker) -> None:
    ask.run("topics", "create", "rolling")
    client = AdminClient(ask.node.admin)
    eventually_sync(lambda: client.topic("rolling").shards)
    topic_id = UUID(client.topic("rolling").topic.topic_id)
    here, ended = (SegmentName(topic_id=topic_id, shard=0, epoch=epoch) for epoch in (0, 7))
    unknown = SegmentName(topic_id=UUID(int=1), shard=0, epoch=0)
    told = client.roll_elsewhere(RollElsewhereRequest(segments=[here, ended, unknown]))
    assert told.asked == [here]


def test_every_metric_has_help_and_a_telling_name(ask: Asker) -> None:
    page = ask.node.get("/metrics")

    named = {line.split()[2] for line in page.splitlines() if line.startswith("# HELP ")}
    typed = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    assert named == typed and all(name.startswith(("stratalog_", "process_")) for name in named)


def test_a_store_that_takes_no_uploads_shows_in_status_and_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no directory can be made below a file")
    with NodeProcess(tmp_path / "data", str(tmp_path / "file" / "bucket"), SETTINGS) as running:
        lost = Asker(running)
        eventually_sync(lambda: lost.json("status")["bucket_trouble"], timeout=20)

        assert "has taken no uploads" in lost.run("status").stdout
        with urllib.request.urlopen(f"http://{running.admin}/") as page:
            assert "has taken no uploads" in page.read().decode()
        (line,) = [line for line in running.log_text().splitlines() if line.startswith("stratalog ready: ")]
        assert f"bucket file://{tmp_path}/file/bucket (NOT USABLE, uploads wait: " in line
        assert "/probe/" not in line
        logged = [line for line in running.log_text().splitlines() if line.startswith("{")]
        causes = [line for line in logged if str(tmp_path / "file" / "bucket") in line]
        assert len(causes) == 1 and "object store cannot be used, uploads wait" in causes[0], causes


def test_a_claim_of_a_stranger_shows_in_status_and_on_the_page_and_the_node_serves(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    with NodeProcess(tmp_path / "data", str(bucket), SETTINGS) as running:
        first = Asker(running)
        cluster = first.json("status")["cluster_id"]
        claims = bucket / cluster / "claims" / "1"
        eventually_sync(lambda: list(claims.glob("*.claim")), timeout=20)
    claim = Claim(cluster, 1, "copied disk", 99, UUID(int=8))
    (claims / "99.claim").write_bytes(encode_claim(claim))
    with NodeProcess(tmp_path / "data", str(bucket), SETTINGS) as running:
        forked = Asker(running)
        eventually_sync(lambda: forked.json("status")["bucket_trouble"], timeout=20)

        told = forked.json("status")
        assert told["is_ready"] and "claims/1/99.claim" in told["bucket_trouble"]
        assert "stop this one permanently" in told["bucket_trouble"]
        assert "stratalog_tier_is_forked 1" in running.get("/metrics")
        with urllib.request.urlopen(f"http://{running.admin}/") as page:
            assert "neither uploads nor sweeps" in page.read().decode()


@pytest.mark.fault("shard-stops", "shard-stops-2")
def test_a_shard_that_stopped_is_named_with_the_next_step_and_the_node_stays_ready(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", None, SETTINGS) as running:
        hurt = Asker(running)
        for name in ("broken", "whole"):
            hurt.run("topics", "create", name, "--shards", "1")
            hurt.produce(name, 10)
        assert hurt.json("status")["stopped_shards"] == 0
        place = Path(hurt.json("segments", "broken")[0]["places"][0])
        running.stop()
        place.write_bytes(b"\xff" * place.stat().st_size)
        running.start()

        status = hurt.json("status", code=1)
        (stopped,) = status["stopped"]
        assert (status["is_ready"], status["stopped_shards"]) == (True, 1)
        assert (stopped["topic"], stopped["shard"], stopped["cause"]) == ("broken", 0, "unreadable")
        assert str(place) in stopped["reason"] and "restart the node" in stopped["next_step"]
        assert running.metrics()['stratalog_log_stopped_shards{cause="unreadable"}'] == 1
        for shown in (hurt.run("status").stdout, running.get("/")):
            assert "shard broken-0 takes no writes" in shown
        assert '"ready": true' in running.get("/readyz")
        (finding,) = hurt.json("verify", "broken", code=1)["findings"]
        assert (finding["place"], finding["what"]) == (str(place), stopped["reason"])
        hurt.produce("whole", 1)


@pytest.mark.fault("ended-segment-damaged-below-checkpoint")
def test_a_damaged_segment_that_cannot_be_sealed_is_named_with_the_next_step(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", None, SETTINGS) as running:
        hurt = Asker(running)
        hurt.run("topics", "create", "rotten", "--shards", "1")
        hurt.produce("rotten", 10)
        place = Path(hurt.json("segments", "rotten")[0]["places"][0])
        running.stop()
        data = bytearray(place.read_bytes())
        data[-1] ^= 1
        place.write_bytes(data)
        running.start()
        assert hurt.json("status")["damaged"] == []
        hurt.run("seal", "rotten")
        eventually_sync(lambda: json.loads(hurt.run("status", "-o", "json").stdout)["damaged"])
        (line,) = hurt.json("status", code=1)["damaged"]
        assert "rotten-0: segment 0-0 ended and is not sealed" in line and str(place) in line and "next: " in line
        assert "rotten-0: segment 0-0" in running.get("/")


def test_status_ends_with_1_for_a_node_that_is_not_ready(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", None, SETTINGS | {"disk.reserve.bytes": 1 << 60}) as running:
        full = Asker(running)
        eventually_sync(lambda: not json.loads(full.run("status", "-o", "json").stdout)["is_ready"], timeout=20)
        assert "disk" in full.json("status", code=1)["waiting_for"]
        assert full.run("status").exit_code == 1


@pytest.mark.fault("file-cut-gone-offset")
@pytest.mark.parametrize("kept", [700, None], ids=["cut", "gone"])
def test_everybody_names_flushed_offsets_that_are_gone_from_a_file(tmp_path: Path, kept: int | None) -> None:
    with NodeProcess(tmp_path / "data", None, SETTINGS) as running:
        hurt = Asker(running)
        hurt.run("topics", "create", "cut", "--shards", "1")
        hurt.produce("cut", 30)
        place = Path(hurt.json("segments", "cut")[0]["places"][0])
        running.stop()
        place.unlink() if kept is None else os.truncate(place, kept)
        ran = CliRunner().invoke(APP, ["doctor", str(tmp_path / "data"), "-o", "json"])
        said = [one["what"] for one in json.loads(ran.stdout)[0]["findings"] if one["place"] == str(place)]
        assert any("but 30 is known to have been written" in what for what in said), said
        running.start()

        (stopped,) = hurt.json("status", code=1)["stopped"]
        assert stopped["cause"] == "data_lost" and "to 30 were written and are lost" in stopped["reason"]
        assert "uncleanSeal=allow" in stopped["next_step"]
        for shown in (hurt.run("status").stdout, running.get("/")):
            assert "shard cut-0 takes no writes" in shown
        (finding,) = hurt.json("verify", "cut", code=1)["findings"]
        assert (finding["place"], finding["what"]) == (str(place), stopped["reason"])


@pytest.mark.fault("node-started-without-bucket")
def test_a_node_started_without_the_bucket_of_its_data_says_so_everywhere(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), SETTINGS)
    ask = Asker(node)
    with node:
        ask.run("topics", "create", "history", "--set", "local.retention.ms=1")
        ask.produce("history", 20)
        ask.run("seal", "history")
        eventually_sync(lambda: ask.json("segments", "history")[0]["tier"] == "cold")
    node.bucket = None
    with node:
        assert "1 segment is only in an object store" in ask.json("status")["bucket_trouble"]
        (finding,) = ask.json("verify", "history", code=1)["findings"]
        assert finding["severity"] == "error" and "--bucket" in finding["next_step"]
        found = ask.json("locate", "history", "0", "3", code=1)
        assert "started without an object store" in found["why"][-1] and "--bucket" in found["why"][-1]


def _file_of(node: NodeProcess, ask: Asker, topic: str) -> Path:
    places = [Path(place) for place in ask.json("segments", topic)[0]["places"]]
    return next(place for place in places if place.suffix == ".seg")


@pytest.mark.fault("sealed-segment-file-gone")
@pytest.mark.parametrize(
    ("remote", "said"),
    [
        ("true", "its local file is missing; the object store has the whole segment"),
        ("false", "its local file is missing: offsets [0, 20) are lost here and not in the object store"),
    ],
    ids=["stored", "lost"],
)
def test_everybody_says_the_same_of_a_missing_file(tmp_path: Path, remote: str, said: str) -> None:
    """Locate, verify and doctor gave three answers; running or started again, the verdict is one."""
    node = NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), SETTINGS)
    ask = Asker(node)
    is_stored = remote == "true"
    code = 0 if is_stored else 1

    def check() -> None:
        assert said in ask.json("locate", "history", "0", "3", code=code)["why"]
        (finding,) = ask.json("verify", "history", code=code)["findings"]
        assert (finding["what"], finding["severity"]) == (said, "warning" if is_stored else "error")

    with node:
        ask.run("topics", "create", "history", "--set", f"remote.storage.enable={remote}")
        ask.produce("history", 20)
        ask.run("seal", "history")
        state = "complete" if is_stored else "none"
        eventually_sync(lambda: ask.json("segments", "history")[0]["state"] == "sealed")
        eventually_sync(lambda: ask.json("segments", "history")[0]["remote_state"] == state)
        _file_of(node, ask, "history").unlink()
        check()
    with node:
        check()
        if is_stored:
            assert _values(node, "history") == 20
    ran = CliRunner().invoke(APP, ["doctor", str(tmp_path / "data"), "--output", "json"])
    assert said in [finding["what"] for finding in json.loads(ran.stdout)[0]["findings"]]


def _values(node: NodeProcess, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return len(consumer.consume(20, timeout=20))
    finally:
        consumer.close()
