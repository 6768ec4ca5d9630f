"""Each kind of part is killed, or cut off, under idempotent producers and a consumer group: nothing is lost or doubled.

One cluster of real processes for all of them; each has a topic of its own, and leaves everything running.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog_cli.cluster.plan import Role
from support.cluster_traffic import Traffic
from support.etcd_server import NO_ETCD, etcd_binary
from support.real_cluster import SEGMENT_BYTES, RealCluster, real_cluster
from support.waiting import eventually_sync
from support.wires import both_ways, one_way

pytestmark = [pytest.mark.real_etcd, pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)]
SHARDS = 3
TWO_SEGMENTS = 2 * SEGMENT_BYTES
LARGEST_WRITE = 16_384
"""Of what the senders have on their way at once: a segment passes its bound by one write at most."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with real_cluster(tmp_path_factory.mktemp("parts")) as running:
        yield running


@pytest.fixture
def traffic(cluster: RealCluster, request: pytest.FixtureRequest) -> Iterator[Traffic]:
    """Records flow when the test begins; what they did is judged when it ends. Parameter: the topic's settings."""
    topic = request.node.originalname.removeprefix("test_")[:60]
    cluster.make_topic(topic, SHARDS, getattr(request, "param", {}))
    traffic = Traffic(cluster.bootstrap, topic, SHARDS)
    try:
        traffic.flows()
        yield traffic
        cluster.wires.restore()
        traffic.flows()
        assert traffic.judge() > 0
    finally:
        traffic.end()
        cluster.heal()


@pytest.mark.fault("leader-follower-meta-service")
def test_a_leader_is_killed(cluster: RealCluster, traffic: Traffic) -> None:
    killed = cluster.leader_of(traffic.topic)
    cluster.kill(killed)
    traffic.flows()
    assert cluster.leader_of(traffic.topic) != killed
    cluster.start(killed)


@pytest.mark.fault("leader-follower-meta-service")
def test_a_follower_is_killed(cluster: RealCluster, traffic: Traffic) -> None:
    leader = cluster.leader_of(traffic.topic)
    follower = next(name for name in cluster.names(Role.NODE) if name != leader)
    cluster.kill(follower)
    traffic.flows()
    assert cluster.leader_of(traffic.topic) == leader
    cluster.start(follower)


@pytest.mark.fault("leader-follower-meta-service")
def test_the_leader_of_the_meta_service_is_killed(cluster: RealCluster, traffic: Traffic) -> None:
    killed = cluster.leading(Role.META)
    cluster.kill(killed)
    traffic.flows()
    assert cluster.leading(Role.META) != killed
    states = {one["name"]: one["state"] for one in cluster.page("/?format=json")["processes"]}
    assert {name for name, state in states.items() if state == "ended"} == {killed}
    eventually_sync(lambda: (cluster.page("/v1/overview") or {"nodes": []})["nodes"], 30)
    shown = [(one["node_id"], one["state"]) for one in cluster.page("/v1/overview")["nodes"]]
    assert [node_id for node_id, _ in shown] == [1, 2, 3] and not any(state == "not alive" for _, state in shown)
    cluster.start(killed)


