"""The etcd that the operator runs, over TLS: which clients a real member takes, and what happens while its authority is
replaced."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import Unavailable
from stratalog.tls.material import TlsMaterial
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.access import AccessFiles, read_access
from stratalog_meta.stores.etcd.client import EtcdClient
from stratalog_operator.apply.certificates import renew_certificates
from stratalog_operator.etcd_members import EtcdMembers
from stratalog_operator.observe.certificates import read_certificates, read_own_of_etcd
from stratalog_operator.plan.actions import AuthorityStep, RenewCertificates
from stratalog_operator.plan.certificates import plan_certificates
from stratalog_operator.plan.observed import Observed, Seen, SeenPod
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.names import ANNOTATION_ROTATE_CA
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from stratalog_operator.specs.cluster import cluster_objects
from stratalog_operator.specs.etcd import CERTIFICATES_FOLDER, Formation, etcd_config_map, etcd_objects
from stratalog_operator.specs.meta import meta_objects
from stratalog_operator.specs.objects import ETCD_METRICS_PORT, Cluster, template_hash
from support.cluster_ports import free_port
from support.etcd_server import NO_ETCD, etcd_binary
from support.secret_store import Secrets
from support.waiting import eventually

SPEC = StorageClusterSpec.model_validate({"meta": {"etcd": {"replicas": 1}}, "tls": {"internal": True}})
WEEK = timedelta(days=8)


class Rig:
    """The Secrets of a cluster with one member of etcd and a node 1. The pod of the member is of the newest make,
    unless `is_rolled` is False."""

    def __init__(self) -> None:
        self.kubernetes, self.now = Secrets(), datetime.now(UTC) - timedelta(days=30)
        self.annotations: dict[str, str] = {}
        self.is_rolled = True
        self.status = StorageClusterStatus()

    async def observe(self) -> Observed:
        now = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        whole = Seen("main", "uid", SPEC, self.status, annotations=self.annotations)
        node = StorageNodeSpec.model_validate({"clusterRef": "main", "poolRef": "hot", "nodeId": 1})
        seen = Observed("data", now, whole, nodes=(Seen("main-hot-1", "u-1", node, StorageNodeStatus()),))
        seen = replace(seen, certificates=await read_certificates(self.kubernetes, cluster_of(seen), now))
        made = _hash(cluster_of(seen)) if self.is_rolled else "earlier"
        return replace(seen, pods=(SeenPod("main-etcd-0", "u-etcd", made, is_ready=True),))

    async def one_pass(self) -> RenewCertificates | None:
        seen = await self.observe()
        for action in plan_certificates(seen).offer.actions:
            assert isinstance(action, RenewCertificates)
            await renew_certificates(self.kubernetes, cluster_of(seen), seen.now, action)
            return action
        return None

    async def settle(self) -> None:
        for _ in range(6):
            if await self.one_pass() is None:
                return
        raise AssertionError("its certificates are written in every pass")

    async def cluster(self) -> Cluster:
        return cluster_of(await self.observe())

    def mount(self, manifest: Any, volume: str, folder: Path) -> Path:
        """Writes the files that Kubernetes mounts for this volume of the pod."""
        (found,) = [one for one in manifest["spec"]["template"]["spec"]["volumes"] if one["name"] == volume]
        data = self.kubernetes.held[found["secret"]["secretName"]]["data"]
        folder.mkdir(exist_ok=True)
        for item in found["secret"]["items"]:
            (folder / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
        return folder


def _hash(cluster: Cluster) -> str:
    assert cluster.spec.meta.etcd is not None
    return template_hash(etcd_objects(cluster, cluster.spec.meta.etcd)[-1])


class Member:
    """A real etcd with the file that the operator writes for it; loopback in the place of names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, self._peer, self._metrics = free_port(), free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def urls(self) -> dict[int, tuple[str, str]]:
        return {0: (f"https://127.0.0.1:{self.port}", f"https://127.0.0.1:{self._peer}")}

    def start(self, cluster: Cluster, certificates: Path) -> None:
        assert cluster.spec.meta.etcd is not None
        files: Any = etcd_config_map(cluster, cluster.spec.meta.etcd, Formation())["data"]
        text = files["main-etcd-0.yaml"].replace(CERTIFICATES_FOLDER, str(certificates))
        for port, own in ((2379, self.port), (2382, self._peer), (2381, self._metrics)):
            text = text.replace(f":{port}", f":{own}")
        text = text.replace("0.0.0.0", "127.0.0.1").replace(f"main-etcd-0.{cluster.host('main-etcd')}", "127.0.0.1")
        options = {**json.loads(text), "data-dir": str(self._folder / "data"), "unsafe-no-fsync": True}
        file = self._folder / "etcd.json"
        file.write_text(json.dumps(options))
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen([str(etcd_binary()), f"--config-file={file}"], stdout=log, stderr=log)

    def is_ready(self, cluster: Cluster) -> bool:
        """As Kubernetes asks, without a certificate."""
        assert cluster.spec.meta.etcd is not None
        made: Any = etcd_objects(cluster, cluster.spec.meta.etcd)[-1]
        (container,) = made["spec"]["template"]["spec"]["containers"]
        asked = container["readinessProbe"]["httpGet"]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        assert ports[asked["port"]] == ETCD_METRICS_PORT
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}{asked['path']}", timeout=30) as answer:
            return bool(json.loads(answer.read())["health"] == "true")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path)
    try:
        yield made
    finally:
        made.stop()


