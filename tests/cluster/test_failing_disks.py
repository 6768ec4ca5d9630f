"""One node's disk fails, fills up, hangs or is slow: its shards go to replicas whose disks work, and nothing is lost.

Real nodes, whose writes and flushes a preloaded library lets fail (`support/disk_faults.py`). Every topic has three
replicas and `min.insync.replicas=2`, and is written to with acks=all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Snapshot
from stratalog.model.segment import Segment
from stratalog_cli.entry import build_app
from support.disk_faults import EIO, ENOSPC, HANG, NO_COMPILER, DiskFaults, FaultyDirectory, has_compiler
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.topics import produce, read
from support.waiting import eventually_sync

pytestmark = pytest.mark.skipif(not has_compiler(), reason=NO_COMPILER)
META_SETTINGS = ("node.lease.ms=1000", "recovery.patience.ms=1500")
NODE_SETTINGS = {"disk.stall.ms": 2_000, "flush.interval.ms": 200}
LEADER_S = 20.0
"""A new leader is there long before that, and not at all where anything waits for the disk."""


class Nodes:
    """Some around one meta service, at first three."""

    def __init__(self, folder: Path, node_ids: tuple[int, ...] = (1, 2, 3), **settings: int) -> None:
        self._folder = folder
        self._settings = NODE_SETTINGS | {key.replace("_", "."): value for key, value in settings.items()}
        self.faults = DiskFaults(folder)
        self.meta = MetaProcess(folder, "meta", "--data", str(folder / "meta"), settings=META_SETTINGS).start()
        self.by_id: dict[int, NodeProcess] = {}
        for node_id in node_ids:
            self.add(node_id)

    def add(self, node_id: int) -> None:
        self.by_id[node_id] = NodeProcess(
            self._folder / f"node-{node_id}",
            settings=self._settings,
            environment=self.faults.environment,
            verb=("node", "start"),
            arguments=("--meta", self.meta.url, "--id", str(node_id)),
        ).start()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.by_id.values())

    def disk_of(self, node_id: int) -> FaultyDirectory:
        return self.faults.of(self.by_id[node_id].data_dir)

    def snapshot(self) -> Snapshot:
        async def read() -> Snapshot:
            client = HttpMetaClient(self.meta.url)
            try:
                return await client.snapshot()
            finally:
                await client.close()

        return asyncio.run(read())

    def make_topic(self, name: str, **settings: str) -> ShardKey:
        config = {"min.insync.replicas": "2"} | {key.replace("_", "."): value for key, value in settings.items()}
        (key,) = self.make_shards(name, 1, config)
        self.write(name, "before")
        return key

    def make_shards(self, name: str, count: int, config: dict[str, str]) -> list[ShardKey]:
        """One replica on each node."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(name, count, len(self.by_id), config=config)])[name].result(30)
        (topic,) = [one for one in self.snapshot().topics if one.name == name]
        return [ShardKey(topic.topic_id, number) for number in range(count)]

    def write(self, topic: str, what: str, count: int = 20) -> None:
        """Each record is acknowledged by all that are in sync."""
        produce(
            self.bootstrap,
            topic,
            (f"{what}-{number}".encode() for number in range(count)),
            enable_idempotence=True,
            patience_s=90.0,
            socket_timeout_ms=10_000,
        )

    def active(self, key: ShardKey) -> Segment:
        (shard,) = [shard for shard in self.snapshot().shards if shard.key == key]
        return shard.segments[-1]

    def leader(self, key: ShardKey) -> int:
        eventually_sync(lambda: self.active(key).leader is not None, LEADER_S)
        leader = self.active(key).leader
        assert leader is not None
        return leader

    def until_another_leads(self, key: ShardKey, node_id: int) -> None:
        eventually_sync(lambda: self.active(key).leader not in (None, node_id), LEADER_S)

    def until_all_is_well(self, key: ShardKey) -> None:
        for node in self.by_id.values():
            if not node.is_running:
                node.start()
        eventually_sync(lambda: all(node.can_write and node.is_alive for node in self.snapshot().nodes), 60)
        eventually_sync(lambda: {*self.active(key).isr} == {1, 2, 3}, 60)

    def close(self) -> None:
        self.faults.heal()
        for node in self.by_id.values():
            node.kill()
        self.meta.kill()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    running = Nodes(tmp_path_factory.mktemp("disks"))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def key(nodes: Nodes, request: pytest.FixtureRequest) -> Iterator[ShardKey]:
    """A topic of its own for each test, named after it; all of it is read when the test ends, and all is well again."""
    name = topic_of(request)
    key = nodes.make_topic(name, **getattr(request, "param", {}))
    yield key
    nodes.faults.heal()
    nodes.until_all_is_well(key)
    nodes.write(name, "after")
    found = read(nodes.bootstrap, name, 60)
    assert [(message.value() or b"").decode() for message in found] == [
        f"{what}-{number}" for what in ("before", "meanwhile", "after") for number in range(20)
    ]


def topic_of(request: pytest.FixtureRequest) -> str:
    return "".join(one if one.isalnum() else "-" for one in request.node.name.removeprefix("test_"))