@pytest.mark.fault("whole-meta-service-unavailable")
@pytest.mark.parametrize("traffic", [{"segment.bytes": str(TWO_SEGMENTS)}], indirect=True, ids=[""])
def test_while_the_whole_meta_service_is_away_records_flow_and_rolls_wait(
    cluster: RealCluster, traffic: Traffic
) -> None:
    metas = cluster.names(Role.META)

    def sizes() -> list[int]:
        return [size_bytes for _, size_bytes in cluster.written_now(traffic.topic).values()]

    # Long before a segment is full: one that ended just before would wait until it is back.
    eventually_sync(lambda: all(size_bytes < TWO_SEGMENTS // 2 for size_bytes in sizes()), 45)
    cluster.kill(*metas)
    epochs = {shard: epoch for shard, (epoch, _) in cluster.written_now(traffic.topic).items()}

    eventually_sync(lambda: any(size_bytes > TWO_SEGMENTS for size_bytes in sizes()), 45)
    traffic.flows()
    now = cluster.written_now(traffic.topic)
    assert {shard: epoch for shard, (epoch, _) in now.items()} == epochs
    assert all(size_bytes < 2 * TWO_SEGMENTS + LARGEST_WRITE for _, size_bytes in now.values())
    cluster.start(metas[0])
    eventually_sync(
        lambda: any(epoch > epochs[at] for at, (epoch, _) in cluster.written_now(traffic.topic).items()), 30
    )


@pytest.mark.fault("leader-follower-meta-service")
def test_the_leader_of_etcd_is_killed(cluster: RealCluster, traffic: Traffic) -> None:
    killed = cluster.leading(Role.ETCD)
    cluster.kill(killed)
    traffic.flows()
    assert cluster.leading(Role.ETCD) != killed
    cluster.start(killed)


@pytest.mark.fault("nodes-killed-once-restarted")
def test_a_node_comes_back_on_an_empty_disk(cluster: RealCluster, traffic: Traffic) -> None:
    wiped = cluster.leader_of(traffic.topic)
    cluster.kill(wiped)
    cluster.wipe(wiped)
    traffic.flows()
    cluster.start(wiped)


@pytest.mark.fault("nodes-killed-once-restarted")
def test_all_nodes_are_killed_at_once(cluster: RealCluster, traffic: Traffic) -> None:
    nodes = cluster.names(Role.NODE)
    cluster.kill(*nodes)
    cluster.start(*nodes)


@pytest.mark.fault("nodes-killed-once-restarted", "clients-work-load-healthy")
def test_nodes_are_restarted_one_after_the_other(cluster: RealCluster, traffic: Traffic) -> None:
    for name in cluster.names(Role.NODE):
        cluster.stop(name)
        cluster.start(name)
        cluster.until_calm()
        traffic.flows()


@pytest.mark.fault("leader-cut-nodes-meta")
@pytest.mark.slow
def test_a_leader_is_cut_off_from_its_followers_and_from_the_meta_service(
    cluster: RealCluster, traffic: Traffic
) -> None:
    cut_off = cluster.leader_of(traffic.topic)
    cluster.wires.cut(both_ways([cut_off], cluster.others(cut_off)))
    cluster.until_others_lead(traffic.topic, cut_off)
    traffic.flows()


@pytest.mark.fault("leader-cut-nodes-meta")
@pytest.mark.slow
def test_a_leader_that_receives_but_cannot_send(cluster: RealCluster, traffic: Traffic) -> None:
    unheard = cluster.leader_of(traffic.topic)
    cluster.wires.cut(one_way([unheard], cluster.others(unheard)))
    cluster.until_others_lead(traffic.topic, unheard)
    traffic.flows()


@pytest.mark.fault("nodes-meta-service-hear")
@pytest.mark.slow
def test_a_leader_that_sends_but_cannot_receive(cluster: RealCluster, traffic: Traffic) -> None:
    deaf = cluster.leader_of(traffic.topic)
    cluster.wires.cut(one_way(cluster.others(deaf), [deaf]))
    eventually_sync(lambda: len(cluster.shards(traffic.topic, but=deaf)[0][1]) < 3, 30)


@pytest.mark.fault("leading-meta-service-cut")
def test_the_leader_of_the_meta_service_is_cut_off_from_etcd(cluster: RealCluster, traffic: Traffic) -> None:
    cut_off = cluster.leading(Role.META)
    cluster.wires.cut(both_ways([cut_off], cluster.names(Role.ETCD)))
    eventually_sync(lambda: cluster.leading(Role.META) != cut_off, 30)
    traffic.flows()


@pytest.mark.fault("leading-meta-service-cut")
@pytest.mark.slow
def test_the_leader_of_etcd_is_cut_off_from_the_other_members(cluster: RealCluster, traffic: Traffic) -> None:
    cut_off = cluster.leading(Role.ETCD)
    others = [name for name in cluster.names(Role.ETCD) if name != cut_off]
    cluster.wires.cut(both_ways([cut_off], others))
    eventually_sync(lambda: cluster.leading(Role.ETCD) != cut_off, 30)
    traffic.flows()