async def _answers(member: Member, own: TlsMaterial | None) -> bool:
    """Whether the member takes this client, as the operator asks it."""
    etcd = EtcdMembers(member.urls)
    etcd.show(own)
    try:
        (one,) = (await etcd.observe()).members
    except Unavailable:
        return False
    return one.is_healthy


async def _meta_reads(member: Member, folder: Path) -> None:
    """As the meta service does. Raises: StratalogError."""
    files = AccessFiles(ca=folder / "ca.crt", certificate=folder / "tls.crt", key=folder / "tls.key")
    client = EtcdClient([f"127.0.0.1:{member.port}"], access=read_access(files, {}))
    try:
        await client.range(rpc.RangeRequest(key=b"x"))
    finally:
        await client.close()


@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.fault("certificates-renewed-while-used")
async def test_a_member_takes_meta_service_and_operator_also_after_its_authority_was_replaced_and_no_one_else(
    member: Member, tmp_path: Path
) -> None:
    rig = Rig()
    await rig.settle()
    cluster = await rig.cluster()
    assert cluster.spec.meta.etcd is not None
    of_member, of_meta = etcd_objects(cluster, cluster.spec.meta.etcd)[-1], meta_objects(cluster)[-1]
    first = await read_own_of_etcd(rig.kubernetes, cluster)
    assert first is not None
    member.start(cluster, rig.mount(of_member, "tls", tmp_path / "member"))

    async def is_up() -> bool:
        return await _answers(member, first)

    await eventually(is_up, timeout=30)
    assert await asyncio.to_thread(member.is_ready, cluster)
    await _meta_reads(member, rig.mount(of_meta, "etcd-client", tmp_path / "meta"))
    for holder in ("node-1", "meta", "operator"):
        chain, key = (rig.kubernetes.text("main-certificates", f"{holder}.{end}").encode() for end in ("crt", "key"))
        assert not await _answers(member, replace(first, chain=chain, key=key)), "another authority's"
    assert not await _answers(member, replace(first, chain=b"", key=b""))

    rig.annotations = {ANNOTATION_ROTATE_CA: "june"}
    await rig.settle()
    between = await read_own_of_etcd(rig.kubernetes, cluster)
    assert between is not None and between.chain == first.chain
    member.stop()  # the roll: the newest authority makes another pod of it
    member.start(await rig.cluster(), rig.mount(of_member, "tls", tmp_path / "member"))
    await eventually(is_up, timeout=30)
    rig.now += WEEK
    await rig.settle()
    second = await read_own_of_etcd(rig.kubernetes, cluster)
    assert second is not None and second.chain != first.chain
    # Neither the member nor its clients have started again since.
    assert await _answers(member, second), "a client that has the new certificate before the member has its own"
    rig.mount(of_member, "tls", tmp_path / "member")
    assert await _answers(member, second) and await _answers(member, between)
    await _meta_reads(member, rig.mount(of_meta, "etcd-client", tmp_path / "meta"))


