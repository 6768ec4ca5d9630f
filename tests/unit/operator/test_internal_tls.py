"""Clusters whose parts speak TLS with each other: from the object to connections, and what of it may be changed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import InvalidRequest, StratalogError
from stratalog.model.members import Member, Part
from stratalog.settings.load import load_process_settings
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_tls import PortTls
from stratalog.tls.identity import TlsIdentity, http_rules, identity_of
from stratalog.tls.subjects import member_of
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_operator.apply.certificates import renew_certificates
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.observe.certificates import read_certificates, read_own
from stratalog_operator.plan.actions import RenewCertificates
from stratalog_operator.plan.certificates import plan_certificates
from stratalog_operator.plan.observed import Observed, Seen
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from stratalog_operator.specs.client_security import CERTIFICATE_FOLDER
from stratalog_operator.specs.meta import meta_objects
from stratalog_operator.specs.node import NodeIdentity, node_set
from stratalog_operator.specs.settings_file import settings_text
from stratalog_operator.specs.volume import volume_objects
from support.golden_specs import pool
from support.meta_worlds import HandClock
from support.operator_world import World, world
from support.secret_store import Secrets

TLS: dict[str, Any] = {"meta": {"etcd": {}}, "tls": {"internal": True}}
MAIN = "data.main"
TOKEN = "the-token-of-the-cluster"


class Rig:
    """The Secrets of a cluster with a node 1, after the passes that make them."""

    def __init__(self, name: str = "main") -> None:
        self.name, self.kubernetes, self.now = name, Secrets(), datetime.now(UTC) - timedelta(days=30)
        self.annotations: dict[str, str] = {}

    async def observe(self) -> Observed:
        now = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        spec = StorageClusterSpec.model_validate(TLS)
        whole = Seen(self.name, "uid", spec, StorageClusterStatus(), annotations=self.annotations)
        node = StorageNodeSpec.model_validate({"clusterRef": self.name, "poolRef": "hot", "nodeId": 1})
        nodes = (Seen(f"{self.name}-hot-1", "u-1", node, StorageNodeStatus()),)
        seen = Observed("data", now, whole, nodes=nodes)
        return replace(seen, certificates=await read_certificates(self.kubernetes, cluster_of(seen), now))

    async def settle(self) -> None:
        for _ in range(6):
            seen = await self.observe()
            actions = plan_certificates(seen).offer.actions
            if not actions:
                return
            (action,) = actions
            assert isinstance(action, RenewCertificates)
            await renew_certificates(self.kubernetes, cluster_of(seen), seen.now, action)
        raise AssertionError("its certificates are written in every pass")

    def mount(self, manifest: Any, folder: Path) -> list[str]:
        """Writes the files that Kubernetes mounts for the certificate of this pod, and returns its settings."""
        spec = manifest["spec"]["template"]["spec"]
        (volume,) = [one["secret"] for one in spec["volumes"] if one["name"] == "tls"]
        data = self.kubernetes.held[volume["secretName"]]["data"]
        folder.mkdir(exist_ok=True)
        for item in volume["items"]:
            (folder / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
        command = spec["containers"][0]["command"]
        given = [value for key, value in pairwise(command) if key == "--set"]
        return [one.replace("$(POD_NAME)", "pod-0").replace(CERTIFICATE_FOLDER, str(folder)) for one in given]


def _identity(rig: Rig, seen: Observed, manifest: Any, folder: Path, part: Part, node: int | None) -> TlsIdentity:
    given = rig.mount(manifest, folder)
    lines = settings_text(cluster_of(seen)).splitlines()
    found = identity_of(load_process_settings(assignments=[*lines, *given], has_bucket=False), part, node)
    assert found is not None
    return found


async def test_each_process_starts_with_its_own_certificate_and_none_with_that_of_another(tmp_path: Path) -> None:
    rig = Rig()
    await rig.settle()
    seen = await rig.observe()
    whole = cluster_of(seen)
    node = node_set(whole, pool(), NodeIdentity(1, "hot"))
    reader = volume_objects(whole, pool(), NodeIdentity(1, "hot"), "mount", "uid-of-mount")[-1]
    meta = meta_objects(whole)[-1]

    assert _identity(rig, seen, node, tmp_path / "1", Part.NODE, 1).member == Member(MAIN, Part.NODE, 1)
    assert _identity(rig, seen, reader, tmp_path / "r", Part.NODE, 1).member == Member(MAIN, Part.NODE, 1)
    assert _identity(rig, seen, meta, tmp_path / "m", Part.META, None).member == Member(MAIN, Part.META)
    with pytest.raises(InvalidRequest, match="give it its own certificate"):
        _identity(rig, seen, node, tmp_path / "2", Part.NODE, 2)


async def test_kubernetes_asks_for_health_by_tls_and_commands_in_a_pod_show_its_certificate_or_the_token() -> None:
    """Never both: what a member asks for goes by its certificate, whatever token it shows."""
    whole = cluster_of(await Rig().observe())
    node, reader = NodeIdentity(1, "hot"), NodeIdentity(7, "hot")
    volume = volume_objects(whole, pool(), reader, "mount", "uid-of-mount")[-1]
    pods = ((node_set(whole, pool(), node), False), (volume, False), (meta_objects(whole)[-1], True))
    for manifest, has_token in pods:
        made: Any = manifest
        container = made["spec"]["template"]["spec"]["containers"][0]
        environment = {one["name"]: one.get("value") for one in container["env"]}
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in made["spec"]["template"]["spec"]["volumes"]}

        assert {container[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")} == {
            "HTTPS"
        }
        assert environment["STRATALOG_ADMIN"] == "https://localhost:9644"
        started = {name: value for name, value in environment.items() if value is not None}
        assert load_process_settings(environment=started, has_bucket=False), "the process starts beside them"
        trusted = volumes[mounts[environment["STRATALOG_CERTIFICATE_FOLDER"]]]["secret"]
        keys = {item["path"] for item in trusted.get("items", ())}
        assert ("STRATALOG_TOKEN_FILE" in environment) is has_token
        assert trusted["secretName"] == ("main-ca" if has_token else "main-certificates")
        assert has_token or keys >= {"tls.crt", "tls.key", "ca.crt"}


# The operator and the meta service ------------------------------------------------------------------------------------
@asynccontextmanager
async def _served(rig: Rig, folder: Path) -> AsyncIterator[tuple[TlsIdentity, HttpMetaConnections]]:
    """The meta service as its pod serves it, and the operator's connections to it."""
    seen = await rig.observe()
    manifest = meta_objects(cluster_of(seen))[-1]
    identity = _identity(rig, seen, manifest, folder, Part.META, None)
    rules = http_rules(load_process_settings(assignments=rig.mount(manifest, folder), has_bucket=False))
    assert rules is not None
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    tls = PortTls(lambda: identity.streaming(rules), lambda: identity.member, member_of)
    server = MetaServer(service, access=HttpAccess(lambda: (TOKEN,)), tls=tls)
    address = await server.start("127.0.0.1", 0)
    connections = HttpMetaConnections(urls_of=lambda cluster: address, etcd_of=lambda cluster: {})
    try:
        yield identity, connections
    finally:
        await connections.close()
        await server.close()
        await service.close()


