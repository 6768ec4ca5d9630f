"""E17: a cluster is deleted and made again under its name: its data are there, because its disks are. Disks of another
cluster's metadata are neither used nor deleted.
"""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import Object, until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, POOL, Place

pytestmark = pytest.mark.scenario("E17")


@pytest.mark.without_traffic("all nodes are away for minutes: what was written before is compared byte by byte")
def test_a_cluster_of_the_same_name_takes_its_volumes_up_again(stored: Place) -> None:
    stored.expects_restarts = stored.expects_outage = True
    stored.expected_warnings |= {"Troubles"}  # its metadata come back before its nodes, and say that these are away
    stored.make_cluster()
    stored.make_topic("sentinel", shards=1)
    stored.clients.write_sentinels(BOOTSTRAP, "sentinel")
    before = stored.clients.read_sentinels(BOOTSTRAP, "sentinel")
    identity = (stored.get("storagecluster", CLUSTER) or {})["status"]["clusterId"]
    claims = _claims(stored)

    stored.kube.delete("topicstorage", "sentinel", stored.name)
    _delete(stored)
    stored.make_cluster()

    assert _claims(stored) == claims
    assert (stored.get("storagecluster", CLUSTER) or {})["status"]["clusterId"] == identity
    assert stored.node_ids() == [1, 2, 3]
    assert stored.clients.read_sentinels(BOOTSTRAP, "sentinel") == before


def test_disks_of_other_metadata_are_left_alone_and_new_nodes_are_made(stored: Place) -> None:
    """The metadata are lost with their claim, and another cluster begins under the name."""
    stored.expects_restarts = stored.expects_outage = True
    stored.make_cluster()
    identity = (stored.get("storagecluster", CLUSTER) or {})["status"]["clusterId"]
    before = _claims(stored, "node")
    _delete(stored)
    for name in _claims(stored, "etcd"):
        stored.kube.delete("persistentvolumeclaim", name, stored.name)
    stored.make_cluster()

    assert (stored.get("storagecluster", CLUSTER) or {})["status"]["clusterId"] != identity
    assert stored.node_ids() == [4, 5, 6], "ids of disks that are there are given to nobody"
    assert before.items() <= _claims(stored, "node").items()
    assert not _claims_in_use(stored) & before.keys()
    told = stored.condition("storagenodepool", POOL, "Ready")["message"]
    assert all(name in told for name in before) and "another cluster" in told
    stored.make_topic()
    stored.clients.start(BOOTSTRAP, "flights", shards=3).judge()


def _delete(place: Place) -> None:
    place.kube.delete("storagecluster", CLUSTER, place.name)
    place.kube.delete("storagenodepool", POOL, place.name)
    until(
        lambda: place.list("pods", f"stratalog.dev/cluster={CLUSTER}"), lambda pods: not pods, 180, "its pods are gone"
    )


def _claims(place: Place, part: str = "") -> dict[str, str]:
    """UIDs by name."""
    chosen = f"stratalog.dev/cluster={CLUSTER}" + (f",stratalog.dev/part={part}" if part else "")
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in place.list("persistentvolumeclaims", chosen)}


def _claims_in_use(place: Place) -> set[str]:
    volumes: list[Object] = [volume for pod in place.list("pods") for volume in pod["spec"]["volumes"]]
    return {one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one}
