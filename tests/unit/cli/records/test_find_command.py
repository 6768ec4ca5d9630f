"""`stratalog find`: the records of a key wherever they are, against a real node with a directory and with real S3."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.find import FindAnswer, LedElsewhere, found_record
from stratalog.formats.bucket.manifest import Manifest
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_cli.connect.group_reset import Bounds
from stratalog_cli.entry import build_app
from stratalog_cli.records.find import without
from stratalog_cli.records.find_nodes import find_on_nodes
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedSegment
from support.node_process import NodeProcess
from support.s3_servers import ACCESS_KEY, NO_VERSITYGW, REGION, SECRET_KEY, versitygw_binary, versitygw_server
from support.waiting import eventually_sync

APP = build_app()
SETTINGS = {
    "remote.upload.interval.ms": 50,
    "log.retention.check.interval.ms": 100,
    "remote.delete.delay.ms": 100,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture(scope="module", params=["directory", pytest.param("versitygw", marks=pytest.mark.real_s3)])
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    root = tmp_path_factory.mktemp("node")
    if request.param == "directory":
        with NodeProcess(root / "data", str(root / "bucket"), SETTINGS) as node:
            yield Asker(node, str(root / "bucket"))
        return
    if versitygw_binary() is None:
        pytest.skip(NO_VERSITYGW)
    with versitygw_server(root / "buckets") as server, NodeProcess(root / "data", server.url("x"), SETTINGS) as node:
        # A node reports only the name of its bucket, so reading the bucket needs the other options.
        yield Asker(
            node,
            server.url("x"),
            {
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_ENDPOINT_URL": server.endpoint,
                "AWS_REGION": REGION,
                "AWS_ALLOW_HTTP": "true",
            },
        )


class Asker:
    def __init__(self, node: NodeProcess, bucket: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self.node = node
        self.bucket = bucket
        self.environment = {"STRATALOG_ADMIN": node.admin, "STRATALOG_BOOTSTRAP": node.bootstrap} | dict(environment)

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(APP, list(words), env=self.environment)

    def find(self, topic: str, *words: str, code: int = 0) -> Any:
        """From the bucket and from the node: both say the same."""
        direct, by_node = (
            self.run("find", topic, *where, *words, "--output", "json") for where in (("--bucket", self.bucket), ())
        )
        assert (direct.exit_code, by_node.exit_code) == (code, code), direct.output + by_node.output
        told, other = json.loads(by_node.stdout), json.loads(direct.stdout)
        # How many segments were looked at before there was enough is each one's own.
        assert told == (other | {"segments": told["segments"]} if told["is_cut"] else other)
        return told

    def page(self, topic: str, **query: object) -> Any:
        """One answer over HTTP, as curl has it."""
        return json.loads(self.node.get(f"/v1/topics/{topic}/find?{urlencode(query, doseq=True)}"))

    def topic(self, name: str, *words: str) -> str:
        ran = self.run("topics", "create", name, "--shards", "2", *words)
        assert ran.exit_code == 0, ran.output
        return name

    def produce(self, topic: str, numbers: range, shard: int = 0) -> None:
        """Keys come round after 50. In one batch: `flush` waits for no linger."""
        producer = Producer({"bootstrap.servers": self.node.bootstrap, "linger.ms": 2_000})
        for number in numbers:
            producer.produce(topic, b"%d" % number, b"flight-%d" % (number % 50), partition=shard)
        assert producer.flush(30) == 0

    def seal(self, topic: str) -> None:
        """What was written becomes complete in the bucket."""
        assert self.run("seal", topic).exit_code == 0

        def is_complete() -> bool:
            told = json.loads(self.run("segments", topic, "--output", "json").stdout)
            return all(one["remote_state"] == "complete" for one in told if one["end_offset"] > one["base_offset"])

        eventually_sync(is_complete, 60)


def places(told: Any) -> list[tuple[int, int]]:
    return [(one["shard"], one["offset"]) for one in told["records"]]


def test_a_key_is_found_cold_and_hot_with_two_range_reads_per_segment(ask: Asker) -> None:
    topic = ask.topic("both", "--set", "index.keys=true")
    ask.produce(topic, range(100))
    ask.seal(topic)
    ask.produce(topic, range(100, 150))
    ask.produce(topic, range(150, 200), shard=1)
    told = ask.find(topic, "--key", "flight-7")
    assert places(told) == [(0, 7), (0, 57), (0, 107), (1, 7)]
    assert [one["value"] for one in told["records"]] == ["7", "57", "107", "157"]
    assert told["segments"] == told["key_index_reads"] == 1
    assert 1 <= told["batch_reads"] <= 2
    assert (told["hot_offsets"], told["is_cut"], told["not_searched"]) == (100, False, [])

    ask.seal(topic)
    told = ask.find(topic, "--key-base64", base64.b64encode(b"flight-7").decode())
    assert places(told) == [(0, 7), (0, 57), (0, 107), (1, 7)]
    assert (told["segments"], told["key_index_reads"], told["hot_offsets"]) == (3, 3, 0)
    assert places(ask.find(topic, "--key", "flight-7", "--shard", "1")) == [(1, 7)]
    cut = ask.find(topic, "--key", "flight-7", "--limit", "2")
    assert (places(cut), cut["is_cut"]) == ([(0, 7), (0, 57)], True)
    assert ask.find(topic, "--key", "nobody")["records"] == []


@pytest.mark.fault("clients-search-keys-once")
def test_answers_are_bounded_and_a_cursor_leads_through_cold_and_hot(ask: Asker) -> None:
    topic = ask.topic("pages", "--set", "index.keys=true")
    ask.produce(topic, range(150))
    ask.produce(topic, range(150), shard=1)
    ask.seal(topic)
    ask.produce(topic, range(150, 200), shard=1)
    seen, cursor, pages = [], None, 0
    while True:
        told = ask.page(topic, key="flight-7", limit=2, **({} if cursor is None else {"cursor": cursor}))
        assert len(told["records"]) <= 2
        seen += places(told)
        cursor, pages = told["cursor"], pages + 1
        if cursor is None:
            break
    assert seen == [(0, 7), (0, 57), (0, 107), (1, 7), (1, 57), (1, 107), (1, 157)]
    assert 4 <= pages <= 5
    assert [one["value"] for one in told["records"]] == ["157"]


@pytest.mark.fault("clients-search-keys-once")
def test_a_record_that_is_too_large_for_an_answer_is_reported_without_its_value(ask: Asker) -> None:
    topic = ask.topic("large")
    producer = Producer({"bootstrap.servers": ask.node.bootstrap, "compression.type": "zstd"})
    for size in (10, 300_000, 20):
        producer.produce(topic, b"v" * size, b"k", partition=0, headers={"h": b"\xff"})
    assert producer.flush(30) == 0
    records = ask.page(topic, key="k")["records"]
    assert [(one["offset"], one["is_left_out"], one["size_bytes"]) for one in records] == [
        (0, False, 12),
        (1, True, 300_002),
        (2, False, 22),
    ]
    assert records[0]["headers"] == [{"name": "h", "value": None, "value_base64": "/w=="}]
    assert records[1]["value"] is None
    (large,) = (
        one
        for one in json.loads(ask.run("find", topic, "--key", "k", "--output", "json").stdout)["records"]
        if "is_left_out" in one
    )
    assert (large["offset"], large["size_bytes"], large["value"]) == (1, 300_002, None)


@pytest.mark.fault("search-key-thousands-batches")
def test_batches_of_a_few_bytes_that_are_large_when_opened_cost_the_node_little_memory(tmp_path: Path) -> None:
    count = 100
    with NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), SETTINGS) as node:
        ask = Asker(node, str(tmp_path / "bucket"))
        topic = ask.topic("large", "--set", "index.keys=true")
        large = {"compression.type": "zstd", "message.max.bytes": 16 << 20, "linger.ms": 0, "batch.num.messages": 1}
        producer = Producer({"bootstrap.servers": node.bootstrap} | large)
        for _ in range(count):
            producer.produce(topic, bytes(8 << 20), b"k", partition=0)
            assert producer.flush(30) == 0
        for is_sealed in (False, True):
            if is_sealed:
                ask.seal(topic)
            before = node.peak_rss_bytes()
            seen, told = 0, dict[str, Any](cursor="0:0")
            while told["cursor"] is not None:
                told = ask.page(topic, key="k", cursor=told["cursor"])
                assert all(one["is_left_out"] for one in told["records"]) and told["not_searched"] == []
                seen += len(told["records"])
            assert seen == count
            assert node.peak_rss_bytes() - before < 256 << 20


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"key": "a", "key_base64": "YQ=="},
        {"key": ["a", "b"]},
        {"key": b"\xff"},
        {"key_base64": "?"},
        {"key": "a", "limit": 0},
        {"key": "a", "limit": 1_001},
        {"key": "a", "cursor": "7"},
        {"key": "a", "cursor": "0:99999999999999999999"},
        {"key": "a", "shard": "x"},
    ],
    ids=str,
)
def test_what_makes_no_sense_over_http_is_refused_in_words(ask: Asker, query: dict[str, Any]) -> None:
    topic = ask.topic(f"asked-{uuid4().hex}")
    with pytest.raises(HTTPError) as refused:
        ask.page(topic, **query)
    with refused.value as answer:
        assert answer.code == 400
        assert json.loads(answer.read())["error"] == "InvalidRequest"


@pytest.mark.fault("shard-changes-leader-search")
def test_a_shard_that_is_not_there_is_reported_and_not_searched_in_vain(ask: Asker) -> None:
    topic = ask.topic("narrow")
    with pytest.raises(HTTPError) as refused:
        ask.page(topic, key="a", shard=[0, 2])
    with refused.value as answer:
        assert answer.code == 404
        assert "it has shards 0 to 1" in json.loads(answer.read())["message"]


class Moving:
    """Nodes whose leadership changes while they are asked one after the other."""

    def __init__(self, *answers: FindAnswer) -> None:
        self.silent: list[AdminClient] = []
        self._answers = answers

    def each(self, ask: Callable[[Any], None]) -> None:
        for answer in self._answers:
            ask(SimpleNamespace(find=lambda *_, answer=answer, **__: answer))


def answer_of(node_id: int, searched: list[tuple[int, int]], *offsets: int, **elsewhere: int) -> FindAnswer:
    return FindAnswer(
        topic="t",
        node_id=node_id,
        records=[found_record(0, offset, 5, b"v", ()) for offset in offsets],
        cursor=None,
        led_elsewhere=[LedElsewhere(node_id=int(name[1:]), shards=count) for name, count in elsewhere.items()],
        topic_shards=4,
        searched=searched,
        segments=0,
        key_index_reads=0,
        batch_reads=0,
        bytes_read=0,
        offsets_read=0,
    )


@pytest.mark.fault("shard-changes-leader-search")
@pytest.mark.parametrize(
    ("answers", "faults"),
    [
        ([answer_of(1, [(0, 2)], n2=2), answer_of(2, [(2, 4)], n1=2)], []),
        ([answer_of(1, [(0, 1)], n2=3), answer_of(2, [(2, 4)], n1=2)], ["1 shard changed the leader"]),
        ([answer_of(1, [(0, 2)], n2=2)], ["2 shards have node 2 as the leader"]),
        (
            [answer_of(1, [(0, 1)], n2=2, n3=1), answer_of(2, [(3, 4)], n1=2, n3=1)],
            ["node 3", "1 shard changed the leader"],
        ),
    ],
)
def test_a_shard_that_moved_between_the_questions_is_not_mistaken_for_searched(
    answers: list[FindAnswer], faults: list[str]
) -> None:
    found, _ = find_on_nodes(Moving(*answers), "t", b"k", frozenset(), 10, is_scan=False)  # type: ignore[arg-type]
    assert len(found.faults) == len(faults)
    assert all(part in fault for part, fault in zip(faults, found.faults, strict=True))


@pytest.mark.fault("shard-changes-leader-search")
def test_records_of_a_shard_that_two_nodes_led_one_after_the_other_are_reported_once() -> None:
    answers = Moving(answer_of(1, [(0, 4)], 3, 7), answer_of(2, [(0, 1)], 3, 7, 9))
    found, _ = find_on_nodes(answers, "t", b"k", frozenset(), 10, is_scan=False)  # type: ignore[arg-type]
    assert ([one["offset"] for one in found.records], found.is_cut, found.faults) == ([3, 7, 9], False, [])


def test_an_answer_says_which_shards_it_came_to_the_end_of(ask: Asker) -> None:
    topic = ask.topic("ended")
    ask.produce(topic, range(60))
    ask.produce(topic, range(60), shard=1)
    assert ask.page(topic, key="flight-3")["searched"] == [[0, 2]]
    first = ask.page(topic, key="flight-3", limit=3)
    assert (first["topic_shards"], first["searched"], places(first)) == (2, [[0, 1]], [(0, 3), (0, 53), (1, 3)])
    assert ask.page(topic, key="flight-3", cursor=first["cursor"])["searched"] == [[1, 2]]
    assert ask.page(topic, key="flight-3", shard=1)["searched"] == [[1, 2]]


def test_searches_are_counted(ask: Asker) -> None:
    def counts() -> list[float]:
        lines = dict(line.rsplit(" ", 1) for line in ask.node.get("/metrics").splitlines() if "stratalog_find" in line)
        return [
            float(lines[f"stratalog_find_{name}_total"])
            for name in ("searches", "records", "range_reads", "offsets_read")
        ]

    topic = ask.topic("counted", "--set", "index.keys=true")
    ask.produce(topic, range(60))
    ask.seal(topic)
    ask.produce(topic, range(60, 90))
    before = counts()
    assert len(ask.page(topic, key="flight-3")["records"]) == 2
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 2, 2, 30]


def test_what_no_node_is_asked_for_is_found_without_one(ask: Asker) -> None:
    topic = ask.topic("cold", "--set", "index.keys=true")
    ask.produce(topic, range(60))
    ask.seal(topic)
    ask.produce(topic, range(60, 120))
    told = ask.find(topic, "--key", "flight-3", "--cold-only", "--cluster", cluster_of(ask))
    assert places(told) == [(0, 3), (0, 53)]


def cluster_of(ask: Asker) -> str:
    return str(json.loads(ask.run("status", "--output", "json").stdout)["cluster_id"])


@pytest.mark.fault("clients-search-keys-once")
def test_segments_without_a_key_index_are_named_and_scanned_when_that_is_asked_for(ask: Asker) -> None:
    topic = ask.topic("late")
    ask.produce(topic, range(60))
    ask.seal(topic)
    assert ask.run("topics", "alter", topic, "--set", "index.keys=true").exit_code == 0
    ask.produce(topic, range(60, 120))
    ask.seal(topic)
    told = ask.find(topic, "--key", "flight-3", code=1)
    assert places(told) == [(0, 103)]
    assert told["not_searched"] == [{"shard": 0, "from_offset": 0, "to_offset": 60}]
    for where in (("--bucket", ask.bucket), ()):
        ran = ask.run("find", topic, *where, "--key", "flight-3")
        assert ran.exit_code == 1
        assert "--scan" in ran.output
    told = ask.find(topic, "--key", "flight-3", "--scan")
    assert places(told) == [(0, 3), (0, 53), (0, 103)]


def test_records_of_a_topic_that_was_deleted_are_not_those_of_the_new_one(ask: Asker) -> None:
    topic = ask.topic("again", "--set", "index.keys=true")
    ask.produce(topic, range(60))
    ask.seal(topic)
    assert ask.run("topics", "delete", topic, "--yes").exit_code == 0
    eventually_sync(lambda: ask.run("topics", "describe", topic).exit_code != 0, 30)
    ask.topic(topic, "--set", "index.keys=true")
    ask.produce(topic, range(1_000, 1_010))
    # What they read differs for as long as objects of the deleted one are in the bucket.
    for where in (("--bucket", ask.bucket), ()):
        ran = ask.run("find", topic, *where, "--key", "flight-3", "--output", "json")
        assert ran.exit_code == 0, ran.output
        assert [one["value"] for one in json.loads(ran.stdout)["records"]] == ["1003"], ran.output


def test_what_is_deleted_between_the_listing_and_the_read_is_listed_again(
    ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ask.topic("gone", "--set", "index.keys=true")
    ask.produce(topic, range(10))
    ask.seal(topic)
    read, gone = Catalog.manifest_of, ["once"]

    async def vanishing(self: Catalog, segment: CommittedSegment) -> Manifest:
        if gone:
            raise NotFound(f"{gone.pop()}: it is not there")
        return await read(self, segment)

    monkeypatch.setattr(Catalog, "manifest_of", vanishing)
    assert places(ask.find(topic, "--key", "flight-3")) == [(0, 3)]
    assert not gone


def test_deleted_records_are_not_found(ask: Asker) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = ask.topic("trimmed", "--set", "index.keys=true")
    ask.produce(topic, range(100))
    ask.seal(topic)
    kafka = AdminClient({"bootstrap.servers": ask.node.bootstrap})
    for answer in kafka.delete_records([TopicPartition(topic, 0, 20)]).values():
        answer.result(30)
    assert places(ask.find(topic, "--key", "flight-3")) == [(0, 53)]


@pytest.mark.fault("client-searches-key-topic")
def test_a_range_that_is_mounted_by_hand_is_searched_under_its_name(ask: Asker) -> None:
    topic = ask.topic("mounted", "--set", "index.keys=true")
    ask.produce(topic, range(60))
    ask.seal(topic)
    when = ("--topic", topic, "--from", "2020-01-01", "--until", "2100-01-01")
    assert ask.run("mounts", "create", "past", *when).exit_code == 0
    ask.produce(topic, range(60, 120))
    assert places(ask.find(topic, "--key", "flight-3")) == [(0, 3), (0, 53), (0, 103)]
    told = ask.page(f"{topic}@past", key="flight-3")
    assert (places(told), told["cursor"], told["segments"]) == ([(0, 3), (0, 53)], None, 1)
    assert (told["led_elsewhere"], told["not_searched"]) == ([], [])


def test_the_node_notifies_the_bucket_and_doctor_verify_and_dump_know_key_indexes(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    with NodeProcess(tmp_path / "data", str(bucket), SETTINGS) as node:
        ask = Asker(node, str(bucket))
        topic = ask.topic("told", "--set", "index.keys=true")
        ask.produce(topic, range(10))
        ask.seal(topic)
        ran = ask.run("find", topic, "--key", "flight-3")
        assert ran.exit_code == 0, ran.output
        assert "1 record; searched: 1 segment in the bucket (2 range reads), 0 offsets on nodes" in ran.output
        assert ask.run("verify", topic).exit_code == 0
        assert ask.run("doctor", str(bucket)).exit_code == 0
        (manifest,) = bucket.rglob("*.manifest")
        (run,) = bucket.rglob("*.keys")
        assert run.name in ask.run("dump", str(manifest), "--output", "json").stdout

        body = run.read_bytes()
        run.write_bytes(body[:-1] + b"x")
        assert ask.run("find", topic, "--key", "flight-3").exit_code == 1, "damage is an error, never a missing record"
        for command in (("verify", topic), ("doctor", str(bucket))):
            ran = ask.run(*command)
            assert ran.exit_code == 1
            assert "key index" in ran.output
        run.unlink()
        ran = ask.run("doctor", str(bucket))
        assert ran.exit_code == 1
        assert "missing" in ran.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "which key"),
        (["--key", "a", "--key-base64", "YQ=="], "which key"),
        (["--key-base64", "?"], "not base64"),
        (["--key", "a"], "no topic"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(ask: Asker, words: list[str], reason: str) -> None:
    ran = ask.run("find", "absent", "--bucket", ask.bucket, *words)
    assert ran.exit_code == 2
    assert reason in ran.output
    assert ask.run("find", "absent", *words).exit_code == 2


def test_a_key_that_is_too_long_to_ask_a_node_for_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="a key of 20000 bytes is too long to ask a node for"):
        AdminClient("127.0.0.1:1").find("flights", b"k" * 20_000)


def test_what_is_covered_is_not_read_again() -> None:
    assert without(Bounds(0, 100), []) == [(0, 100)]
    assert without(Bounds(10, 100), [(50, 60), (0, 20)]) == [(20, 50), (60, 100)]
    assert without(Bounds(10, 100), [(0, 40), (40, 200)]) == []
    assert without(Bounds(10, 10), []) == []
    assert without(Bounds(10, 30), [(20, 25), (40, 50)]) == [(10, 20), (25, 30)]
