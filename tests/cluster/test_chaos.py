"""Parts of a cluster are killed, paused, cut off, stopped and wiped at random under real clients, and nothing is lost.

`make chaos SECONDS=600`; the seed of a run is printed, `ARGS=--chaos-seed=N` strikes the same blows again.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from stratalog_cli.cluster_plan import Role
from support.chaos import Chaos, What, blows
from support.cluster_traffic import Traffic
from support.etcd_server import NO_ETCD, etcd_binary
from support.real_cluster import real_cluster

SHARDS = 4


@pytest.mark.slow
@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.timeout(0)  # as long as was asked for
def test_nothing_is_lost_whatever_befalls_the_parts(
    tmp_path: Path, chaos_seconds: int, chaos_seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def tell(line: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    tell(f"\nseed {chaos_seed}, {chaos_seconds} s")
    with real_cluster(tmp_path) as cluster:
        cluster.make_topic("chaos", SHARDS)
        traffic = Traffic(cluster.bootstrap, "chaos", SHARDS, members=2)
        chaos = Chaos(cluster, tell)
        try:
            traffic.flows()
            until = time.monotonic() + chaos_seconds
            for blow in blows(chaos_seed):
                if time.monotonic() > until:
                    break
                chaos.strike(blow)
            chaos.calm()
            traffic.flows()
            tell(f"{chaos.count} blows, {traffic.judge():,} records acknowledged: all there, once and in order")
            tell(f"and nothing of {sum(traffic.committed.told.values()):,} committed offsets went back")
        finally:
            traffic.end()


def test_a_seed_strikes_the_same_blows_of_every_kind() -> None:
    first = list(islice(blows(7), 400))
    assert first == list(islice(blows(7), 400)) != list(islice(blows(8), 400))
    assert {blow.what for blow in first} == set(What) and {blow.role for blow in first} == set(Role)
    assert not [blow for blow in first if blow.what in (What.WIPE, What.KILL_ALL) and blow.role is not Role.NODE]