async def _ask(rig: Rig, connections: HttpMetaConnections) -> str:
    whole = cluster_of(await rig.observe())
    connection = await connections.connect(whole, "", await read_own(rig.kubernetes, whole))
    return (await connection.observer.observe()).cluster_id


async def test_the_operator_proves_itself_by_its_certificate_also_after_both_were_renewed(tmp_path: Path) -> None:
    """Without a token: its certificate is enough."""
    rig = Rig()
    await rig.settle()
    async with _served(rig, tmp_path / "meta") as (identity, connections):
        first = await _ask(rig, connections)
        rig.annotations = {"stratalog.dev/rotate-ca": "june"}
        for days in (0, 8):
            rig.now += timedelta(days=days)
            await rig.settle()
            for is_read in (False, True):
                # The operator has the newest certificate before the service has read its own, and after that.
                if is_read:
                    rig.mount(meta_objects(cluster_of(await rig.observe()))[-1], tmp_path / "meta")
                    identity.refresh()
                await connections.forget(("data", "main"))
                assert await _ask(rig, connections) == first

        assert (identity.stats.reloads, identity.stats.rejected) == (2, 0)


async def test_the_operator_asks_nobody_who_is_not_the_meta_service_of_the_cluster(tmp_path: Path) -> None:
    ours, other = Rig(), Rig("other")
    await ours.settle()
    await other.settle()
    async with _served(other, tmp_path / "meta") as (_, connections):
        with pytest.raises(StratalogError, match="authority that this process trusts"):
            await _ask(ours, connections)


async def test_without_its_certificate_the_operator_asks_nobody_and_says_so(tmp_path: Path) -> None:
    rig = Rig()
    await rig.settle()
    async with _served(rig, tmp_path / "meta") as (_, connections):
        del rig.kubernetes.held["main-certificates"]
        with pytest.raises(StratalogError, match="has no certificate of cluster data/main yet"):
            await _ask(rig, connections)


# What may be changed --------------------------------------------------------------------------------------------------
def _ask_for(one: World, *, tls: bool) -> None:
    spec = one.cluster.spec.model_dump(by_alias=True, exclude_none=True) | {"tls": {"internal": tls}}
    changed = StorageClusterSpec.model_validate(spec)
    one.cluster = replace(one.cluster, spec=changed, generation=one.cluster.generation + 1)


def _schemes(one: World) -> bool:
    return cluster_of(one.observe()).has_internal_tls


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_cluster_that_runs_keeps_what_its_parts_speak_and_says_how_to_change_it(has_tls: bool) -> None:
    one = world(3)
    _ask_for(one, tls=has_tls)
    one.settle()
    assert one.cluster.status.internal_protocol == ("SSL" if has_tls else "PLAINTEXT")
    makes = dict(one.makes)
    _ask_for(one, tls=not has_tls)
    one.settle()

    assert one.makes == makes, "no pod is made differently"
    told = one.condition("StorageCluster", "main", "Reconciled")
    assert (told.status, told.reason) == ("False", "InvalidSpec")
    assert "delete the StorageCluster, whose volume claims stay, and make it again" in told.message
    _ask_for(one, tls=has_tls)
    one.settle()
    assert one.condition("StorageCluster", "main", "Reconciled").status == "True"


def test_a_cluster_of_an_operator_that_knew_no_internal_tls_stays_as_it_is() -> None:
    one = world(3)
    one.settle()
    status = one.cluster.status.model_copy(update={"internal_protocol": ""})
    one.cluster = replace(one.cluster, status=status)
    _ask_for(one, tls=True)
    assert not _schemes(one)
    one.settle()

    assert one.cluster.status.internal_protocol == "PLAINTEXT" and not _schemes(one)


@pytest.mark.parametrize("killed_after", range(3))
def test_a_new_cluster_has_what_it_asks_for_wherever_its_first_pass_ends(killed_after: int) -> None:
    one = world(3)
    _ask_for(one, tls=True)
    one.reconcile(killed_after=killed_after)
    one.settle()

    assert one.cluster.status.internal_protocol == "SSL" and _schemes(one)
