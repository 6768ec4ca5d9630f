"""E46: `kubectl delete -f crds/` deletes every object of the operator's kinds. It does not hang, and volumes stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog_e2e.install import Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import CLUSTER, EXAMPLES, Place, documents
from stratalog_e2e.surroundings import REPOSITORY

GOES_S = 180


@pytest.fixture
def again(operator: Operator) -> Iterator[Operator]:
    """The definitions are there afterwards, and the operator looks after them."""
    yield operator
    operator.install()
    kinds = ("scl", "snp", "snode", "ts", "rom")
    until(lambda: [operator.kube.list(kind) for kind in kinds], bool, 120, "its kinds are served")


@pytest.mark.scenario("E46")
@pytest.mark.without_traffic("the cluster goes: nobody is left who could take or give a record")
def test_all_definitions_are_deleted_beside_the_operator(stored: Place, again: Operator) -> None:
    stored.expects_restarts = stored.expects_tracebacks = True
    stored.make_cluster()
    stored.make_topic(deletionPolicy="Delete")
    stored.stratalog("seal", "flights", "--admin", stored.admin())
    stored.apply(*documents(EXAMPLES / "mount.yaml"))
    claims = {
        one["metadata"]["name"]: one["spec"]["volumeName"]
        for one in stored.list("persistentvolumeclaims", f"stratalog.dev/cluster={CLUSTER}")
    }

    folder = str(REPOSITORY / "crds")
    stored.kube.run("delete", "-f", folder, f"--timeout={GOES_S}s", timeout=GOES_S + 30)
    until(
        lambda: stored.list("pods", f"stratalog.dev/cluster={CLUSTER}"),
        lambda pods: not pods,
        GOES_S,
        "its pods are gone",
    )
    kept = stored.list("persistentvolumeclaims", f"stratalog.dev/cluster={CLUSTER}")
    assert {one["metadata"]["name"] for one in kept} == set(claims)
    assert all("stratalog.dev/last-copy" not in one["metadata"].get("finalizers", ()) for one in kept)
    assert all(stored.kube.get("persistentvolume", volume) for volume in claims.values())
