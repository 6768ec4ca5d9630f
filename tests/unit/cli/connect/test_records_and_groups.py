"""produce, consume and groups, against a real node."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner, Result

from stratalog_cli.connect import offered
from stratalog_cli.entry import build_app
from support.hostile_batches import timed_batch
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.waiting import eventually_sync

APP = build_app()
COMMAND = str(Path(sys.executable).with_name("stratalog"))
SETTINGS = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", None, SETTINGS) as running:
        yield running


@pytest.fixture
def ask(node: NodeProcess) -> Asker:
    return Asker(node)


class Asker:
    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.environment = {"STRATALOG_ADMIN": node.admin, "STRATALOG_BOOTSTRAP": node.bootstrap}

    def run(self, *words: str, lines: bytes | None = None) -> Result:
        return CliRunner().invoke(APP, list(words), input=lines, env=self.environment)

    def done(self, *words: str, lines: bytes | None = None) -> str:
        ran = self.run(*words, lines=lines)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.done(*words, "--output", "json"))

    def topic(self, name: str, shards: int = 1) -> str:
        self.done("topics", "create", name, "--shards", str(shards))
        return name

    def records(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.done("consume", *words, "--output", "json").splitlines()]


def member_of(node: NodeProcess, group: str, topic: str, count: int) -> Consumer:
    """A group that has read `count` records, and has committed."""
    member = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    read = 0

    def has_read() -> bool:
        nonlocal read
        message = member.poll(0.5)
        read += message is not None and message.error() is None
        return read >= count

    eventually_sync(has_read, 60)
    member.commit(asynchronous=False)
    return member


def test_lines_go_in_and_come_out_the_same(ask: Asker, tmp_path: Path) -> None:
    topic = ask.topic("lines")
    file = tmp_path / "more.txt"
    file.write_bytes(b"three\nfour")

    wrote = ask.run("produce", topic, "-", str(file), lines=b"one\r\ntwo\n")
    assert wrote.exit_code == 0, wrote.output
    assert "4 records written to lines: shard 0 offsets 0 to 3" in wrote.stderr and "to cluster " in wrote.stderr
    assert ask.done("consume", topic) == "one\ntwo\nthree\nfour\n"
    assert "1 record written to lines: shard 0 offset 4\n" in ask.run("produce", topic, lines=b"five").stderr
    assert ask.done("consume", topic, "--limit", "2") == "one\ntwo\n"
    assert ask.done("consume", topic, "--last", "1") == "five\n"
    assert ask.done("consume", topic, "--from-offset", "1", "--limit", "1") == "two\n"
    beyond = ask.run("consume", topic, "--from-offset", "6")
    assert (beyond.exit_code, beyond.stdout, beyond.stderr) == (0, "", "lines-0 ends at offset 5, before 6\n")
    assert not ask.run("consume", topic, "--from-offset", "5").stderr


def test_a_key_goes_to_the_shard_where_java_clients_would_write_it(ask: Asker) -> None:
    topic = ask.topic("keyed", 4)
    keys = [f"key-{number}" for number in range(40)]
    ask.done("produce", topic, "--key-separator", "\t", lines="".join(f"{key}\tv\n" for key in keys).encode())
    producer = Producer({"bootstrap.servers": ask.node.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, key=key, value=b"other")
    assert producer.flush(60) == 0

    by_key: dict[str, set[int]] = {}
    for record in ask.records(topic):
        by_key.setdefault(record["key"], set()).add(record["shard"])
    assert sorted(by_key) == sorted(keys) and {len(shards) for shards in by_key.values()} == {1}
    assert len(set.union(*by_key.values())) > 1
    keyed = ask.done("consume", topic, "--shard", "0", "--key-separator", "|").splitlines()
    assert keyed and all(line.split("|")[0] in by_key for line in keyed)


def test_what_consume_writes_as_json_produce_reads_again(ask: Asker) -> None:
    source, copy = ask.topic("source", 2), ask.topic("copy", 2)
    producer = Producer({"bootstrap.servers": ask.node.bootstrap})
    some = random.Random(1)
    for number in range(50):
        producer.produce(
            source,
            key=None if number % 7 == 0 else some.randbytes(5),
            value=None if number % 5 == 0 else "ä\u2028".encode() * number if number % 2 else some.randbytes(20),
            partition=number % 2,
            timestamp=1_000_000 + number,
            headers=[("h", b"\xff"), ("h", None), ("t", b"text")] if number % 3 else [],
        )
    assert producer.flush(60) == 0
    lines = ask.done("consume", source, "--output", "json")
    assert len(lines.splitlines()) == 50

    ask.done("produce", copy, "--input", "json", lines=lines.encode())

    def content(topic: str) -> list[str]:
        return sorted(json.dumps({**record, "topic": ""}) for record in ask.records(topic))

    assert content(copy) == content(source)


def test_headers_key_and_shard_of_the_command_line_are_those_of_every_record(ask: Asker) -> None:
    topic = ask.topic("dressed", 3)
    words = ("--header", "a=1", "--header", "b=", "--key", "k", "--shard", "2", "--compression", "zstd")
    told = json.loads(ask.done("produce", topic, *words, "-o", "json", lines=b"v\n" * 3))

    assert told == {"topic": topic, "records": 3, "shards": [{"shard": 2, "from": 0, "to": 3, "records": 3}]}
    for record in ask.records(topic):
        assert (record["shard"], record["key"], record["headers"]) == (2, "k", [["a", "1"], ["b", ""]])


def test_reading_from_a_time_begins_with_the_first_record_of_it(ask: Asker) -> None:
    topic = ask.topic("timed")
    begin = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
    lines = [json.dumps({"value": str(day), "timestamp_ms": begin + day * 86_400_000}) for day in range(5)]
    ask.done("produce", topic, "--input", "json", lines="\n".join(lines).encode())

    assert ask.done("consume", topic, "--from-time", "2013-01-03T12:00") == "3\n4\n"
    assert ask.done("consume", topic, "--from-time", "2014-01-01") == ""
    assert ask.done("consume", topic, "--since", "1h") == ""
    assert ask.done("consume", topic, "--since", "9000w").splitlines() == [str(day) for day in range(5)]


def test_following_continues_with_what_comes(ask: Asker) -> None:
    topic = ask.topic("followed")
    ask.done("produce", topic, lines=b"before\n")
    with subprocess.Popen(
        [COMMAND, "consume", topic, "--follow", "--limit", "2"],
        stdout=subprocess.PIPE,
        env=os.environ | ask.environment,
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"before\n"
        ask.done("produce", topic, lines=b"after\n")
        assert following.stdout.readline() == b"after\n"
        assert following.wait(60) == 0


def test_a_name_of_a_mounted_topic_that_is_not_there_leads_to_the_mounts(ask: Asker) -> None:
    ran = ask.run("consume", "orders@last-year")
    assert ran.exit_code == 2 and "`stratalog mounts list`" in ran.stderr and "topics create" not in ran.stderr


def test_where_nothing_comes_in_time_the_code_is_3(ask: Asker) -> None:
    ran = ask.run("consume", ask.topic("quiet"), "--follow", "--timeout", "500ms")
    assert ran.exit_code == 3 and "nothing came for 0.5 s" in ran.stderr
    assert "not read to the end" not in ran.stderr  # a log that is followed has no end
    assert ask.done("consume", "quiet") == ""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (b"no json\n", "line 1 is no JSON"),
        (b'{"value": 1}\n[]\n', "line 2 is no JSON object"),
        (b'{"key": "k"}\n', "has no value"),
        (b'{"value": "v", "valeu": 1}\n', "unknown field 'valeu'"),
        (b'{"value_base64": "?"}\n', "not valid base64"),
        (b'{"value": "v", "shard": -1}\n', "shard that is not a number of at least 0"),
        (b'{"value": "v", "timestamp_ms": 0}\n', "timestamp_ms that is not a number of at least 1"),
        (b'{"value": "v", "shard": 9}\n', "no shard 9"),
        (b'{"value": "v", "headers": [1]}\n', "headers that are neither"),
        (b'{"value": "v", "key": "k", "key_base64": "aw=="}\n', "give one of the two"),
    ],
)
def test_a_line_that_is_no_record_ends_the_command_with_its_number(ask: Asker, lines: bytes, said: str) -> None:
    if "strict" not in [topic["name"] for topic in ask.json("topics", "list")]:
        ask.topic("strict")
    ran = ask.run("produce", "strict", "--input", "json", lines=lines)
    assert ran.exit_code == 2 and said in ran.stderr, ran.output


@pytest.mark.parametrize("lines", [b"", b"v\n"])
def test_a_shard_that_is_not_there_is_refused_before_a_line_is_read(ask: Asker, lines: bytes) -> None:
    ran = ask.run("produce", ask.topic(f"few{len(lines)}", shards=2), "--shard", "2", lines=lines)
    assert ran.exit_code == 2 and "--shard 2: topic few" in ran.stderr and "has 2 shards" in ran.stderr, ran.output


def test_a_line_that_is_too_long_is_not_read_into_memory(ask: Asker) -> None:
    """An endless line from a pipe: reading all of it would take hundreds of MiB."""
    topic = ask.topic("long")
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (700 << 20, 700 << 20))\n" + (
        f"from stratalog_cli.entry import main; sys.argv = ['stratalog', 'produce', {topic!r}]\nmain()\n"
    )
    endless = "head -c 1500000000 /dev/zero"
    ran = subprocess.run(
        ["bash", "-c", f'{endless} | "$0" -c "$1"', sys.executable, program],
        env=os.environ | ask.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 2 and "line 1 is longer than 1048576 bytes" in ran.stderr, ran.stderr
    assert ask.done("consume", topic) == ""


@pytest.mark.parametrize("words", [("produce", "nowhere"), ("consume", "nowhere")])
def test_a_topic_that_is_not_there_is_not_made(ask: Asker, words: tuple[str, ...]) -> None:
    ran = ask.run(*words, lines=b"x\n")
    assert ran.exit_code == 2 and "stratalog topics create nowhere" in ran.stderr
    assert "nowhere" not in [topic["name"] for topic in ask.json("topics", "list")]


def test_a_port_that_is_no_kafka_listener_is_reported_as_such(ask: Asker) -> None:
    ran = ask.run("groups", "list", "--bootstrap", ask.node.admin)
    assert ran.exit_code == 3 and "speaks HTTP" in ran.stderr and "--listen" in ran.stderr
    ran = ask.run("topics", "list", "--admin", ask.node.bootstrap)
    assert ran.exit_code == 3 and "metrics.listen" in ran.stderr
    assert ask.run("groups", "list", "--bootstrap", "127.0.0.1:1").exit_code == 3
    assert ask.run("groups", "list", "--bootstrap", "localhost").exit_code == 2


# Groups -----------------------------------------------------------------------------------------------------------
def test_a_group_is_listed_and_described_with_the_lag_of_each_shard(ask: Asker) -> None:
    topic = ask.topic("lagging", 2)
    ask.done("produce", topic, "--shard", "0", lines=b"x\n" * 10)
    ask.done("produce", topic, "--shard", "1", lines=b"x\n" * 5)
    member = member_of(ask.node, "readers", topic, 15)
    ask.done("produce", topic, "--shard", "1", lines=b"x\n" * 3)

    told = ask.json("groups", "describe", "readers")
    assert (told["state"], told["lag"], len(told["members"])) == ("stable", 3, 1)
    assert [(row["shard"], row["committed"], row["log_end"], row["lag"]) for row in told["shards"]] == [
        (0, 10, 10, 0),
        (1, 5, 8, 3),
    ]
    assert all(row["client"] == "rdkafka" for row in told["shards"])
    assert {"group": "readers", "state": "stable", "members": 1} in ask.json("groups", "list")
    table = ask.done("groups", "describe", "readers")
    assert "3 records in 1 of 2 shards" in table

    refused = ask.run("groups", "reset", "readers", "--all-topics", "--to-earliest")
    assert refused.exit_code == 2 and "1 member (rdkafka)" in refused.stderr and "stop it, then" in refused.stderr
    member.close()
    assert ask.json("groups", "describe", "readers")["shards"][1]["committed"] == 5


@pytest.mark.fault("group-members-committed-committed")
def test_a_group_that_never_committed_is_behind_by_all_that_it_may_still_read(ask: Asker) -> None:
    """0 records behind, on the command line, the page and in the metrics: the alert never fired."""
    topic = ask.topic("uncommitted", 3)
    for shard in (0, 1):
        ask.done("produce", topic, "--shard", str(shard), lines=b"x\n" * (4 + shard))
    settings = {"group.id": "silent", "auto.offset.reset": "latest", "enable.auto.commit": False}
    member = Consumer({"bootstrap.servers": ask.node.bootstrap, **settings})
    member.subscribe([topic])

    def is_assigned() -> bool:
        member.poll(0.2)
        return len(member.assignment()) == 3

    eventually_sync(is_assigned, 60)
    told = ask.json("groups", "describe", "silent")
    assert told["lag"] == 9
    assert [(row["committed"], row["lag"]) for row in told["shards"]] == [(None, 4), (None, 5), (None, 0)]
    shown = ask.done("groups", "describe", "silent")
    assert "9 records in 2 of 3 shards" in shown and "3 shards without a committed offset" in shown

    def measured() -> bool:
        metrics = ask.node.get("/metrics")
        listed = json.loads(ask.node.get("/groups?format=json"))["groups"]
        return (
            f'stratalog_group_lag_records{{group="silent",topic="{topic}"}} 9\n' in metrics
            and f'stratalog_group_shard_lag_records{{group="silent",topic="{topic}",shard="1"}} 5\n' in metrics
            and [(one["lag"], one["uncommitted"]) for one in listed if one["group_id"] == "silent"] == [(9, 3)]
        )

    eventually_sync(measured, 60)
    member.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    assert ask.json("groups", "describe", "silent")["lag"] == 5
    member.close()


def test_a_group_without_members_is_reset_by_each_of_the_ways(ask: Asker) -> None:
    topic = ask.topic("again", 2)
    day = 86_400_000
    lines = [json.dumps({"value": "v", "shard": n % 2, "timestamp_ms": (n + 1) * day}) for n in range(20)]
    ask.done("produce", topic, "--input", "json", lines="\n".join(lines).encode())
    member_of(ask.node, "returning", topic, 20).close()

    def committed() -> list[int]:
        return [row["committed"] for row in ask.json("groups", "describe", "returning")["shards"]]

    def reset(*words: str) -> Any:
        told = ask.json("groups", "reset", "returning", *words)
        return [row["goes_to"] for row in told]

    eventually_sync(lambda: ask.json("groups", "describe", "returning")["state"] == "empty", 60)
    assert committed() == [10, 10]
    assert reset("--all-topics", "--to-earliest", "--dry-run") == [0, 0] and committed() == [10, 10]
    assert reset("--all-topics", "--to-earliest") == [0, 0] == committed()
    assert reset("--topic", f"{topic}:1", "--to-offset", "7") == [7] and committed() == [0, 7]
    assert reset("--topic", topic, "--to-offset", "900") == [10, 10] == committed()
    assert reset("--topic", topic, "--to-time", "1970-01-08") == [3, 3] == committed()
    assert reset("--topic", topic, "--to-latest") == [10, 10] == committed()
    assert reset("--topic", topic, "--by-duration", "9000w") == [0, 0] == committed()
    assert reset("--topic", topic, "--by-duration", "1h") == [10, 10] == committed()
    assert reset("--all-topics", "--to-offset", "9") == [9, 9]
    member = member_of(ask.node, "returning", topic, 2)
    member.close()


def test_a_group_is_deleted_with_what_it_committed_and_not_while_it_has_members(ask: Asker) -> None:
    topic = ask.topic("left", 2)
    ask.done("produce", topic, "--shard", "0", lines=b"x\n" * 3)
    member = member_of(ask.node, "leaving", topic, 3)
    refused = ask.run("groups", "delete", "leaving", "--yes")
    assert refused.exit_code == 2 and "1 member (rdkafka): nothing was deleted; stop it" in refused.stderr
    subscribed = ask.run("groups", "delete-offsets", "leaving", "--topic", topic, "--yes")
    assert subscribed.exit_code == 2 and "members of the group are subscribed to this topic" in subscribed.stderr
    member.close()
    eventually_sync(lambda: ask.json("groups", "describe", "leaving")["state"] == "empty", 60)
    unsure = ask.run("groups", "delete", "leaving")
    assert unsure.exit_code == 2 and "add --yes to delete group leaving with" in unsure.stderr
    assert "deleted group leaving" in ask.done("groups", "delete", "leaving", "--yes")
    gone = ask.run("groups", "delete", "leaving", "--yes")
    assert gone.exit_code == 2 and "there is no group 'leaving'" in gone.stderr


def test_offsets_of_some_shards_are_deleted_and_the_others_stay(ask: Asker) -> None:
    topic, other = ask.topic("partly", 3), ask.topic("kept")
    for name in (topic, other):
        ask.done("produce", name, lines=b"x\n" * 9)
    ask.done("groups", "reset", "forgetful", "--topic", topic, "--topic", other, "--to-latest")
    told = ask.json("groups", "delete-offsets", "forgetful", "--topic", f"{topic}:0,2", "--yes")
    assert [(one["topic"], one["shard"]) for one in told] == [(topic, 0), (topic, 2)]
    left = ask.json("groups", "describe", "forgetful")["shards"]
    assert [(row["topic"], row["shard"]) for row in left] == [(other, 0), (topic, 1)]
    nothing = ask.run("groups", "delete-offsets", "forgetful", "--topic", f"{topic}:0", "--yes")
    assert nothing.exit_code == 2 and "has committed nothing of partly:0" in nothing.stderr


def test_old_records_are_trimmed_after_what_would_go_was_shown(ask: Asker) -> None:
    topic = ask.topic("trimmed", 2)
    day = 86_400_000
    lines = [json.dumps({"value": str(n), "shard": n % 2, "timestamp_ms": (n + 1) * day}) for n in range(20)]
    ask.done("produce", topic, "--input", "json", lines="\n".join(lines).encode())

    planned = ask.run("topics", "trim", topic, "--to-time", "1970-01-08", "--dry-run", "-o", "json")
    assert [(one["log_start"], one["goes_to"], one["log_end"]) for one in json.loads(planned.stdout)] == [
        (0, 3, 10)
    ] * 2
    assert "this was a dry run" in planned.stderr and len(ask.records(topic)) == 20
    unsure = ask.run("topics", "trim", topic, "--to-offset", "4", "--shard", "1")
    assert unsure.exit_code == 2 and "add --yes to delete 4 offsets in 1 shard of topic trimmed" in unsure.stderr
    assert len(ask.records(topic)) == 20
    ask.done("topics", "trim", topic, "--to-offset", "4", "--shard", "1", "--yes")
    assert [int(one["value"]) for one in ask.records(topic, "--shard", "1")] == list(range(9, 20, 2))
    assert "no record is that old" in ask.run("topics", "trim", topic, "--to-offset", "1", "--shard", "1").stderr
    ask.done("topics", "trim", topic, "--to-latest", "--yes")
    assert ask.records(topic) == []


def test_produce_says_how_many_records_are_not_acknowledged_and_that_the_disk_is_full(tmp_path: Path) -> None:
    """It said that a message timed out, and neither how many nor why."""
    with NodeProcess(tmp_path / "data", None, SETTINGS | {"disk.reserve.bytes": 1 << 50}) as full:
        environment = {"STRATALOG_ADMIN": full.admin, "STRATALOG_BOOTSTRAP": full.bootstrap}
        run = CliRunner()
        assert run.invoke(APP, ["topics", "create", "orders"], env=environment).exit_code == 0
        ran = run.invoke(APP, ["produce", "orders", "--timeout", "2s"], input=b"x\n" * 5, env=environment)
    assert ran.exit_code == 3
    assert "0 records written to orders" in ran.stderr and "5 records of 5 not acknowledged (" in ran.stderr
    assert "the disk of node 1 is full" in ran.stderr and "are kept in reserve; make room there" in ran.stderr


def test_names_of_topics_and_groups_are_offered(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ask.topic("offered-here")
    ask.done("produce", topic, lines=b"x\n")
    ask.done("groups", "reset", "offered-group", "--topic", topic, "--to-latest")
    for name, value in ask.environment.items():
        monkeypatch.setenv(name, value)
    context = typer.Context(typer.main.get_command(APP))
    monkeypatch.setattr(offered, "_TIMEOUT_S", 20.0)
    assert topic in offered.topics(context) and "offered-group" in offered.groups(context)
    monkeypatch.delenv("STRATALOG_ADMIN")
    assert topic in offered.topics(context), "a Kafka address alone is enough"
    monkeypatch.setenv("STRATALOG_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr(offered, "_TIMEOUT_S", 0.1)
    assert offered.topics(context) == offered.groups(context) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--all-topics",),
        ("--to-earliest",),
        ("--to-earliest", "--to-latest", "--all-topics"),
        ("--to-offset", "1", "--topic", "t:x"),
        ("--to-earliest", "--topic", "missing"),
        ("--by-duration", "7", "--all-topics"),
        ("--to-time", "yesterday", "--all-topics"),
    ],
)
def test_a_reset_that_is_not_clear_is_refused(ask: Asker, words: tuple[str, ...]) -> None:
    assert ask.run("groups", "reset", "nobody", *words).exit_code == 2


def test_a_group_that_is_not_there_is_reported_as_such(ask: Asker) -> None:
    ran = ask.run("groups", "describe", "nobody")
    assert ran.exit_code == 2 and "there is no group 'nobody'" in ran.stderr


@pytest.mark.fault("producer-writes-wrong-maxtimestamp")
def test_a_time_finds_records_whose_producer_claims_none_in_the_header(ask: Asker) -> None:
    """Some libraries leave `maxTimestamp` at -1. Kafka's answers are in
    `tests/unit/shards/log/test_header_times.py`."""
    topic = ask.topic("unstated")
    begin = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
    with RawClient(ask.node.bootstrap) as client:
        assert client.produce(topic, timed_batch([begin], -1)).error_code == 0
        assert client.produce(topic, timed_batch([begin + 86_400_000] * 2, -1)).error_code == 0
    assert ask.done("consume", topic, "--from-time", "2012-12-31") == "0\n0\n1\n"
    assert ask.done("consume", topic, "--from-time", "2013-01-02") == "0\n1\n"
    member_of(ask.node, "unstating", topic, 3).close()
    eventually_sync(lambda: ask.json("groups", "describe", "unstating")["state"] == "empty", 60)
    told = ask.json("groups", "reset", "unstating", "--topic", topic, "--to-time", "2013-01-02")
    assert [row["goes_to"] for row in told] == [1]


def test_a_record_ten_years_ahead_is_refused_whatever_its_header_claims(ask: Asker) -> None:
    topic = ask.topic("ahead")
    ahead_ms = int(datetime.now(UTC).timestamp() * 1000) + 10 * 365 * 86_400_000
    with RawClient(ask.node.bootstrap) as client:
        assert client.produce(topic, timed_batch([ahead_ms], -1)).error_code == 32
