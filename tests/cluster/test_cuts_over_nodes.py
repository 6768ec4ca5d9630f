"""A consistent cut through the leaders of several nodes while all are written to: when all goes well, and when one is
killed or stops in the middle of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.cuts import Held, HoldRequest
from stratalog.model.errors import StratalogError
from stratalog_cli.cluster.plan import Role
from stratalog_cli.snapshots import snapshots
from support.causal_chains import CausalChain, out_of_order, running
from support.etcd_server import NO_ETCD, etcd_binary
from support.real_cluster import RealCluster, real_cluster
from support.waiting import eventually_sync

pytestmark = [pytest.mark.real_etcd, pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)]
STRATALOG = str(Path(sys.executable).with_name("stratalog"))
TOPIC, SHARDS = "orders", 6
STRIDES = (1, SHARDS - 1, 1, SHARDS - 1)
LONGEST_HOLD_S = 1.0
APART_S = 0.1
AS_BUSY_AS_IT_MAY_BE = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with real_cluster(tmp_path_factory.mktemp("cuts"), {"remote.upload.interval.ms": 100}) as running:
        running.make_topic(TOPIC, SHARDS)
        yield running


def stratalog(*arguments: str) -> Any:
    done = subprocess.run([STRATALOG, *arguments, "--output", "json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def admins(cluster: RealCluster) -> str:
    return ",".join(admin(cluster, name) for name in cluster.names(Role.NODE))


def admin(cluster: RealCluster, name: str) -> str:
    return cluster.plan.part(name).addresses["admin"]


def leaders(cluster: RealCluster) -> set[str | None]:
    return {leader for leader, _ in cluster.shards(TOPIC).values()}


def goes_on(chains: list[CausalChain], links: int = 30) -> None:
    """Each of the chains, by `links` records: over every shard, so every leader answers."""
    before = [len(chain.links) for chain in chains]

    def have_more() -> bool:
        assert not [chain.fault for chain in chains if chain.fault is not None]
        return all(len(chain.links) >= was + links for chain, was in zip(chains, before, strict=True))

    eventually_sync(have_more, timeout=60)


@pytest.mark.fault("snapshot-taken-clients-write")
def test_a_cut_over_the_leaders_of_three_nodes_has_all_that_was_acknowledged_before_any_of_it(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaders(cluster) == set(cluster.names(Role.NODE)), "a node without a leader is held for nothing"
    way = SlowWay(monkeypatch)
    cuts: list[dict[int, int]] = []
    with running(cluster.bootstrap, TOPIC, SHARDS, STRIDES) as chains:
        for order in permutations(cluster.names(Role.NODE)):
            goes_on(chains)
            way.delays_s = {admin(cluster, name): at * APART_S for at, name in enumerate(order)}
            told = cut_now(cluster, f"over-{'-'.join(order)}")
            assert isinstance(told, dict), told
            cuts.append(told)
    for ends in cuts:
        assert len(ends) == SHARDS and out_of_order(chains, ends) == []
    totals = [sum(ends.values()) for ends in cuts]
    assert totals == sorted(set(totals)) and totals[0] > 0, "records came between any two of them"


def test_the_command_makes_such_a_cut(cluster: RealCluster) -> None:
    asked = ("--bucket", str(cluster.bucket), "--admin", admins(cluster), "--topics", TOPIC)
    with running(cluster.bootstrap, TOPIC, SHARDS, STRIDES) as chains:
        goes_on(chains)
        cut = stratalog("snapshot", "create", "by-command", *asked)
        goes_on(chains)
    ends = {one["shard"]: one["offset"] for one in cut["shards"]}
    assert len(ends) == SHARDS and out_of_order(chains, ends) == []
    assert [one for one in stratalog("snapshot", "list", "--bucket", str(cluster.bucket)) if one == cut]


class SlowWay:
    """To some nodes: the request that holds one comes late. Otherwise all are held within a millisecond, and a cut that
    held no node would look consistent, too."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.delays_s: dict[str, float] = {}
        """By the node's admin address."""
        hold = AdminClient.hold_cut

        def hold_later(node: AdminClient, request: HoldRequest) -> Held:
            time.sleep(self.delays_s.get(node.base.partition("//")[2], 0.0))
            return hold(node, request)

        patch.setattr(AdminClient, "hold_cut", hold_later)


