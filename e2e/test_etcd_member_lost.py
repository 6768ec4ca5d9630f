"""E23: a member of etcd loses its volume. The others keep working, and it joins again on an empty one, without a
person."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import Object, until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place, remove_volumes

pytestmark = pytest.mark.scenario("E23")
MEMBER = "main-etcd-1"


def test_a_member_of_etcd_that_lost_its_volume_joins_again(stored: Place) -> None:
    stored.expects_restarts = True
    # It may not start before it is a member again, nor has it a claim while the old one is going.
    stored.expected_warnings |= {"BackOff", "EtcdMemberLost", "FailedScheduling", "FailedCreate"}
    stored.make_cluster(changes={"meta": {"replicas": 2, "etcd": {"replicas": 3, "storage": "256Mi"}}})
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    noted = until(lambda: _members(stored), lambda found: len(found) == 3, 120, "the members of etcd are noted")
    claims = stored.list("persistentvolumeclaims", f"stratalog.dev/cluster={CLUSTER},stratalog.dev/part=etcd")
    assert all("stratalog.dev/last-copy" in claim["metadata"]["finalizers"] for claim in claims)

    claim = f"data-{MEMBER}"
    lost = next(one for one in claims if one["metadata"]["name"] == claim)
    uid, volume = lost["metadata"]["uid"], lost["spec"]["volumeName"]
    stored.kube.run("delete", f"pvc/{claim}", "--wait=false", "-n", stored.name)
    stored.until_condition("storagecluster", CLUSTER, "Stalled", "True", 60, reason="EtcdMemberLost")
    stored.kube.run("annotate", f"pvc/{claim}", f"stratalog.dev/release-finalizer={uid}", "-n", stored.name)
    stored.kube.delete("pod", MEMBER, stored.name, timeout=120)
    again = until(
        lambda: _members(stored),
        lambda found: found[MEMBER]["memberId"] != noted[MEMBER]["memberId"] and found[MEMBER]["votes"],
        600,
        "the member has another id, and its vote",
    )

    assert {name: again[name] for name in again if name != MEMBER} == {
        name: noted[name] for name in noted if name != MEMBER
    }
    stored.cluster_is_ready()
    traffic.judge()
    assert stored.kube.get("persistentvolume", volume), "whoever gives a claim up may still want its volume"
    remove_volumes(stored.kube, [volume])


def _members(place: Place) -> dict[str, Object]:
    status = (place.get("storagecluster", CLUSTER) or {}).get("status", {})
    return {one["name"]: one for one in status.get("etcdMembers", ())}
