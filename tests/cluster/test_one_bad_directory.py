"""Three nodes as processes, all killed; one comes back first, with a damaged file or an older state of its directory.
The good copies decide, whatever the first one says. And a copy of a living node's directory is not let in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from support.meta_process import MetaProcess
from support.node_process import NodeFailed, NodeProcess
from support.waiting import eventually_sync

NODES = (1, 2, 3)


class ThreeNodes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topic = ""
        self.meta = MetaProcess(folder, "meta", "--data", str(folder / "meta"), settings=("node.lease.ms=1000",))
        self.nodes = {number: self.node(number, folder / f"node-{number}") for number in NODES}

    def node(self, number: int, directory: Path) -> NodeProcess:
        arguments = ("--meta", self.meta.url, "--id", str(number))
        return NodeProcess(directory, verb=("node", "start"), arguments=arguments)

    def make_topic(self, name: str, replicas: int, **settings: str) -> None:
        """Which all that follows is about."""
        self.topic = name
        config = {name.replace("_", "."): value for name, value in settings.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(name, 1, replicas, config=config)]).values():
            made.result(30)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values() if node.is_running)

    def produce(self, first: int, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "batch.num.messages": 20})
        failed: list[object] = []
        for number in range(first, first + count):
            producer.produce(
                self.topic,
                b"%d" % number,
                partition=0,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(60) == 0 and failed == []

    def all_records(self) -> list[int]:
        """From the first to the end that the leader names."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none", "enable.auto.commit": False})
        partition = TopicPartition(self.topic, 0, 0)
        consumer.assign([partition])
        ends: list[int] = []

        def has_end() -> bool:
            try:
                ends[:] = consumer.get_watermark_offsets(partition, timeout=5)
            except Exception:
                return False  # it has no leader yet
            return True

        eventually_sync(has_end, timeout=60)
        found: list[int] = []

        def has_all() -> bool:
            for message in consumer.consume(500, timeout=0.5):
                if message.error() is None:
                    found.append(int(message.value() or b""))
            return len(found) >= ends[1]

        eventually_sync(has_all, timeout=60)
        consumer.close()
        return found

    def leader(self) -> int:
        topic = (
            AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(self.topic, timeout=30).topics[self.topic]
        )
        return int(topic.partitions[0].leader)

    def start(self, *numbers: int) -> None:
        with ThreadPoolExecutor() as starting:
            list(starting.map(lambda number: self.nodes[number].start(), numbers))

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def newest_file(self, number: int) -> Path | None:
        """With batches of the topic: its segments are the last that were written."""
        files = list(self.nodes[number].data_dir.rglob("*.seg"))
        return max(files, key=lambda path: path.stat().st_mtime_ns, default=None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    cluster = ThreeNodes(tmp_path_factory.mktemp("three"))
    cluster.meta.start()
    yield cluster
    cluster.kill_all()
    cluster.meta.kill()


@pytest.fixture
def three(cluster: ThreeNodes) -> ThreeNodes:
    """All of them run."""
    cluster.start(*(number for number in NODES if not cluster.nodes[number].is_running))
    return cluster


@pytest.mark.fault("nodes-killed-bit-flips")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
def test_one_flipped_bit_takes_nothing_from_two_good_copies(three: ThreeNodes, policy: str) -> None:
    three.make_topic(f"flipped-{policy}", 3, min_insync_replicas="2", flush_policy=policy)
    three.produce(0, 2_000)
    three.kill_all()
    path = three.newest_file(3)
    assert path is not None
    data = bytearray(path.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    data[SEGMENT_HEADER_BYTES + (end - SEGMENT_HEADER_BYTES) // 2] ^= 0x04
    path.write_bytes(data)
    three.start(3)
    assert "a copy is damaged" in three.nodes[3].log_path.read_text()
    three.start(1)
    assert three.all_records() == list(range(2_000))
    three.start(2)
    three.produce(2_000, 100)
    assert three.all_records() == list(range(2_100))


@pytest.mark.fault("older-copy-node-directory")
def test_an_older_state_of_a_directory_takes_nothing_from_two_good_copies(three: ThreeNodes) -> None:
    three.make_topic("put-back", 3, min_insync_replicas="2")
    three.produce(0, 1_000)
    directory = three.nodes[3].data_dir
    shutil.copytree(directory, three.folder / "backup")
    three.produce(1_000, 1_000)
    three.kill_all()
    shutil.rmtree(directory)
    shutil.copytree(three.folder / "backup", directory)
    three.start(3)
    assert "an older state of it" in three.nodes[3].log_path.read_text()
    three.start(1)
    assert three.all_records() == list(range(2_000))
    three.start(2)
    three.produce(2_000, 100)
    assert three.all_records() == list(range(2_100))


@pytest.mark.fault("process-killed-started-once")
def test_all_nodes_were_killed_and_one_good_copy_serves_at_once(three: ThreeNodes) -> None:
    three.make_topic("killed", 3, min_insync_replicas="2")
    three.produce(0, 2_000)
    three.kill_all()
    three.start(2)
    assert three.all_records() == list(range(2_000))


@pytest.mark.fault("copy-living-node-directory")
def test_a_copy_of_the_directory_of_a_living_node_is_not_let_in(three: ThreeNodes) -> None:
    three.make_topic("cloned", 1)
    three.produce(0, 100)
    leader = three.leader()
    original = three.nodes[leader]
    clone = three.node(leader, three.folder / "clone")
    shutil.copytree(original.data_dir, clone.data_dir)
    three.produce(100, 200)
    with pytest.raises(NodeFailed, match="one of the two is a copy"):
        clone.start()
    assert original.is_running
    assert three.all_records() == list(range(300))
    original.kill_and_restart()
    assert three.all_records() == list(range(300))
