"""E31: a cluster goes with all that is its own. E32: so does its namespace, at once. E33: a StorageNode comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog_e2e.install import Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, EXAMPLES, Place, documents, remove_volumes

GOES_S = 120
AT_ONCE_S = 60


@pytest.mark.scenario("E31")
@pytest.mark.without_traffic("the cluster goes: nobody is left who could take or give a record")
def test_no_finalizer_outlives_the_cluster(stored: Place) -> None:
    stored.make_cluster()
    stored.make_topic()
    stored.stratalog("seal", "flights", "--admin", stored.admin())
    stored.apply(*documents(EXAMPLES / "mount.yaml"))
    stored.kube.run(
        "delete", f"scl/{CLUSTER}", "snp/hot", "ts/flights", "rom/january", "-n", stored.name, "--wait=false"
    )

    def left() -> list[str]:
        kinds = ("storageclusters", "storagenodepools", "storagenodes", "topicstorages", "readonlymounts")
        return [f"{kind}/{one['metadata']['name']}" for kind in kinds for one in stored.list(kind)]

    until(left, lambda found: not found, 60, "every object is gone")
    claims = stored.list("persistentvolumeclaims", f"stratalog.dev/cluster={CLUSTER}")
    assert all("stratalog.dev/last-copy" not in one["metadata"].get("finalizers", ()) for one in claims)


@pytest.mark.fault("namespace-deleted-cluster")
@pytest.mark.scenario("E32")
@pytest.mark.without_traffic("the namespace goes, and its clients with it")
def test_a_namespace_with_everything_in_it_goes(stored: Place) -> None:
    stored.make_cluster()
    stored.make_topic()
    volumes = [one["spec"]["volumeName"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")]
    stored.kube.run("delete", "namespace", stored.name, "--wait=false")
    until(
        lambda: stored.kube.get("namespace", stored.name), lambda found: found is None, GOES_S, "the namespace is gone"
    )
    for volume in volumes:
        assert stored.kube.get("persistentvolume", volume), "the volume with the data is gone as well"
    remove_volumes(stored.kube, volumes)
    stored.is_gone = True


@pytest.fixture
def inside(operator: Operator) -> Iterator[Operator]:
    """The other operator is stopped, so that only the test's operator works in its namespace."""
    operator.scale(0)
    yield operator
    operator.scale(2)
    operator.remove_rests_of_inside()


@pytest.mark.fault("namespace-deleted-operator")
@pytest.mark.scenario("E32")
@pytest.mark.without_traffic("the namespace goes, and its clients with it")
def test_a_namespace_with_the_operator_in_it_goes(stored: Place, inside: Operator) -> None:
    """It lets go of what it holds as long as its account is there. Which goes first, it or the objects, Kubernetes does
    not say: what is left, the next operator lets go that looks after the namespace."""
    inside.install_in(stored.name)
    stored.make_cluster()
    stored.make_topic("taken", shards=1, deletionPolicy="Delete")
    volumes = [one["spec"]["volumeName"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")]
    stored.kube.run("delete", "namespace", stored.name, "--wait=false")
    look = lambda: stored.kube.get("namespace", stored.name)  # noqa: E731
    is_gone = lambda found: found is None  # noqa: E731
    try:
        until(look, is_gone, AT_ONCE_S, "the namespace is gone by itself")
        stored.notes.append("by itself")
    except AssertionError:
        stored.notes.append("with the help of another operator")
        inside.scale(2)
        until(look, is_gone, GOES_S, "the namespace is gone as soon as another operator looks after it")
    stored.is_gone = True
    for volume in volumes:
        assert stored.kube.get("persistentvolume", volume), "the volume with the data is gone as well"
    remove_volumes(stored.kube, volumes)


@pytest.mark.scenario("E33")
def test_a_storage_node_that_is_deleted_by_hand_is_made_again_and_leaves_nothing(stored: Place) -> None:
    stored.make_cluster()
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    name = f"{CLUSTER}-hot-2"
    before = stored.get("storagenode", name) or {}
    uids = stored.pod_uids()
    stored.kube.delete("storagenode", name, stored.name, timeout=60)
    again = until(
        lambda: stored.get("storagenode", name),
        lambda found: found is not None and found["metadata"]["uid"] != before["metadata"]["uid"],
        60,
        "it is made again",
    )
    assert again is not None and not again["spec"].get("retire", False)
    stored.pool_has(3)
    assert stored.pod_uids() == uids
    assert not (stored.get("storagecluster", CLUSTER) or {})["status"].get("retiredNodes")
    traffic.judge()
