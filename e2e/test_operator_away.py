"""E26: without any operator Kubernetes itself keeps the storage nodes; E27: of two operators one writes at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from stratalog_e2e.install import LEASE, SYSTEM, Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.surroundings import kind_name

TAKES_OVER_S = 20
"""As docs/kubernetes.md has it."""


@pytest.fixture
def back(operator: Operator) -> Iterator[Operator]:
    yield operator
    operator.scale(2)


@pytest.mark.fault("operator-runs-storage-pod")
@pytest.mark.scenario("E26")
def test_a_storage_pod_that_is_deleted_comes_back_without_an_operator(stored: Place, back: Operator) -> None:
    stored.expects_restarts = True
    stored.expected_warnings |= {"Troubles"}
    stored.make_cluster()
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    claims = {one["metadata"]["uid"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")}
    back.scale(0)
    name = f"{CLUSTER}-hot-2-0"
    uid = stored.pod_uids()[name]
    stored.kube.delete("pod", name, stored.name)
    stored.kube.run("wait", "--for=condition=Ready", f"pod/{name}", "-n", stored.name, "--timeout=300s", timeout=330)
    assert stored.pod_uids()[name] != uid
    traffic.flows()
    told = stored.get("storagenode", f"{CLUSTER}-hot-2") or {}
    assert told["status"]["identity"]["podUid"] == uid, "nobody was there to tell"
    back.scale(2)
    until(
        lambda: (stored.get("storagenode", f"{CLUSTER}-hot-2") or {})["status"]["identity"]["podUid"],
        lambda seen: seen == stored.pod_uids()[name],
        120,
        "the status catches up",
    )
    stored.cluster_is_ready()
    assert {
        one["metadata"]["uid"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")
    } == claims
    traffic.judge()


@pytest.mark.scenario("E27")
def test_the_other_operator_takes_over_when_the_leader_is_deleted(stored: Place, back: Operator) -> None:
    stored.make_cluster()
    stored.make_topic()
    stored.clients.start(BOOTSTRAP, "flights", shards=3)
    first = back.leader_pod()
    transitions = _transitions(back)
    stored.kube.run("delete", "pod", first, "-n", SYSTEM, "--grace-period=0", "--force", "--wait=false")
    other = until(back.leader, lambda holder: holder and not holder.startswith(first), TAKES_OVER_S, "another leads")
    assert _transitions(back) > transitions
    stored.make_topic("beside", shards=1)
    assert other.startswith(tuple(back.pods()))


@pytest.mark.scenario("E27")
def test_a_leader_that_is_frozen_writes_nothing_when_it_continues(stored: Place, back: Operator) -> None:
    if kind_name(stored.kube) is None:
        pytest.skip("the machines are none of kind's: nobody can freeze a process there from here")
    stored.make_cluster()
    stored.make_topic()
    stored.clients.start(BOOTSTRAP, "flights", shards=3)
    frozen = back.leader_pod()
    _signal(back, frozen, "STOP")
    try:
        until(back.leader, lambda holder: holder and not holder.startswith(frozen), 90, "another one leads")
        stored.make_topic("beside", shards=1)
    finally:
        _signal(back, frozen, "CONT")
    # It finds its time over before it writes anything, ends, and begins again as the one that waits.
    until(lambda: _restarts(back, frozen), lambda count: count >= 1, 120, "the frozen one begins again")
    assert not back.leader().startswith(frozen)
    log = stored.kube.run("logs", frozen, "-n", SYSTEM, "--previous")
    assert "lease lost" in log


def _signal(operator: Operator, pod: str, name: str) -> None:
    """The operator is process 1 of its container, which heeds no SIGSTOP from within: sent from its machine."""
    found = operator.pods()[pod]
    container = found["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    machine = found["spec"]["nodeName"]
    script = f"kill -{name} $(ctr -n k8s.io task ls | awk '$1 == \"{container}\" {{print $2}}')"
    subprocess.run(["docker", "exec", machine, "sh", "-c", script], check=True, capture_output=True, timeout=30)


def _restarts(operator: Operator, pod: str) -> int:
    found = operator.pods().get(pod, {})
    return sum(one["restartCount"] for one in found.get("status", {}).get("containerStatuses", ()))


def _transitions(operator: Operator) -> int:
    lease = operator.kube.get("lease", LEASE, SYSTEM) or {}
    return int(lease["spec"].get("leaseTransitions", 0))
