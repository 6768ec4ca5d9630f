"""E25: the operator is killed at each step of a retirement. The end is the same."""

from __future__ import annotations

import pytest

from stratalog_e2e.install import SYSTEM, Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place

pytestmark = pytest.mark.scenario("E25")
STEPS = ("Wished", "Seal", "Offload", "Verify", "Mount", "PodStop", "Volume")


@pytest.mark.parametrize("at", STEPS)
def test_who_takes_over_ends_the_same(stored: Place, operator: Operator, at: str) -> None:
    stored.make_cluster(nodes=4, changes={"scaleIn": {"verifyIntervalSeconds": 2}})
    stored.make_topic(shards=4)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=4)
    stored.scale(3)
    _kill_at(stored, operator, at)
    until(stored.node_ids, lambda ids: ids == [1, 2, 3], 600, "node 4 has left")
    stored.pool_has(3)
    claim = f"data-{CLUSTER}-hot-4"
    until(lambda: stored.get("persistentvolumeclaim", claim), lambda found: found is None, 120, f"{claim} is deleted")
    tombs = (stored.get("storagecluster", CLUSTER) or {})["status"]["retiredNodes"]
    assert [one["nodeId"] for one in tombs] == [4]
    traffic.judge()


def _kill_at(place: Place, operator: Operator, at: str) -> None:
    """At that step, or at the first one after it that is seen: some are over at once."""
    order = (
        "Wished",
        "Preflight",
        "Cordon",
        "Seal",
        "Offload",
        "Verify",
        "Snapshot",
        "Release",
        "Mount",
        "PodStop",
        "Volume",
        "Done",
    )
    wanted = order[order.index(at) :]

    def step() -> str:
        node = place.get("storagenode", f"{CLUSTER}-hot-4")
        if node is None:
            return "Done"
        return str((node.get("status", {}).get("retirement") or {}).get("step", ""))

    until(step, lambda seen: seen in wanted, 600, f"the retirement is at {at}")
    place.kube.run("delete", "pod", operator.leader_pod(), "-n", SYSTEM, "--grace-period=0", "--force", "--wait=false")
