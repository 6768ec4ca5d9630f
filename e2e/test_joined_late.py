"""E48: a node registers in the moment in which its pod is stopped because it had never joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

import pytest

from stratalog_e2e.install import Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.storage import members
from stratalog_e2e.surroundings import workers

NAME = f"{CLUSTER}-hot-4"


@pytest.fixture
def back(operator: Operator) -> Iterator[Operator]:
    yield operator
    operator.scale(2)


@pytest.mark.scenario("E48")
def test_a_node_that_joined_while_its_pod_was_stopped_leaves_like_any_other(
    stored: Place, back: Operator, machines: Callable[[str], None]
) -> None:
    """The state is what an operator leaves that stops the pod and is killed before its next pass."""
    stored.expects_restarts = True
    stored.expected_warnings |= {"PodNotBack", "NeedsAPerson"}
    stored.make_cluster(changes={"scaleIn": {"mode": "Offload", "verifyIntervalSeconds": 2}})
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    for machine in workers(stored.kube):
        machines(f"kubectl --kubeconfig {quote(str(stored.kube.kubeconfig))} uncordon {machine} >/dev/null")
        stored.kube.run("cordon", machine)
    stored.scale(4)
    until(lambda: stored.get("pod", f"{NAME}-0"), bool, 120, "the fourth pod waits for a machine")
    back.scale(0)
    for machine in workers(stored.kube):
        stored.kube.run("uncordon", machine)
    until(lambda: members(stored), lambda ids: ids == {1, 2, 3, 4}, 180, "node 4 has joined")
    chosen = {"metadata": {"annotations": {"stratalog.dev/chosen-by-pool": "true"}}, "spec": {"retire": True}}
    stored.kube.patch("snode", NAME, stored.name, chosen)
    stored.kube.scale("statefulset", NAME, stored.name, 0)
    until(lambda: stored.get("pod", f"{NAME}-0"), lambda pod: pod is None, 120, "its pod is stopped")
    stored.scale(3)

    back.scale(2)
    until(stored.node_ids, lambda ids: ids == [1, 2, 3], 600, "node 4 has left")
    assert members(stored) == {1, 2, 3}, "in the meta service as well"
    tombs = (stored.get("storagecluster", CLUSTER) or {})["status"]["retiredNodes"]
    assert [one["nodeId"] for one in tombs] == [4]
    claim = f"data-{NAME}"
    until(lambda: stored.get("persistentvolumeclaim", claim), lambda one: one is None, 180, f"{claim} is deleted")
    assert all(one["metadata"]["name"] != NAME for one in stored.list("statefulsets"))
    stored.pool_has(3)
    traffic.judge()
