"""E32 without machines: a namespace goes with the objects in it, and with the operator in it.

The test is the namespace's controller: it deletes all that is there, in any order, and nothing can be made there any
more. What the operator's account may do ends with its role binding, which is in the same namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from stratalog_operator.kube.client import path_of
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.process import Operator, OperatorSettings
from stratalog_operator.resources.kinds import CLUSTER, KINDS, POOL, TOPIC
from support.api_server import NO_API_SERVER, TOKEN, ApiServer, apiserver_binary
from support.operator_place import QUICK_LEASE, Place, operator_place

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
    pytest.mark.timeout(600),
]
_NUMBERS = count()
_BINDING = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings/stratalog-operator"


@pytest.fixture
async def place(api: ApiServer) -> AsyncIterator[Place]:
    async with operator_place(api, f"goes-{next(_NUMBERS)}") as made:
        made.make(CLUSTER)
        made.make(POOL, {"spec.zones": []})
        taken = {"clusterRef": "main", "topicName": "orders", "deletionPolicy": "Delete"}
        made.make(TOPIC, {"metadata.name": "orders", "spec": taken})
        yield made


async def _is_up(place: Place) -> None:
    await place.until_ready(3)
    await place.until(lambda: place.condition("Ready", "TopicStorage", "orders") == "True")


def _delete_namespace(place: Place) -> None:
    assert place.api.ask("DELETE", f"/api/v1/namespaces/{place.namespace}").is_ok
    for kind in (*(kind.name for kind in KINDS), "PersistentVolumeClaim", "Lease", "Secret", "ConfigMap"):
        for name in place.names(kind):
            place.api.ask("DELETE", path_of(kind, place.namespace, name))


def _held(place: Place) -> list[str]:
    """Objects that a finalizer keeps, other than one of Kubernetes."""
    kinds = (*(kind.name for kind in KINDS), "PersistentVolumeClaim")
    return [
        f"{kind}/{one['metadata']['name']}"
        for kind in kinds
        for one in place.all(kind)
        if any("stratalog.dev" in finalizer for finalizer in one["metadata"].get("finalizers", []))
    ]


def _policies(place: Place) -> set[str]:
    volumes = [
        one
        for one in place.api.ask("GET", "/api/v1/persistentvolumes").body["items"]
        if one["metadata"]["name"].startswith(f"{place.namespace}-data-")
    ]
    assert len(volumes) == 3
    return {str(one["spec"]["persistentVolumeReclaimPolicy"]) for one in volumes}


@pytest.mark.fault("namespace-deleted-operator")
async def test_a_namespace_goes_whose_operator_is_stopped_at_the_same_moment(place: Place) -> None:
    async with place.operator():
        await _is_up(place)
        await asyncio.to_thread(_delete_namespace, place)

    assert _held(place) == []
    assert place.names("StorageCluster") == place.names("StorageNodePool") == place.names("TopicStorage") == []
    assert _policies(place) == {"Retain"}, "what guards the data from now on"


@pytest.mark.fault("namespace-deleted-operator")
async def test_what_an_operator_without_rights_left_behind_another_one_lets_go(place: Place, api: ApiServer) -> None:
    """The operator's account may be deleted before it has released everything. Nothing in the namespace can prevent
    that; any other operator releases the rest."""
    async with place.operator():
        await _is_up(place)
        assert api.ask("DELETE", _BINDING.format(place.namespace)).is_ok
        # The server needs a moment to know it.
        asked = ("GET", path_of("StorageCluster", place.namespace))
        await place.until(lambda: api.ask(*asked, user="operator").code == 403)
        await asyncio.to_thread(_delete_namespace, place)
    assert _held(place), "without any right it let go of something: the test proves nothing"

    elsewhere = api.namespace(f"{place.namespace}-operator")
    configuration = place.configuration()
    configuration.api_key = {"BearerToken": f"Bearer {TOKEN}"}
    settings = OperatorSettings("another", (place.namespace,), elsewhere, lease_times=QUICK_LEASE)
    stopping, other = asyncio.Event(), Operator(settings, configuration, HttpMetaConnections(lambda _: place.meta_url))
    running = asyncio.create_task(other.run(stopping))
    try:
        await place.until(lambda: not _held(place))
    finally:
        stopping.set()
        assert await asyncio.wait_for(running, 60)

    assert place.names("StorageCluster") == place.names("StorageNodePool") == []
    assert _policies(place) == {"Retain"}
