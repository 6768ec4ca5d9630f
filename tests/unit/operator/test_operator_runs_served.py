"""The whole operator against a real API server and a real meta service, with the rights that its role gives and no
others; machines and nodes are pretended."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from stratalog_operator.process import Operator
from stratalog_operator.resources.kinds import CLUSTER, POOL, TOPIC
from support.api_server import NO_API_SERVER, ApiServer, apiserver_binary
from support.operator_place import Place, operator_place

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
    pytest.mark.timeout(600),
]
_NUMBERS = count()


@pytest.fixture
async def place(api: ApiServer) -> AsyncIterator[Place]:
    async with operator_place(api, f"runs-{next(_NUMBERS)}") as made:
        yield made


def _make(place: Place) -> None:
    place.make(CLUSTER)
    place.make(POOL, {"spec.zones": []})


def _page(operator: Operator) -> str:
    """Of metrics, of a replica that is alive and ready, whether it works or stands by."""
    for path in ("healthz", "readyz"):
        with urllib.request.urlopen(f"http://{operator.address}/{path}", timeout=30) as answer:
            assert answer.status == 200
    with urllib.request.urlopen(f"http://{operator.address}/metrics", timeout=30) as answer:
        return bytes(answer.read()).decode()


async def _quiet(place: Place, operator: Operator) -> int:
    """Writes of an operator that has looked at a cluster that is as it should be, twice."""
    kubernetes = operator.kubernetes
    assert kubernetes is not None
    wrote = -1
    while wrote != kubernetes.writes_to_objects():
        wrote = kubernetes.writes_to_objects()
        for _ in range(2):
            passes = operator.stats.passes
            operator.wake((place.namespace, "main"))
            await place.until(lambda before=passes: operator.stats.passes > before)
    return wrote


async def test_a_cluster_comes_up_and_an_operator_that_has_nothing_to_do_writes_nothing(place: Place) -> None:
    _make(place)
    for number in range(5):
        spec = {"clusterRef": "main", "topicName": f"topic-{number}"}
        place.make(TOPIC, {"metadata.name": f"topic-{number}", "spec": spec})
    async with place.operator() as operator:
        await place.until_ready(3)
        await place.until(lambda: place.condition("Ready", "TopicStorage", "topic-4") == "True")
        wrote = await _quiet(place, operator)
        for _ in range(3):
            passes = operator.stats.passes
            operator.wake((place.namespace, "main"))
            await place.until(lambda before=passes: operator.stats.passes > before)

        assert operator.kubernetes is not None
        assert operator.kubernetes.writes_to_objects() == wrote > 0
    assert operator.stats.failures == 0


async def test_a_topic_is_sealed_and_new_writes_are_spread_once_for_each_request(place: Place) -> None:
    place.make(CLUSTER)
    place.make(POOL, {"spec.zones": [], "spec.replicas": 2})
    spec = {"clusterRef": "main", "topicName": "orders", "shards": 4, "replicationFactor": 2, "minInsyncReplicas": 1}
    place.make(TOPIC, {"metadata.name": "orders", "spec": spec})

    def status(kind: str, name: str, field: str) -> dict[str, Any]:
        return dict(place.get(kind, name).get("status", {}).get(field) or {})

    async def epochs() -> list[int]:
        shards = (await place.members.service.snapshot()).shards
        return [shard.segments[-1].epoch for shard in shards]

    async with place.operator() as operator, _awake(place, operator):
        await place.until_ready(2)
        await place.until(lambda: place.condition("Ready", "TopicStorage", "orders") == "True")
        await _next_second(place, "TopicStorage", "orders")
        sealed_at = datetime.now(UTC).isoformat()
        place.change("TopicStorage", "orders", {"spec": {"sealRequestedAt": sealed_at}})
        await place.until(lambda: status("TopicStorage", "orders", "seal").get("doneAt"))
        assert status("TopicStorage", "orders", "seal")["requestedAt"] == sealed_at
        assert await epochs() == [1, 1, 1, 1]
        place.scale(3)
        await place.until_ready(3)
        at = datetime.now(UTC).isoformat()
        place.change("StorageCluster", "main", {"spec": {"rebalance": {"requestedAt": at}}})
        await place.until(lambda: status("StorageCluster", "main", "rebalance").get("doneAt"))
        done = status("StorageCluster", "main", "rebalance")
        assert done["requestedAt"] == at and done["even"] and done["movedShards"] >= 1
        leaders = [shard.segments[-1].leader for shard in (await place.members.service.snapshot()).shards]
        assert {*leaders} == {1, 2, 3}, "each node leads a shard"
        before, passes = await epochs(), operator.stats.passes
        older = {"spec": {"sealRequestedAt": "2026-01-01T00:00:00Z"}}
        place.change("TopicStorage", "orders", older)
        await place.until(lambda: operator.stats.passes > passes + 2)
        assert await epochs() == before, "an older manifest was applied again"
        assert operator.stats.failures == 0


@asynccontextmanager
async def _awake(place: Place, operator: Operator) -> AsyncIterator[None]:
    """Passes follow one another without the pause between them."""

    async def wake() -> None:
        while True:
            operator.wake((place.namespace, "main"))
            await asyncio.sleep(0.1)

    waking = asyncio.create_task(wake())
    try:
        yield
    finally:
        waking.cancel()


async def _next_second(place: Place, kind: str, name: str) -> None:
    """Kubernetes notes ages in whole seconds; which of two of the same second is older, their UIDs decide."""
    made = datetime.fromisoformat(place.get(kind, name)["metadata"]["creationTimestamp"])
    await place.until(lambda: datetime.now(UTC) >= made + timedelta(seconds=1))


@pytest.mark.fault("request-refused-permanently")
async def test_topics_are_made_changed_distinguished_and_left_or_taken_along(place: Place) -> None:
    _make(place)
    kept = {"metadata.name": "kept", "spec": {"clusterRef": "main", "topicName": "kept", "shards": 2}}
    place.make(TOPIC, kept)
    await _next_second(place, "TopicStorage", "kept")
    place.make(TOPIC, {**kept, "metadata.name": "younger"})
    taken = {"clusterRef": "main", "topicName": "taken", "deletionPolicy": "Delete"}
    place.make(TOPIC, {"metadata.name": "taken", "spec": taken})
    wrong = {"clusterRef": "main", "topicName": "wrong", "config": {"no.such.key": "1"}}
    place.make(TOPIC, {"metadata.name": "wrong", "spec": wrong})
    async with place.operator() as operator:
        for name in ("kept", "taken"):
            await place.until(lambda name=name: place.condition("Ready", "TopicStorage", name) == "True")
        await place.until(lambda: place.condition("Conflict", "TopicStorage", "younger") == "True")
        await place.until(lambda: "no.such.key" in str(place.get("TopicStorage", "wrong").get("status")))
        place.change("TopicStorage", "kept", {"spec": {"shards": 3}})
        await place.until(lambda: place.get("TopicStorage", "kept")["status"]["observed"]["shards"] == 3)
        for name in ("kept", "taken", "wrong"):
            place.delete("TopicStorage", name)
        await place.until(lambda: place.names("TopicStorage") == ["younger"])
        await place.until_ready(3)
        assert operator.stats.failures == 0
    names = [topic.name for topic in (await place.members.service.snapshot()).topics if not topic.is_internal]

    assert names == ["kept"]


async def test_nothing_of_kopf_stays_on_any_object(place: Place) -> None:
    _make(place)
    async with place.operator():
        await place.until_ready(3)
    for kind in ("StorageCluster", "StorageNodePool", "StorageNode", "StatefulSet", "Pod", "PersistentVolumeClaim"):
        for one in place.all(kind):
            assert "kopf" not in str(one), (kind, one["metadata"]["name"])


async def test_scaled_out_and_in_again_the_nodes_join_and_leave_by_their_steps(place: Place) -> None:
    _make(place)
    async with place.operator():
        await place.until_ready(3)
        before = {pod["metadata"]["uid"] for pod in place.all("Pod")}
        place.scale(5)
        await place.until_ready(5)
        stayed = before & {pod["metadata"]["uid"] for pod in place.all("Pod")}
        place.scale(3)
        await place.until_ready(3)
        await place.until(lambda: len(place.names("PersistentVolumeClaim")) == 3)

    assert stayed == before
    assert place.names("StorageNode") == ["main-hot-1", "main-hot-2", "main-hot-3"]
    buried = place.get("StorageCluster", "main")["status"]["retiredNodes"]
    assert [one["nodeId"] for one in buried] == [4, 5]
    told = {event["reason"] for event in place.all("Event")}
    assert {"RetirePodStop", "RetireVolume", "NodesLeave"} <= told


@pytest.mark.fault("changes-removes-field-operator")
async def test_what_somebody_changed_of_what_is_ours_is_put_back_once_and_the_rest_is_left(place: Place) -> None:
    _make(place)
    async with place.operator() as operator:
        await place.until_ready(3)
        await _quiet(place, operator)
        before = operator.kubernetes.writes.copy() if operator.kubernetes else Counter()
        place.change("StatefulSet", "main-hot-2", {"spec": {"replicas": 0}})
        place.change("StatefulSet", "main-hot-3", {"metadata": {"labels": {"stratalog.dev/pool": None}}})
        place.change("ConfigMap", "main-config", {"data": {"stratalog.conf": "no.such=1", "theirs": "1"}})
        place.change("Service", "main-bootstrap", {"metadata": {"annotations": {"theirs": "1"}}})

        def is_back() -> bool:
            of_pool = place.get("StatefulSet", "main-hot-3")["metadata"]["labels"].get("stratalog.dev/pool")
            text = place.get("ConfigMap", "main-config")["data"]["stratalog.conf"]
            return (
                place.get("StatefulSet", "main-hot-2")["spec"]["replicas"] == 1
                and of_pool == "hot"
                and "no.such" not in text
            )

        operator.wake((place.namespace, "main"))
        await place.until(is_back)
        await _quiet(place, operator)
        assert operator.kubernetes is not None
        wrote = operator.kubernetes.writes - before
    assert place.get("ConfigMap", "main-config")["data"]["theirs"] == "1"
    assert place.get("Service", "main-bootstrap")["metadata"]["annotations"]["theirs"] == "1"
    assert wrote["patch", "statefulsets"] == 2 and wrote["patch", "configmaps"] == 1 and not wrote["patch", "services"]


async def test_two_replicas_one_works_and_the_other_takes_over(place: Place) -> None:
    _make(place)
    async with place.operator("second") as second:
        async with place.operator("first") as first:
            await place.until_ready(3)
            working = [one for one in (first, second) if one.stats.passes]
            assert len(working) == 1
            pages = [await asyncio.to_thread(_page, one) for one in (first, second)]
            assert sorted("stratalog_operator_is_leader 1\n" in page for page in pages) == [False, True]
            assert any('api_writes_total{verb="patch",resource="statefulsets"}' in page for page in pages)
        place.scale(4)
        await place.until_ready(4)
        assert second.stats.passes > 0


async def test_a_cluster_that_is_deleted_goes_with_what_it_made_and_leaves_its_claims(place: Place) -> None:
    _make(place)
    async with place.operator():
        await place.until_ready(3)
        place.delete("StorageCluster", "main")
        await place.until(lambda: not place.get("StorageCluster", "main"))
        await place.until(lambda: not place.names("StatefulSet") and not place.names("StorageNode"))
        place.delete("StorageNodePool", "hot")
        await place.until(lambda: not place.get("StorageNodePool", "hot"))

    claims = place.all("PersistentVolumeClaim")
    assert len(claims) == 3
    assert not [one for one in claims if "stratalog.dev/last-copy" in one["metadata"]["finalizers"]]


@pytest.mark.fault("object-names-cluster-exist")
async def test_an_object_without_a_cluster_says_what_it_waits_for_and_is_not_held_up(place: Place) -> None:
    place.make(POOL)
    async with place.operator():
        await place.until(lambda: place.condition("Ready", "StorageNodePool", "hot") == "False")
        place.change("StorageNodePool", "hot", {"metadata": {"finalizers": ["stratalog.dev/operator"]}})
        place.delete("StorageNodePool", "hot")
        await place.until(lambda: not place.get("StorageNodePool", "hot"))
    await asyncio.sleep(0)


async def test_parts_that_speak_tls_come_up_and_etcd_restarts_once_for_its_next_authority(place: Place) -> None:
    place.make(CLUSTER, {"spec.tls": {"internal": True}})
    place.make(POOL, {"spec.zones": [], "spec.replicas": 1})

    def members() -> dict[str, str]:
        found = place.all("Pod")
        return {name: one["metadata"]["uid"] for one in found if "-etcd-" in (name := one["metadata"]["name"])}

    async with place.operator() as operator:
        await place.until_ready(1)
        await _quiet(place, operator)
        status, first = place.get("StorageCluster", "main")["status"], members()
        asked = {"metadata": {"annotations": {"stratalog.dev/rotate-ca": "june"}}}
        place.change("StorageCluster", "main", asked)
        await place.until(lambda: len(now := members()) == len(first) and not set(now.values()) & set(first.values()))
        second = members()
        await place.until_ready(1)
        await _quiet(place, operator)

    assert (status["internalProtocol"], status["etcdProtocol"]) == ("SSL", "SSL")
    assert members() == second, "once"
    kept = place.get("Secret", "main-etcd-authority")["data"]
    assert set(kept) == {"ca.crt", "ca.key", "next.crt", "next.key"}, "the next one issues after the overlap"
