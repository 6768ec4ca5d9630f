"""E10: a pool gets smaller under load. Leaving nodes go through the steps in order; what they held is still read."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.retirement import ORDER, Steps
from stratalog_e2e.storage import holders, members, moved, verify

pytestmark = [pytest.mark.fault("records-topic-replica-volume"), pytest.mark.fast, pytest.mark.scenario("E10")]
LEAVES_S = 600
OPERATORS = {"Offload": {"PodStop", "Volume"}, "RemountVolume": {"PodStop", "Mount"}}
"""Steps that a watch must show: in the second mode the volume stays, and a pod reads it."""
ALONE: dict[str, Any] = {"replicationFactor": 1, "minInsyncReplicas": 1, "tiering": {"enabled": False}}


@pytest.mark.parametrize("mode", ["Offload", "RemountVolume"])
def test_five_nodes_become_three_and_old_offsets_are_served(stored: Place, mode: str) -> None:
    stored.make_cluster(nodes=5, changes={"scaleIn": {"mode": mode, "verifyIntervalSeconds": 2}})
    stored.make_topic(shards=6)
    stored.make_topic("sentinel", shards=5)
    stored.clients.write_sentinels(BOOTSTRAP, "sentinel")
    before = stored.clients.read_sentinels(BOOTSTRAP, "sentinel")
    if mode == "RemountVolume":
        # In no store, and each shard on one disk alone: what was on those that leave is read of their volumes or not
        # at all.
        stored.make_topic("alone", shards=10, **ALONE)
        stored.clients.write_sentinels(BOOTSTRAP, "alone")
        alone = stored.clients.read_sentinels(BOOTSTRAP, "alone")
        stored.stratalog("seal", "alone", "--admin", stored.admin())
        only_there = [nodes for nodes in holders(stored, "alone").values() if nodes <= {4, 5}]
        assert only_there, "those that leave have nothing that is only there"
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=6)
    stored.stratalog("seal", "sentinel", "--admin", stored.admin())
    uids = stored.pod_uids()
    held = {topic: holders(stored, topic) for topic in ("flights", "sentinel")}
    assert any({4, 5} & nodes for nodes in held["sentinel"].values()), "those that leave hold nothing"
    claims = {one["metadata"]["name"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")}

    with Steps(stored) as steps:
        stored.scale(3)
        stored.pool_has(3, limit_s=LEAVES_S)
        until(lambda: stored.node_ids(), lambda ids: ids == [1, 2, 3], LEAVES_S, "the two that left are gone")

    for node, seen in steps.seen.items():
        assert node in (4, 5), f"node {node} was chosen, the highest were to go"
        assert seen == sorted(seen, key=ORDER[mode].index), f"node {node} went through {seen}"
        assert OPERATORS[mode] <= set(seen), f"node {node}: {seen} leaves out what the operator does itself"
    assert set(steps.seen) == {4, 5}
    assert members(stored) == {1, 2, 3}, "the meta service's own list"
    kept = {name: uid for name, uid in uids.items() if not name.endswith(("-4-0", "-5-0"))}
    assert stored.pod_uids() == kept, "who stays does not restart"
    tombs = {one["nodeId"] for one in (stored.get("storagecluster", CLUSTER) or {})["status"]["retiredNodes"]}
    assert tombs == {4, 5}
    _volumes_are_as_the_policy_says(stored, mode, claims)

    traffic.flows()
    assert stored.clients.read_sentinels(BOOTSTRAP, "sentinel") == before
    if mode == "RemountVolume":
        assert stored.clients.read_sentinels(BOOTSTRAP, "alone") == alone, "what only the volumes have"
    for topic, before_leaving in held.items():
        gained = moved(before_leaving, holders(stored, topic))
        assert not gained, f"segments of {topic} went to nodes that had them not: {gained}"
    traffic.judge()
    verify(stored, "sentinel")
    assert stored.condition("storagecluster", CLUSTER, "Healthy")["status"] == "True"


def _volumes_are_as_the_policy_says(place: Place, mode: str, before: set[str]) -> None:
    """whenScaled: Delete, once nothing needs the volume: at once, or as long as it is read where it is."""
    left = {one["metadata"]["name"] for one in place.list("persistentvolumeclaims", "stratalog.dev/part=node")}
    leaving = {name for name in before if name.endswith(("-4", "-5"))}
    if mode == "Offload":
        assert not left & leaving, "claims of nodes that left, with nothing on them that is needed"
        return
    assert left >= leaving, "a volume that is read must stay"
    mounts = {one["metadata"]["name"]: one for one in place.list("readonlymounts")}
    assert set(mounts) == {f"{CLUSTER}-hot-4", f"{CLUSTER}-hot-5"}
    for name in mounts:
        status = place.is_true("readonlymount", name, "Ready")["status"]
        assert status["holder"] and status["ranges"] and status["segments"] > 0, f"{name} has nothing: {status}"
        assert status["endpoint"], f"nobody reads the volume of {name}"