@pytest.mark.fault("leader-disk-fails-write")
@pytest.mark.parametrize("fault", [EIO, ENOSPC, HANG], ids=["EIO", "ENOSPC", "hang"])
def test_a_leader_whose_writes_fail_hands_its_shards_over(
    nodes: Nodes, key: ShardKey, fault: int, request: pytest.FixtureRequest
) -> None:
    leader = nodes.leader(key)
    nodes.disk_of(leader).write = fault
    nodes.write(topic_of(request), "meanwhile")
    assert nodes.leader(key) != leader
    assert leader not in {segment.leader for segment in map(nodes.active, shard_keys(nodes))}


@pytest.mark.fault("appends-file-fail-rest")
def test_a_leader_that_cannot_write_to_one_file_hands_over_that_shard_alone(
    nodes: Nodes, key: ShardKey, request: pytest.FixtureRequest
) -> None:
    """As with a bad sector: the rest of the disk is well."""
    leader = nodes.leader(key)
    (folder,) = nodes.by_id[leader].data_dir.rglob(str(key.topic_id))
    nodes.faults.of(folder).write = EIO
    nodes.write(topic_of(request), "meanwhile")
    assert nodes.leader(key) != leader
    assert all(node.can_write for node in nodes.snapshot().nodes)


FLUSHED = {"flush_policy": "fsync"}


@pytest.mark.fault("leader-disk-fails-write")
@pytest.mark.parametrize("key", [{}, FLUSHED], indirect=True, ids=["replicated", "fsync"])
def test_a_leader_whose_flushes_hang_hands_its_shards_over_and_says_why_it_is_not_ready(
    nodes: Nodes, key: ShardKey, request: pytest.FixtureRequest
) -> None:
    leader = nodes.leader(key)
    nodes.disk_of(leader).flush = HANG
    nodes.write(topic_of(request), "meanwhile")
    nodes.until_another_leads(key, leader)
    eventually_sync(lambda: [node.node_id for node in nodes.snapshot().nodes if not node.can_write] == [leader], 20)
    node = nodes.by_id[leader]
    shown = CliRunner().invoke(build_app(), ["status", "--admin", node.admin])
    assert shown.exit_code == 1 and "the data disk makes no progress" in shown.output
    assert node.metrics()["stratalog_disk_health_is_stuck"] == 1


@pytest.mark.fault("disk-follower-hangs-takes")
@pytest.mark.parametrize("key", [{}, FLUSHED], indirect=True, ids=["replicated", "fsync"])
@pytest.mark.parametrize("how", ["hang", "slow"])
def test_a_shard_gets_a_leader_though_the_disk_of_a_replica_hangs_or_is_slow(
    nodes: Nodes, key: ShardKey, how: str, request: pytest.FixtureRequest
) -> None:
    leader = nodes.leader(key)
    follower = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    disk = nodes.disk_of(follower)
    if how == "hang":
        disk.flush = HANG
    else:
        disk.slow_ms = 4_000
    nodes.by_id[leader].kill()
    nodes.until_another_leads(key, leader)
    nodes.by_id[leader].start()
    nodes.write(topic_of(request), "meanwhile")


@pytest.mark.fault("flushes-slow-many-seals")
def test_shards_take_writes_after_a_failover_while_flushes_of_other_copies_hang(tmp_path: Path) -> None:
    """The leader of many shards dies. Their new leaders need node 3, where periodic flushes of another topic's copies
    hang in every place that such work has: what clients wait for there does not queue behind them."""
    nodes = Nodes(tmp_path, (2, 3), disk_stall_ms=3_600_000)
    try:
        quiet = nodes.make_shards("quiet", 32, {})
        nodes.add(1)
        shards = nodes.make_shards("busy", 40, {"min.insync.replicas": "2"})
        followed = [key.shard for key in quiet if nodes.active(key).leader == 2]
        write_to_each(nodes, "quiet", followed)
        write_to_each(nodes, "busy", range(40))
        (folder,) = nodes.by_id[3].data_dir.rglob(str(quiet[0].topic_id))
        flushes = nodes.faults.of(folder)
        flushes.flush = HANG
        write_to_each(nodes, "quiet", followed)
        eventually_sync(lambda: flushes.hanging >= 8, 60)
        led = [key for key in shards if nodes.active(key).leader == 1]
        assert led
        nodes.by_id[1].kill()
        write_to_each(nodes, "busy", range(40))
        assert flushes.hanging >= 8
        assert all(nodes.active(key).leader in (2, 3) for key in led)
    finally:
        nodes.close()


def write_to_each(nodes: Nodes, topic: str, shards: Iterable[int]) -> None:
    """One record, which all that are in sync have when this returns."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "enable.idempotence": True, "log_level": 0})
    for shard in shards:
        producer.produce(topic, b"x", partition=shard, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(120) == 0
    assert not any(failed), failed


def shard_keys(nodes: Nodes) -> list[ShardKey]:
    return [shard.key for shard in nodes.snapshot().shards]
