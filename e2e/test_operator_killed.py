"""E25: the operator is killed at each step of a retirement, in both modes. The end is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog_e2e.install import SYSTEM, Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.retirement import ORDER

pytestmark = pytest.mark.scenario("E25")
STEPS = {
    "Offload": ("Wished", "Seal", "Offload", "Verify", "Mount", "PodStop", "Volume"),
    "RemountVolume": ("Wished", "PodStop", "Mount"),
}
CLAIM = f"data-{CLUSTER}-hot-4"


@pytest.mark.parametrize(("mode", "at"), [(mode, at) for mode, steps in STEPS.items() for at in steps])
def test_who_takes_over_ends_the_same(
    stored: Place, operator: Operator, record_property: Callable[[str, object], None], mode: str, at: str
) -> None:
    stored.make_cluster(nodes=4, changes={"scaleIn": {"mode": mode, "verifyIntervalSeconds": 2}})
    stored.make_topic(shards=4)
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=4)
    stored.scale(3)
    killed_at = _kill_at(stored, operator, mode, at)
    record_property("killed at", killed_at)
    stored.notes.append(f"killed at {killed_at}")
    until(stored.node_ids, lambda ids: ids == [1, 2, 3], 600, "node 4 has left")
    stored.pool_has(3)
    if mode == "Offload":
        look = lambda: stored.get("persistentvolumeclaim", CLAIM)  # noqa: E731
        until(look, lambda found: found is None, 120, f"{CLAIM} is deleted")
    else:
        assert stored.is_true("readonlymount", f"{CLUSTER}-hot-4", "Ready")["status"]["holder"]
        assert stored.get("persistentvolumeclaim", CLAIM), "a volume that is read must stay"
    tombs = (stored.get("storagecluster", CLUSTER) or {})["status"]["retiredNodes"]
    assert [one["nodeId"] for one in tombs] == [4]
    traffic.judge()


def _kill_at(place: Place, operator: Operator, mode: str, at: str) -> str:
    """At that step, or at the first one after it that is seen: some are over at once. Returns which it was."""
    order = ORDER[mode]
    wanted = order[order.index(at) :]

    def step() -> str:
        node = place.get("storagenode", f"{CLUSTER}-hot-4")
        if node is None:
            return "Done"
        return str((node.get("status", {}).get("retirement") or {}).get("step", ""))

    seen = until(step, lambda seen: seen in wanted, 600, f"the retirement is at {at}")
    assert seen != "Done", f"it was over before anybody could be killed at {at}"
    place.kube.run("delete", "pod", operator.leader_pod(), "-n", SYSTEM, "--grace-period=0", "--force", "--wait=false")
    return seen
