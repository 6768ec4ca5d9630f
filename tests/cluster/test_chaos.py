"""Parts of a cluster are killed, paused, cut off, stopped and wiped at random under real clients, and nothing is lost.

`make chaos SECONDS=600`; the seed of a run is printed, `ARGS=--chaos-seed=N` strikes the same blows again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from stratalog.admin_api.models import SegmentInfo
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog_cli.cluster.plan import Role
from support.chaos import DISKS, Chaos, What, blows
from support.cluster_traffic import Traffic
from support.disk_faults import NO_COMPILER, DiskFaults, has_compiler
from support.etcd_server import NO_ETCD, etcd_binary
from support.leaving_scenes import ROUND, LeavingScenes, SceneKind, scenes
from support.real_cluster import RealCluster, real_cluster
from support.topics import produce
from support.waiting import eventually_sync

SHARDS = 4
AWAY_S, STALL_S = 60.0, 15.0
CHUNK_BYTES = 512 << 10
LONG_RUN_S = 600
"""In so long a run the leader of the meta service dies at each step of a retirement."""


@pytest.fixture
def write_line(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """To whoever watches, at once."""

    def write(line: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    return write


@pytest.mark.fault("parts-killed-paused-cut")
@pytest.mark.slow
@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.timeout(0)  # as long as was asked for
def test_nothing_is_lost_whatever_befalls_the_parts(
    tmp_path: Path, chaos_seconds: int, chaos_seed: int, write_line: Callable[[str], None]
) -> None:
    write_line(f"\nseed {chaos_seed}, {chaos_seconds} s")
    faults = DiskFaults(tmp_path) if has_compiler() else None
    if faults is None:
        write_line(f"without faults of disks: {NO_COMPILER}")
    with real_cluster(tmp_path, {"disk.stall.ms": 1_500, "recovery.patience.ms": 1_000}, faults=faults) as cluster:
        cluster.make_topic("chaos", SHARDS)
        traffic = Traffic(cluster.bootstrap, "chaos", SHARDS, members=2)
        chaos = Chaos(cluster, write_line)
        try:
            traffic.flows()
            until = time.monotonic() + chaos_seconds
            for blow in blows(chaos_seed):
                if time.monotonic() > until:
                    break
                chaos.strike(blow)
            chaos.wait_until_healthy()
            traffic.flows()
            write_line(f"{chaos.count} blows, {traffic.judge():,} records acknowledged: all there, once and in order")
            write_line(f"and nothing of {sum(traffic.committed.told.values()):,} committed offsets went back")
        finally:
            traffic.end()


@pytest.mark.fault("whole-meta-service-unavailable")
@pytest.mark.slow
@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.timeout(400)
def test_with_the_meta_service_away_for_a_minute_clients_continue_and_rolls_wait(tmp_path: Path) -> None:
    with real_cluster(tmp_path, {"log.segment.bytes": 3 << 20}) as cluster:
        cluster.make_topic("away", 2)
        traffic = Traffic(cluster.bootstrap, "away", 2, per_s=300.0)
        try:
            traffic.flows()
            cluster.kill(*cluster.names(Role.META))
            gone, epochs = time.monotonic(), _epochs(cluster)
            while time.monotonic() < gone + AWAY_S or not _is_some_shard_full(cluster, 3 << 20):
                assert time.monotonic() < gone + 3 * AWAY_S, "too little was written to fill a segment"
                traffic.flows(limit_s=STALL_S)
                traffic.the_group_commits(STALL_S)
            assert _epochs(cluster) == epochs
            cluster.start(*cluster.names(Role.META))
            eventually_sync(lambda: all(epoch > epochs[at] for at, epoch in _epochs(cluster).items()), 60)
            traffic.flows()
            assert traffic.judge() > 0
        finally:
            traffic.end()


def _epochs(cluster: RealCluster) -> dict[int, int]:
    return {shard: epoch for shard, (epoch, _) in cluster.written_now("away").items()}


def _is_some_shard_full(cluster: RealCluster, segment_bytes: int) -> bool:
    return any(size_bytes > segment_bytes for _, size_bytes in cluster.written_now("away").values())


@pytest.mark.fault("node-uploads-replicated-segment")
@pytest.mark.slow
@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.timeout(400)
def test_uploaders_that_are_killed_cost_a_twentieth_more_bytes_at_most(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "log.segment.bytes": 8 << 20,
        "remote.upload.chunk.bytes": CHUNK_BYTES,
        "remote.upload.interval.ms": 3_600_000,
    }
    with real_cluster(tmp_path, settings) as cluster:
        cluster.make_topic("uploads", 1)
        put = PutBytes(cluster.bucket)
        for _ in range(2):
            _produce_some(cluster)
            put.list_bucket()
            killed = cluster.leader_of("uploads")
            cluster.kill(killed)
            _produce_some(cluster)
            cluster.start(killed)
            cluster.until_calm()
        ended: list[SegmentInfo] = []

        def all_are_uploaded() -> bool:
            put.list_bucket()
            ended[:] = [one for one in cluster.segments("uploads") if one.state == "sealed"]
            return all(one.remote_state == "complete" for one in ended)

        eventually_sync(all_are_uploaded, 60)
        produced = sum(one.size_bytes for one in cluster.segments("uploads"))
        assert len(ended) > 3 and produced > 20 * CHUNK_BYTES
        assert put.total <= 1.05 * produced, f"{put.total:,} bytes went up of {produced:,} that were produced"


def _produce_some(cluster: RealCluster) -> None:
    values = (b"%d" % number * 2_000 for number in range(1_500))
    produce(cluster.bootstrap, "uploads", values, acks="all", batch_size=CHUNK_BYTES // 8)


class PutBytes:
    """Of data, in a bucket that is a directory: all that was ever seen (each attempt has a name of its own), and what
    those who were killed had begun to put."""

    def __init__(self, bucket: Path) -> None:
        self._bucket = bucket
        self._seen: dict[Path, int] = {}

    def list_bucket(self) -> None:
        for path in self._bucket.glob("*/*/**/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and not {"claims", "meta"}.intersection(path.parts):
                    self._seen[path] = path.stat().st_size

    @property
    def total(self) -> int:
        return sum(self._seen.values()) + sum(path.stat().st_size for path in (self._bucket / ".incoming").iterdir())


@pytest.mark.fault("nodes-cluster-real-processes")
@pytest.mark.slow
@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.timeout(0)  # as long as was asked for, and each fate once
def test_nothing_is_lost_while_nodes_come_and_go(
    tmp_path: Path, chaos_seconds: int, chaos_seed: int, write_line: Callable[[str], None]
) -> None:
    write_line(f"\nseed {chaos_seed}, {chaos_seconds} s")
    with real_cluster(tmp_path, {"retire.verify.interval.ms": 500}) as cluster:
        cluster.make_topic("wide", SHARDS)
        cluster.make_topic("alone", SHARDS, replicas=1)
        clients = [Traffic(cluster.bootstrap, topic, SHARDS, per_s=60.0) for topic in ("wide", "alone")]
        chaos = Chaos(cluster, write_line)
        comings = LeavingScenes(cluster, chaos, chaos_seed)
        try:
            until, played = time.monotonic() + chaos_seconds, 0
            for scene in scenes(chaos_seed):
                is_over = played >= len(ROUND) and time.monotonic() > until
                if is_over and chaos_seconds >= LONG_RUN_S and comings.steps_without_a_death:
                    scene = scene._replace(kind=SceneKind.META_LEADER_DIES, mode=RetireMode.OFFLOAD)
                elif is_over:
                    break
                if not comings.can_continue:
                    break
                comings.play(scene)
                played += 1
                for traffic in clients:
                    traffic.flows(1)
            chaos.wait_until_healthy()
            comings.until_all_is_served()
            write_line(f"{played} scenes, {len(comings.left)} nodes have left")
            deaths = ", ".join(f"{step} {comings.deaths[step]}" for step in RetireStep)
            write_line(f"leaders of the meta service killed at: {deaths}")
            missing = comings.steps_without_a_death
            assert not missing or chaos_seconds < LONG_RUN_S, f"no leader died at {missing}"
            for traffic in clients:
                traffic.bootstrap = cluster.bootstrap
                write_line(f"{traffic.judge():,} records acknowledged: all there, once and in order")
        finally:
            for traffic in clients:
                traffic.end()
            comings.end()


def test_a_seed_plays_the_same_scenes_of_every_kind() -> None:
    first = list(islice(scenes(7), 300))
    assert first == list(islice(scenes(7), 300)) != list(islice(scenes(8), 300))
    assert sorted(scene.kind.name for scene in first[: len(ROUND)]) == sorted(fate.name for fate in ROUND)
    assert {scene.step for scene in first if scene.kind is SceneKind.META_LEADER_DIES} == set(RetireStep)
    assert not [one for one in first if one.kind is SceneKind.TAKEN_BACK and one.step.is_released]


def test_a_seed_strikes_the_same_blows_of_every_kind() -> None:
    first = list(islice(blows(7), 400))
    assert first == list(islice(blows(7), 400)) != list(islice(blows(8), 400))
    assert {blow.what for blow in first} == set(What) and {blow.role for blow in first} == set(Role)
    only_nodes = (What.WIPE, What.KILL_ALL, *DISKS)
    assert not [blow for blow in first if blow.what in only_nodes and blow.role is not Role.NODE]
