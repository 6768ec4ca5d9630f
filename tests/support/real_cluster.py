"""A cluster of real processes, run by `stratalog cluster start`: three nodes, meta services, members of etcd.

Parts are called by their names (`node-1`). They are killed, paused, stopped, started again, and a node's disk is wiped;
they reach each other through `wires`, which can be cut and restored. `support.history` judges the answers that clients
got meanwhile. Blocking; everything has a limit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.admin import NewTopic

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SegmentInfo
from stratalog.model.errors import StratalogError
from stratalog_cli.cluster.access import IN_THE_OPEN
from stratalog_cli.cluster.control import ask
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.health import all_health, troubles
from stratalog_cli.cluster.plan import MAX_NODES, Asked, Part, Plan, Role, first_plan
from support.cluster_ports import free_block
from support.disk_faults import DiskFaults, FaultyDirectory
from support.waiting import eventually_sync
from support.wires import Wires

_AS_INSTALLED = str(Path(__file__).with_name("as_installed"))
_WIRED_PARTS = str(Path(__file__).with_name("wired_parts.py"))
_START_S, _CALM_S = 90, 40
SEGMENT_BYTES = 65_536
SETTINGS = {
    "node.lease.ms": 1_000,
    "log.segment.bytes": SEGMENT_BYTES,
    "remote.upload.interval.ms": 1_000,
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}


class RealCluster:
    def __init__(
        self, folder: Path, settings: dict[str, object] | None = None, *, faults: DiskFaults | None = None
    ) -> None:
        """`faults`: of the nodes' disks."""
        self.faults = faults
        self.directory = ClusterDirectory(folder / "cluster")
        self._said = folder / "cluster.log"
        self.bucket = folder / "bucket"
        self.retired: set[str] = set()
        """Nodes that have left permanently; the test notes them."""
        base, table = free_block(), folder / "wires.json"
        assigned = [f"{key}={value}" for key, value in (SETTINGS | (settings or {})).items()]
        # A part's admin port is for who looks at it from outside.
        listens = {
            one.name: [at for what, at in one.addresses.items() if what != "admin"] for one in _all_parts_ever(base)
        }
        self.wires = Wires(listens, self.directory.path / "cluster.json")
        table.write_text(json.dumps(self.wires.through), encoding="utf-8")
        command = [sys.executable, "-P", _WIRED_PARTS, "cluster", str(table), str(self.directory.path), str(base)]
        command += [str(self.bucket), *assigned]
        with self._said.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": _AS_INSTALLED} | ({} if faults is None else faults.environment),
                start_new_session=True,
            )
        eventually_sync(lambda: "\nready bootstrap=" in self.said() or self._process.poll() is not None, _START_S)
        assert self._process.poll() is None, self.said()

    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def close(self) -> None:
        """In order; `kill -9` of who runs it takes the rest along."""
        self.bring_store_back()
        if self.faults is not None:
            self.faults.heal()
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self.wires.close()

    # Roles ------------------------------------------------------------------------------------------------
    @property
    def members(self) -> list[str]:
        """The nodes that have not left."""
        return [name for name in self.names(Role.NODE) if name not in self.retired]

    @property
    def meta_urls(self) -> str:
        return ",".join(f"http://{part.addresses['http']}" for part in self.plan.of(Role.META))

    @property
    def plan(self) -> Plan:
        return self.directory.read()[0]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.plan.part(name).main_address for name in self.members)

    def names(self, role: Role) -> list[str]:
        return [part.name for part in self.plan.of(role)]

    def pid(self, name: str) -> int | None:
        return self.directory.read()[1].get(name)

    def down(self) -> list[str]:
        plan, pids = self.directory.read()
        return [part.name for part in plan.parts if part.name not in pids]

    def admin(self, name: str) -> AdminClient:
        return AdminClient(self.plan.part(name).addresses["admin"], timeout_s=5)

    def shards(self, topic: str, *, but: str | None = None) -> dict[int, tuple[str | None, set[str]]]:
        """Leader and in-sync replicas of each shard, as known by a living node other than `but`."""
        for name in self.names(Role.NODE):
            if name != but and self.pid(name) is not None:
                with suppress(StratalogError):
                    return {
                        one.shard: (
                            None if one.leader is None else f"node-{one.leader}",
                            {f"node-{number}" for number in one.isr},
                        )
                        for one in self.admin(name).topic(topic).shards
                    }
        raise AssertionError("no node answers")

    def segments(self, topic: str) -> list[SegmentInfo]:
        """As their leaders know them, and as any node does where there is none; by shard, the oldest first."""
        told: list[SegmentInfo] = []
        for name in self.names(Role.NODE):
            if self.pid(name) is not None:
                with suppress(StratalogError):
                    told += self.admin(name).segments(topic)
        best = {(one.shard, one.epoch): one for one in sorted(told, key=lambda one: one.leader == one.node_id)}
        return [segment for _, segment in sorted(best.items())]

    def written_now(self, topic: str) -> dict[int, tuple[int, int]]:
        """Epoch and committed bytes of the segment that is written, by shard."""
        return {one.shard: (one.epoch, one.size_bytes) for one in self.segments(topic)}

    def leader_of(self, topic: str, shard: int = 0) -> str:
        found = self.shards(topic)[shard][0]
        assert found is not None
        return found

    def until_others_lead(self, topic: str, cut_off: str) -> None:
        """Of no shard do those who are not cut off think that this one leads it."""
        eventually_sync(
            lambda: all(leader not in (None, cut_off) for leader, _ in self.shards(topic, but=cut_off).values()), 30
        )

    def page(self, path: str) -> Any:
        """The data of the cluster UI; None while no instance answers."""
        with suppress(OSError), urllib.request.urlopen(f"http://{self.plan.page_address}{path}", timeout=10) as answer:
            return json.load(answer)
        return None

    def others(self, name: str) -> list[str]:
        """The nodes and meta services beside this one."""
        return [other for other in (*self.names(Role.NODE), *self.names(Role.META)) if other != name]

    def leading(self, role: Role) -> str:
        """The leader of the meta service, or of etcd."""
        found: list[str] = []

        def is_one() -> bool:
            plan, pids = self.directory.read()
            health = all_health([part for part in plan.of(role) if part.name in pids])
            found[:] = [name for name, one in health.items() if one.leads]
            return len(found) == 1

        eventually_sync(is_one, 30)
        return found[0]

    # What befalls them ------------------------------------------------------------------------------------------
    def kill(self, *names: str) -> None:
        """SIGKILL to all of them before any is waited for."""
        for name in names:
            self.signal(name, signal.SIGKILL)
        eventually_sync(lambda: all(self.pid(name) is None for name in names), 20)

    def signal(self, name: str, number: signal.Signals) -> None:
        pid = self.pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, name: str) -> None:
        self._ask({"do": "stop-part", "part": name})

    def start(self, *names: str) -> None:
        for name in names:
            self._ask({"do": "start-part", "part": name})

    def add(self) -> str:
        """One more node."""
        self._ask({"do": "add-node"})
        return self.names(Role.NODE)[-1]

    def wipe(self, name: str) -> None:
        """A new disk for a node that is down."""
        assert self.pid(name) is None
        shutil.rmtree(self.directory.path / name)

    def disk_of(self, name: str) -> FaultyDirectory | None:
        """None: the disks of this cluster have no faults."""
        return None if self.faults is None else self.faults.of(self.directory.path / name)

    def take_store_away(self) -> None:
        """Where the bucket was nothing can be read, written or made, until `bring_store_back`."""
        if not self._bucket_away.exists():
            self.bucket.rename(self._bucket_away)
            self.bucket.touch()

    def bring_store_back(self) -> None:
        """As it was. Does nothing where it is there."""
        if self._bucket_away.exists():
            self.bucket.unlink(missing_ok=True)
            self._bucket_away.rename(self.bucket)

    @property
    def _bucket_away(self) -> Path:
        return self.bucket.with_name("bucket-away")

    def _ask(self, request: dict[str, Any]) -> None:
        ask(self.directory.path, request, lambda _: None, timeout_s=_START_S)

    # Calm -------------------------------------------------------------------------------------------------------
    def heal(self) -> None:
        """Everything runs, and nothing needs attention but what was given up."""
        self.wires.restore()
        self.bring_store_back()
        for part in self.plan.parts:
            self.signal(part.name, signal.SIGCONT)
        self.start(*self.down())
        self.until_calm()

    def until_calm(self) -> None:

        def is_calm() -> bool:
            plan, pids = self.directory.read()
            told = troubles([part for part in plan.of(Role.META) if part.name in pids], IN_THE_OPEN)
            left[:] = ["nobody answers"] if told is None else list(told)
            return not left

        left: list[object] = []
        try:
            eventually_sync(is_calm, _CALM_S)
        except AssertionError:
            raise AssertionError(f"not calm after {_CALM_S} s: {json.dumps(left[:5])}, down: {self.down()}") from None

    def make_topic(self, name: str, shards: int, settings: dict[str, str] | None = None, *, replicas: int = 3) -> None:
        config = {"min.insync.replicas": str(min(2, replicas))} | (settings or {})
        admin = KafkaAdmin({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(name, shards, replicas, config=config)])[name].result(30)
        eventually_sync(lambda: all(len(isr) == replicas for _, isr in self.shards(name).values()), 20)


def _all_parts_ever(port_base: int) -> tuple[Part, ...]:
    """Those of the beginning, and the nodes that may be added."""
    plan = first_plan(Asked(port_base=port_base), has_etcd=True)
    while len(plan.of(Role.NODE)) < MAX_NODES:
        plan, _ = plan.with_one_more_node()
    return plan.parts


@contextmanager
def real_cluster(
    folder: Path, settings: dict[str, object] | None = None, *, faults: DiskFaults | None = None
) -> Iterator[RealCluster]:
    cluster = RealCluster(folder, settings, faults=faults)
    try:
        yield cluster
    finally:
        cluster.close()
