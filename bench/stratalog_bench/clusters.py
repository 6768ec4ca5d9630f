"""Nodes and a meta service of our own, and as many Kafka brokers, three each unless a cell says otherwise: started,
measured, one of them killed and back, others added.

The meta service is one process on RocksDB: without a second machine three etcd members would show their fsyncs on the
one disk, and Kafka's controllers do not flush either. Nodes know a lease of 2 s, the default. Kafka's nodes are broker
and controller in one.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from stratalog_bench import kafka_peer
from stratalog_bench.context import Bench
from stratalog_bench.load_tool import LoadFailed
from stratalog_bench.processes import Server, cpu_seconds, free_port, start

NODES = 3
MOST_NODES = 6
REPLICAS = 3
NODE_SETTINGS = (
    "metrics.listen=127.0.0.1:0",
    "log.level=warning",
    # Deleted topics give their pages back at once, as with the Kafka peer.
    "remote.delete.delay.ms=1000",
    "default.replication.factor=3",
    "min.insync.replicas=2",
)
KAFKA_SETTINGS = {"min.insync.replicas": "2", "default.replication.factor": "3"}


@dataclass(slots=True)
class Cluster:
    """`nodes`, by id, are measured; `meta`, if it is a process of its own, is measured separately."""

    name: str
    nodes: dict[int, Server]
    again: Callable[[int], Server]
    """Starts a node: one that was killed, on its data and its port, or one more."""
    meta: Server | None = None
    meta_admin: str = ""
    """HOST:PORT of its metrics."""

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    @property
    def pids(self) -> str:
        return ",".join(str(node.pid) for node in self.nodes.values())

    @property
    def processes(self) -> str:
        return ",".join(f"{node_id}={node.pid}" for node_id, node in self.nodes.items())

    def meta_cpu_s(self) -> float:
        return cpu_seconds(self.meta.pid) if self.meta is not None else 0.0

    def start_again(self, node_id: int) -> None:
        self.nodes[node_id].kill()
        self.nodes[node_id] = self.again(node_id)

    def add(self, node_id: int) -> None:
        self.nodes[node_id] = self.again(node_id)

    def counted(self, name: str, *node_ids: int) -> float:
        """A metric of our nodes, all of them by default, together."""
        return sum(scraped(admin_of(self.nodes[one])).get(name, 0.0) for one in node_ids or self.nodes)

    def stop(self) -> None:
        for server in (*self.nodes.values(), *filter(None, [self.meta])):
            server.stop()


def admin_of(server: Server) -> str:
    """HOST:PORT of the admin port, from a Stratalog process's output; empty if it printed none."""
    found = re.search(r"admin (\S+?),", server.log.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found is not None else ""


def scraped(admin: str) -> dict[str, float]:
    """The metrics there, by their names."""
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] != "#"}


def start_stratalog(bench: Bench, *settings: str, nodes: int = NODES, bucket: str | None = None) -> Cluster:
    folder = bench.new_folder("cluster")
    folder.mkdir()
    store = ["--bucket", bucket] if bucket is not None else []
    meta_port = free_port()
    command = [str(bench.executable), "meta", "start", "--listen", f"127.0.0.1:{meta_port}"]
    command += ["--data", str(folder / "meta"), *store]
    command += ["--set", "metrics.listen=127.0.0.1:0", "--set", "log.level=warning"]
    meta = bench.keep(
        start("stratalog-meta", command, address=f"127.0.0.1:{meta_port}", log=folder / "meta.log", ready="ready")
    )
    ports = {node_id: free_port() for node_id in range(1, MOST_NODES + 1)}

    def node(node_id: int) -> Server:
        data = folder / f"node-{node_id}"
        address = f"127.0.0.1:{ports[node_id]}"
        command = [str(bench.executable), "node", "start", "--id", str(node_id), "--data", str(data), *store]
        command += ["--listen", address, "--meta", f"http://{meta.address}"]
        for setting in (*NODE_SETTINGS, *settings):
            command += ["--set", setting]
        log = folder / f"node-{node_id}.{time.monotonic_ns()}.log"
        server = start(f"stratalog-{node_id}", command, address=address, log=log, ready="ready")
        server.directory = data
        return bench.keep(server)

    begun = {node_id: node(node_id) for node_id in range(1, nodes + 1)}
    return Cluster("stratalog", begun, node, meta, admin_of(meta))


def start_kafka(bench: Bench, nodes: int = NODES, more: int = 0) -> Cluster:
    """`more`: nodes that can be added later. They are of the quorum from the beginning, which has its majority
    without them."""
    folder = bench.new_folder("kafka-cluster")
    jars = bench.kafka_jars
    places = {node_id: folder / f"node-{node_id}" for node_id in range(1, nodes + more + 1)}
    ports = dict(zip(places, kafka_peer.prepare_several(jars, list(places.values()), KAFKA_SETTINGS), strict=True))

    def again(node_id: int) -> Server:
        return bench.keep(kafka_peer.run(jars, places[node_id], ports[node_id]))

    first = list(places)[:nodes]
    begun = kafka_peer.run_several(jars, {places[node_id]: ports[node_id] for node_id in first})
    return Cluster("kafka", dict(zip(first, map(bench.keep, begun), strict=True)), again)


def start_both(bench: Bench) -> dict[str, Cluster]:
    """As far as they can run here. Kafka's is warmed up: a JVM gets faster for minutes, by many small requests too."""
    found: dict[str, Cluster] = {}
    if bench.has_node():
        found["stratalog"] = start_stratalog(bench)
    if bench.has_kafka():
        found["kafka"] = start_kafka(bench)
        _warm_up(bench, found["kafka"])
    return found


def _warm_up(bench: Bench, cluster: Cluster) -> None:
    topic = make_topic(bench, cluster, 6, "warm-up")
    common = {"b": cluster.address, "topic": topic}
    for size, seconds in ((1024, 20.0), (16384, 8.0)):
        bench.load.run("raw-produce", size=size, secs=seconds * bench.scale, warm=0.1, spread=True, acks=-1, **common)
    bench.load.run("produce", acks="all", n=int(60_000 * bench.scale), **common)
    delete_topic(bench, cluster, topic)


def make_topic(
    bench: Bench, cluster: Cluster, partitions: int, name: str, *, replicas: int = REPLICAS, **config: object
) -> str:
    """Creates a topic with a new name and returns it, once there are as many nodes as replicas."""
    topic = f"{name}-{time.monotonic_ns()}"
    settings = ",".join(f"{key.replace('_', '.')}={value}" for key, value in config.items())
    deadline = time.monotonic() + 60
    while True:
        try:
            bench.load.run(
                "topic", b=cluster.address, topic=topic, partitions=partitions, replicas=replicas, config=settings
            )
            return topic
        except LoadFailed as error:
            if time.monotonic() > deadline or "REPLICATION_FACTOR" not in str(error):
                raise
            time.sleep(0.2)


def delete_topic(bench: Bench, cluster: Cluster, topic: str) -> None:
    bench.load.run("topic", b=cluster.address, topic=topic, delete=True)
