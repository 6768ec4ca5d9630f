"""`kubectl delete -f crds/` against a real API server: each definition goes once its last object has, and none waits.

The definitions are those of a whole server, so these tests have one of their own, and define the kinds each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from stratalog.model.errors import Unavailable
from stratalog_operator.kube.client import path_of
from stratalog_operator.resources.definitions import definition
from stratalog_operator.resources.kinds import CLUSTER, KINDS, POOL, TOPIC
from support.api_server import NO_API_SERVER, TOKEN, ApiServer, api_server, apiserver_binary
from support.operator_place import Place, operator_place
from support.waiting import eventually

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
    pytest.mark.timeout(600),
]
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NUMBERS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api-server")) as found:
        yield found


@pytest.fixture
async def place(server: ApiServer) -> AsyncIterator[Place]:
    for kind in KINDS:
        await asyncio.to_thread(server.define, definition(kind))
    async with operator_place(server, f"removed-{next(_NUMBERS)}") as made:
        made.make(CLUSTER)
        made.make(POOL, {"spec.zones": [], "spec.replicas": 2})
        topic = {"clusterRef": "main", "topicName": "orders", "deletionPolicy": "Delete", "replicationFactor": 1,
                 "minInsyncReplicas": 1}  # fmt: skip
        made.make(TOPIC, {"metadata.name": "orders", "spec": topic})
        yield made


async def _is_up(place: Place) -> None:
    await place.until_ready(2)
    await place.until(lambda: place.condition("Ready", "TopicStorage", "orders") == "True")


def _defined(server: ApiServer) -> list[str]:
    found = server.ask("GET", _DEFINITIONS).body["items"]
    return sorted(one["spec"]["names"]["kind"] for one in found if one["spec"]["group"] == "stratalog.dev")


def _remove(server: ApiServer) -> None:
    """As `kubectl delete -f crds/`: all at once, in the order of the files."""
    for one in server.ask("GET", _DEFINITIONS).body["items"]:
        if one["spec"]["group"] == "stratalog.dev":
            assert server.ask("DELETE", f"{_DEFINITIONS}/{one['metadata']['name']}").is_ok


async def _gone(server: ApiServer) -> None:
    await eventually(lambda: asyncio.to_thread(lambda: not _defined(server)), timeout=120)


def _volumes_are_kept(place: Place) -> bool:
    claims = place.all("PersistentVolumeClaim")
    nodes = [one for one in claims if one["metadata"]["labels"].get("stratalog.dev/part") == "node"]
    policies = {
        place.api.ask("GET", f"/api/v1/persistentvolumes/{one['spec']['volumeName']}").body["spec"][
            "persistentVolumeReclaimPolicy"
        ]
        for one in nodes
    }
    return (
        len(nodes) == 2 and policies == {"Retain"} and not any("deletionTimestamp" in one["metadata"] for one in nodes)
    )


@asynccontextmanager
async def _operator_in_a_pod(place: Place) -> AsyncIterator[None]:
    """It ends when a kind that it watches is gone, and is started again. The end of the process ends kopf's watchers,
    too, which run on once one of them has failed."""
    stopping = asyncio.Event()
    before = asyncio.all_tasks()

    async def lives() -> None:
        for number in count():
            try:
                await place.new_operator(f"life-{number}").run(stopping)
            except Unavailable:
                continue
            if stopping.is_set():
                return

    running = asyncio.create_task(lives())
    try:
        yield
    finally:
        stopping.set()
        await running
        watchers = [one for one in asyncio.all_tasks() - before if one.get_name().startswith("watcher for ")]
        for watcher in watchers:
            watcher.cancel()
        if watchers:
            await asyncio.wait(watchers)


@pytest.mark.fault("definitions-deleted-operator-starts")
async def test_all_definitions_go_beside_an_operator_and_volumes_stay(place: Place, server: ApiServer) -> None:
    async with _operator_in_a_pod(place):
        await _is_up(place)
        await asyncio.to_thread(_remove, server)
        await _gone(server)

    assert _volumes_are_kept(place)


@pytest.mark.fault("definitions-deleted-operator-starts")
async def test_an_operator_that_starts_while_they_go_releases_what_waits(place: Place, server: ApiServer) -> None:
    """It would wait for the definitions that are gone already, and they for it."""
    async with place.operator():
        await _is_up(place)
    await asyncio.to_thread(_remove, server)
    await eventually(lambda: asyncio.to_thread(lambda: "StorageNode" not in _defined(server)), timeout=120)
    assert {"StorageCluster", "StorageNodePool", "TopicStorage"} <= set(_defined(server)), "they wait for an operator"

    async with place.operator("two"):
        await _gone(server)
    assert _volumes_are_kept(place)


@pytest.mark.fault("definitions-deleted-operator-starts")
async def test_a_person_releases_what_waits_for_an_operator_that_is_gone(
    place: Place, server: ApiServer, tmp_path: Path
) -> None:
    async with place.operator():
        await _is_up(place)
    await asyncio.to_thread(_remove, server)
    await eventually(lambda: asyncio.to_thread(lambda: "StorageNode" not in _defined(server)), timeout=120)

    told = await _release(place, tmp_path)
    assert told.returncode == 0, told.stderr
    assert f"released: StorageCluster {place.namespace}/main" in told.stdout
    await _gone(server)
    assert _volumes_are_kept(place)
    again = await _release(place, tmp_path)
    assert (again.returncode, "nothing that is being deleted waits" in again.stdout) == (0, True)


async def test_a_person_is_reported_what_still_waits(place: Place, tmp_path: Path) -> None:
    """Its volumes would be deleted with the cluster, which no annotation allows."""
    async with place.operator():
        await _is_up(place)
    place.change("StorageCluster", "main", {"spec": {"storageRetention": {"whenDeleted": "Delete"}}})
    place.delete("StorageCluster", "main")
    told = await _release(place, tmp_path)

    assert told.returncode == 1
    assert f"still waits: StorageCluster {place.namespace}/main" in told.stderr
    assert "allow-deletion=" in place.get("StorageCluster", "main")["status"]["conditions"][1]["message"]
    assert place.api.ask("GET", path_of("StorageNodePool", place.namespace, "hot")).is_ok


async def _release(place: Place, folder: Path) -> subprocess.CompletedProcess[str]:
    """`stratalog operator release`, as the administrator."""
    command = [str(Path(sys.executable).with_name("stratalog")), "operator", "release", "--namespace", place.namespace]
    environment = os.environ | {"KUBECONFIG": str(_kubeconfig(place.api, folder))}
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=300
    )


def _kubeconfig(server: ApiServer, folder: Path) -> Path:
    named = {"name": "test"}
    cluster = {"server": server.url, "certificate-authority": str(server.certificates.ca)}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**named, "cluster": cluster}],
        "users": [{**named, "user": {"token": TOKEN}}],
        "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(body))
    return path