class InTheMiddle:
    """Does something to the cluster once, when all nodes were held for the first time, or when all of them were let go
    and none has confirmed yet. Called by the command's own requests."""

    def __init__(self, patch: pytest.MonkeyPatch, nodes: int, what: Callable[[], None]) -> None:
        self._patch, self._what = patch, what
        self._all_are_here = threading.Barrier(nodes, action=self._strike)
        self._first: UUID | None = None
        self._lock = threading.Lock()
        self.has_struck = False

    def _strike(self) -> None:
        self.has_struck = True
        self._what()

    def _is_first(self, cut_id: UUID) -> bool:
        with self._lock:
            self._first = self._first or cut_id
            return self._first == cut_id

    def when_all_are_held(self) -> None:
        hold = AdminClient.hold_cut

        def hold_and_wait(node: AdminClient, request: HoldRequest) -> Held:
            is_first, held = self._is_first(request.cut_id), hold(node, request)
            if is_first:
                self._all_are_here.wait(60)
            return held

        self._patch.setattr(AdminClient, "hold_cut", hold_and_wait)

    def when_all_were_let_go(self) -> None:
        """A node that leads nothing is not asked to confirm: so their number does not matter."""
        ask_all = snapshots._ask_all

        def strike_and_ask(clients: Sequence[AdminClient], ask: Callable[[AdminClient], Any]) -> list[Any]:
            if isinstance(ask, partial) and ask.func is snapshots._confirm and not self.has_struck:
                self._strike()
            return ask_all(clients, ask)

        self._patch.setattr(snapshots, "_ask_all", strike_and_ask)


def cut_now(cluster: RealCluster, name: str) -> dict[int, int] | str:
    """The ends of a cut by the command's own code, or why there is none."""
    try:
        cut = snapshots.create(name, str(cluster.bucket), admins(cluster), [TOPIC], 60.0, lambda _: None)
    except StratalogError as refused:
        return str(refused)
    return {one.key.shard: one.end_offset for one in cut.shards}


def names_in_bucket(cluster: RealCluster) -> set[str]:
    return {cut["name"] for cut in stratalog("snapshot", "list", "--bucket", str(cluster.bucket))}


@pytest.mark.fault("leader-killed-nodes-held")
@pytest.mark.parametrize("when, comes_back", [("when_all_are_held", False), ("when_all_were_let_go", True)])
def test_a_leader_killed_in_the_middle_of_a_cut_voids_it_and_the_others_continue(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch, when: str, comes_back: bool
) -> None:
    killed, name = cluster.leader_of(TOPIC), f"{when.replace('_', '-')}-{comes_back}".lower()
    with running(cluster.bootstrap, TOPIC, SHARDS, STRIDES) as chains:
        goes_on(chains)
        with monkeypatch.context() as patch:

            def kill() -> None:
                cluster.kill(killed)
                if comes_back:
                    cluster.start(killed)

            middle = InTheMiddle(patch, len(cluster.names(Role.NODE)), kill)
            getattr(middle, when)()
            told = cut_now(cluster, name)
        assert middle.has_struck
        goes_on(chains)
        cluster.start(*cluster.down())
        cluster.until_calm()
        if isinstance(told, str):
            assert "no consistent snapshot could be made" in told and name not in names_in_bucket(cluster)
        else:
            assert comes_back, "a node that is down cannot be held"
        later = cut_now(cluster, f"{name}-later")
        goes_on(chains)
    assert isinstance(later, dict), later
    for ends in (later, told):
        assert isinstance(ends, str) or out_of_order(chains, ends) == []
    waited_s = max(chain.longest_wait_s for chain in chains)
    assert waited_s < AS_BUSY_AS_IT_MAY_BE * LONGEST_HOLD_S, f"somebody waited {waited_s:.1f} s"


@pytest.mark.fault("leader-suspended-held")
def test_a_leader_stopped_while_all_are_held_blocks_no_other(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = cluster.leader_of(TOPIC)
    on_others = [shard for shard, (leader, _) in cluster.shards(TOPIC).items() if leader != stopped]
    with running(cluster.bootstrap, TOPIC, SHARDS, STRIDES) as chains:
        goes_on(chains)
        struck = threading.Event()

        def stop() -> None:
            cluster.signal(stopped, signal.SIGSTOP)
            struck.set()

        with monkeypatch.context() as patch:
            InTheMiddle(patch, len(cluster.names(Role.NODE)), stop).when_all_are_held()
            told: list[dict[int, int] | str] = []
            asking = threading.Thread(target=lambda: told.append(cut_now(cluster, "stands-still")))
            asking.start()
            try:
                assert struck.wait(60)
                goes_on(chains)  # the request that releases all still waits for the stopped node
                assert not told and on_others
            finally:
                cluster.signal(stopped, signal.SIGCONT)
                asking.join()
        cluster.until_calm()
        goes_on(chains)
    assert isinstance(told[0], dict) or "no consistent snapshot could be made" in told[0], told
    assert isinstance(told[0], str) or out_of_order(chains, told[0]) == []