async def test_the_next_authority_issues_only_once_every_member_has_started_with_it() -> None:
    rig = Rig()
    await rig.settle()
    before = _hash(await rig.cluster())
    rig.annotations, rig.is_rolled = {ANNOTATION_ROTATE_CA: "june"}, False
    await rig.settle()
    added = _hash(await rig.cluster())
    assert added != before, "its members restart, one after the other"
    rig.now += WEEK
    seen = plan_certificates(await rig.observe()).offer.actions
    assert [one.step for one in seen if isinstance(one, RenewCertificates)] == [AuthorityStep.SWITCH], "of the cluster"
    await rig.settle()
    authority = rig.kubernetes.text("main-etcd-authority", "ca.crt")
    rig.is_rolled = True
    made = await rig.one_pass()

    assert made is not None and made.of_etcd is not None and made.of_etcd[0] is AuthorityStep.SWITCH
    assert set(made.issued) == {"etcd", "etcd-client", "etcd-peer"}
    assert rig.kubernetes.text("main-etcd-authority", "former.crt") == authority
    assert _hash(await rig.cluster()) == added, "they have the authority already: they do not restart again"


async def test_an_authority_of_etcd_that_has_expired_is_not_waited_for() -> None:
    rig = Rig()
    await rig.settle()
    rig.is_rolled = False
    rig.now += timedelta(days=1_825)
    await rig.settle()

    certificates = (await rig.observe()).certificates
    assert certificates is not None and certificates.etcd is not None and certificates.etcd.issuer is not None
    assert certificates.etcd.issuer.not_after > rig.now.isoformat()


def _kinds(cluster: Cluster) -> set[tuple[Any, Any]]:
    made: list[Any] = list(cluster_objects(cluster))
    return {(one["kind"], one["metadata"]["name"]) for one in made}


async def test_members_are_made_once_their_certificates_are_there_and_stay_while_those_cannot_be_read() -> None:
    rig = Rig()
    pods = ("StatefulSet", "main-etcd")
    assert pods not in _kinds(await rig.cluster()) and ("Service", "main-etcd") in _kinds(await rig.cluster())
    await rig.settle()
    assert pods in _kinds(await rig.cluster())
    node = rig.kubernetes.text("main-certificates", "node-1.crt")
    del rig.kubernetes.held["main-etcd-authority"]["data"]["ca.key"]
    rig.now += timedelta(days=320)
    await rig.settle()

    assert pods not in _kinds(await rig.cluster()), "it is neither changed nor restarted"
    assert "main-etcd-authority" in plan_certificates(await rig.observe()).invalid
    assert rig.kubernetes.text("main-certificates", "node-1.crt") != node, "those of nodes are renewed"


@pytest.mark.parametrize(
    ("status", "has_tls"),
    [
        ({}, True),
        ({"observed_generation": 1, "internal_protocol": "SSL", "etcd_protocol": "SSL"}, True),
        ({"observed_generation": 1, "internal_protocol": "SSL", "etcd_protocol": "PLAINTEXT"}, False),
        ({"observed_generation": 1, "internal_protocol": "SSL"}, False),
        ({"observed_generation": 1, "internal_protocol": "PLAINTEXT"}, False),
    ],
    ids=["new", "made-with-it", "made-without-it", "of-an-earlier-operator", "in-plain-text"],
)
async def test_a_cluster_keeps_what_its_etcd_speaks(status: dict[str, Any], has_tls: bool) -> None:
    rig = Rig()
    rig.status = StorageClusterStatus(**status)
    cluster = await rig.cluster()
    meta: Any = meta_objects(cluster)[-1]
    environment = {one["name"] for one in meta["spec"]["template"]["spec"]["containers"][0]["env"]}

    assert cluster.has_etcd_tls is has_tls
    assert ("STRATALOG_ETCD_KEY" in environment) is has_tls
