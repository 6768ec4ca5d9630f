"""E11: nodes cannot leave. Conditions say why, with numbers; everything else continues; the cause is removed, or the
request is taken back."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place

pytestmark = pytest.mark.scenario("E11")


def blocked(place: Place, node: str, reason: str) -> str:
    found = place.until_condition("storagenode", node, "RetireBlocked", "True", 180, reason)
    assert any(letter.isdigit() for letter in found["message"]), f"no number in {found['message']!r}"
    return str(found["message"])


def test_too_few_would_be_left_for_the_replicas_that_topics_ask_for(stored: Place) -> None:
    stored.expected_warnings |= {"ReplicationFactor"}
    stored.make_cluster()
    stored.make_topic(shards=2)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=2)
    uids = stored.pod_uids()
    stored.scale(2)
    blocked(stored, f"{CLUSTER}-hot-3", "ReplicationFactor")
    pool = stored.get("storagenodepool", "hot") or {}
    assert pool["spec"]["replicas"] == 2, "the wish of the user is never edited"
    # Nothing else waits for it.
    stored.make_topic("beside", shards=1)
    stored.scale(3)
    stored.pool_has(3)
    stored.until_condition("storagenode", f"{CLUSTER}-hot-3", "RetireBlocked", "False", 60)
    assert stored.pod_uids() == uids
    traffic.judge()


@pytest.mark.without_traffic("all nodes are without room, and take nothing: what was written before is compared")
def test_no_room_on_those_that_would_stay_is_said_and_mended_while_it_waits(stored: Place) -> None:
    stored.expects_restarts = True  # what a node keeps free is a setting that it reads at its start
    stored.expects_outage = True  # a node without room is not ready, and here all of them are to be without
    stored.expected_warnings |= {"InsufficientCapacity", "ReplicationFactor", "Troubles", "PodNotBack"}
    stored.writes.more = 100  # all four nodes are rolled twice
    stored.expected_warnings |= {"UnderReplicated"}  # once there is room: what no store has is copied first
    stored.make_cluster(nodes=4, changes={"rollingUpdate": {"readinessTimeoutSeconds": 30}})
    stored.make_topic("sentinel", shards=4, tiering={"enabled": False})
    stored.clients.write_sentinels(BOOTSTRAP, "sentinel")
    before = stored.clients.read_sentinels(BOOTSTRAP, "sentinel")
    _leave_no_room(stored)
    stored.scale(3)
    said = blocked(stored, f"{CLUSTER}-hot-4", "InsufficientCapacity")
    assert "3 nodes" in said, "of how many"
    _keep_free(stored, None)
    until(stored.node_ids, lambda ids: ids == [1, 2, 3], 600, "it leaves once there is room")
    stored.pool_has(3)
    assert stored.clients.read_sentinels(BOOTSTRAP, "sentinel") == before


def _leave_no_room(place: Place) -> None:
    """Sets a reserve above the size of any disk. The roll stops at the first pod that is not ready; the test restarts
    the others."""
    uids = place.pod_uids()
    _keep_free(place, "1000000000000000")
    first = f"{CLUSTER}-hot-1-0"
    until(place.pod_uids, lambda now: now.get(first, uids[first]) != uids[first], 300, "the first one has the setting")
    place.until_condition("storagecluster", CLUSTER, "Stalled", "True", 120)
    now = place.pod_uids()
    assert {name for name in now if now[name] != uids[name]} == {first}, "others were stopped, too"
    for name in sorted(now.keys() - {first}):
        place.kube.delete("pod", name, place.name)
    for node in place.node_ids():
        place.until_condition("storagenode", f"{CLUSTER}-hot-{node}", "Registered", "True", 180)
    until(
        place.pod_uids, lambda now: now.keys() == uids.keys() and not now.items() & uids.items(), 180,
        "all have the setting",
    )  # fmt: skip


def _keep_free(place: Place, size_bytes: str | None) -> None:
    """Sets the reserve of each disk. None: the default."""
    place.kube.patch("scl", CLUSTER, place.name, {"spec": {"config": {"disk.reserve.bytes": size_bytes}}})


@pytest.mark.fault("object-store-unavailable-minutes")
def test_a_store_that_is_away_holds_the_offload_until_it_is_back(stored: Place) -> None:
    stored.expected_warnings |= {"StoreUnreachable", "DoesNotAnswer"}
    stored.make_cluster(nodes=4)
    stored.make_topic(shards=4)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=4)
    stored.kube.scale("deployment", "store", stored.name, 0)
    stored.scale(3)
    blocked(stored, f"{CLUSTER}-hot-4", "StoreUnreachable")
    traffic.flows()
    stored.kube.scale("deployment", "store", stored.name, 1)
    until(stored.node_ids, lambda ids: ids == [1, 2, 3], 600, "it leaves once the store is back")
    stored.pool_has(3)
    traffic.judge()
