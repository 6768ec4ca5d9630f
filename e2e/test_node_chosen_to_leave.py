"""E12: the node that is named leaves, and no other; two pools shrink in one edit, and no other pod is affected."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place, pool_object
from stratalog_e2e.retirement import ORDER, Steps, released_together

pytestmark = pytest.mark.scenario("E12")


def test_a_node_leaves_when_it_is_named_though_others_would_go_first(stored: Place) -> None:
    stored.make_cluster(nodes=4, changes={"scaleIn": {"verifyIntervalSeconds": 2}})
    stored.make_topic(shards=4)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=4)
    uids = stored.pod_uids()
    with Steps(stored) as steps:
        stored.kube.patch("snp", "hot", stored.name, {"spec": {"replicas": 3, "removeNodeIds": [1]}})
        until(stored.node_ids, lambda ids: ids == [2, 3, 4], 600, "node 1 is gone, and no other")
    assert set(steps.seen) == {1}
    kept = {name: uid for name, uid in uids.items() if name != f"{CLUSTER}-hot-1-0"}
    assert stored.pod_uids() == kept
    traffic.judge()


def test_two_pools_get_smaller_in_one_edit(stored: Place) -> None:
    # Each zone keeps a node: otherwise they would wait, and say ZoneSpread.
    stored.make_cluster(nodes=4, changes={"scaleIn": {"verifyIntervalSeconds": 2}})
    stored.apply(pool_object(2, "cool"))
    stored.pool_has(2, "cool")
    stored.make_topic(shards=6)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=6)
    uids = stored.pod_uids()
    with Steps(stored) as steps:
        stored.apply(pool_object(3, "hot"), pool_object(1, "cool"))
        until(stored.node_ids, lambda ids: ids == [1, 2, 3, 5], 600, "the last of each pool has left, and no other")
    assert set(steps.seen) == {4, 6}
    for node, seen in steps.seen.items():
        assert seen == sorted(seen, key=ORDER["Offload"].index), f"node {node} went through {seen}"
    assert not released_together(stored)
    stored.pool_has(3, "hot")
    stored.pool_has(1, "cool")
    left = {f"{CLUSTER}-hot-4-0", f"{CLUSTER}-cool-6-0"}
    assert stored.pod_uids() == {name: uid for name, uid in uids.items() if name not in left}
    traffic.judge()
