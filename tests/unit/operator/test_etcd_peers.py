"""The members of the operator's etcd speak TLS with each other: what a real member takes from another one, and how a
cluster that runs in plain text changes over without losing a majority."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import Unavailable
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.access import AccessFiles, read_access
from stratalog_meta.stores.etcd.client import EtcdClient
from stratalog_operator.apply.certificates import renew_certificates
from stratalog_operator.etcd_members import EtcdMembers
from stratalog_operator.observe.certificates import read_certificates, read_own_of_etcd
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.certificates import plan_certificates
from stratalog_operator.plan.etcd import needs_etcd_state, plan_etcd
from stratalog_operator.plan.observed import Observed, Seen, SeenClaim, SeenEtcd, SeenPod
from stratalog_operator.plan.scope import cluster_of, etcd_peers, wanted_hash
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.names import ANNOTATION_ROTATE_CA
from stratalog_operator.specs.etcd import (
    CERTIFICATES_FOLDER,
    Formation,
    etcd_config_map,
    etcd_objects,
    member_name,
    peer_urls,
)
from stratalog_operator.specs.network_policies import network_policies
from stratalog_operator.specs.objects import Cluster, EtcdPeers, template_hash
from support.cluster_ports import free_port
from support.etcd_server import NO_ETCD, etcd_binary
from support.secret_store import Secrets
from support.waiting import eventually

SPEC = StorageClusterSpec.model_validate({"meta": {"etcd": {}}, "tls": {"internal": True}})
EARLIER = StorageClusterStatus(observed_generation=1, internal_protocol="SSL", etcd_protocol="SSL")
"""Of a cluster that an operator made whose members spoke plain text with each other."""
WEEK = timedelta(days=8)


class Scene:
    """Three real members with the files that the operator writes for them, loopback in the place of names; and the
    pods, claims, Secrets and the status that the operator sees of them."""

    def __init__(self, folder: Path, status: StorageClusterStatus) -> None:
        self._folder, self.status = folder, status
        self.kubernetes, self.now = Secrets(), datetime.now(UTC) - timedelta(days=30)
        self.annotations: dict[str, str] = {}
        self.ports = {name: [free_port() for _ in range(3)] for name in ("2379", "2380", "2381", "2382")}
        self.pods: dict[int, SeenPod] = {}
        self.hashes: dict[tuple[str, str], str] = {}
        self.claims = {
            number: SeenClaim(f"data-main-etcd-{number}", f"claim-{number}", "", number, is_bound=True, is_guarded=True)
            for number in range(3)
        }
        self.has_claims = bool(status.observed_generation)
        self.is_formed = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.etcd = EtcdMembers(self.urls)
        self.kills: list[int] = []

    def urls(self) -> dict[int, tuple[str, ...]]:
        return {
            number: (
                f"https://127.0.0.1:{self.ports['2379'][number]}",
                f"http://127.0.0.1:{self.ports['2380'][number]}",
                f"https://127.0.0.1:{self.ports['2382'][number]}",
            )
            for number in range(3)
        }

    def _names(self, cluster: Cluster) -> dict[str, str]:
        """The URL on loopback by the one with a name."""
        return {
            named: own
            for number in range(3)
            for named, own in zip(peer_urls(cluster, number), self.urls()[number][1:], strict=True)
        }

    # What the operator sees and does ----------------------------------------------------------------------------------
    async def observe(self, etcd: SeenEtcd | None = None) -> Observed:
        now = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        whole = Seen("main", "uid", SPEC, self.status, annotations=self.annotations)
        claims = tuple(self.claims.values()) if self.has_claims else ()
        pods, hashes = tuple(self.pods.values()), dict(self.hashes)
        seen = Observed("data", now, whole, pods=pods, etcd_claims=claims, etcd=etcd, hashes=hashes)
        return replace(seen, certificates=await read_certificates(self.kubernetes, cluster_of(seen), now))

    async def issue(self) -> None:
        for _ in range(6):
            seen = await self.observe()
            actions = plan_certificates(seen).offer.actions
            for action in actions:
                assert isinstance(action, act.RenewCertificates)
                await renew_certificates(self.kubernetes, cluster_of(seen), seen.now, action)
            if not actions:
                self.etcd.show(await read_own_of_etcd(self.kubernetes, cluster_of(seen)))
                return
        raise AssertionError("its certificates are written in every pass")

    async def cluster(self) -> Cluster:
        return cluster_of(await self.observe())

    async def listed(self) -> SeenEtcd:
        """With the URLs that they would have by their names."""
        found, cluster = await self.etcd.observe(), await self.cluster()
        named = {own: name for name, own in self._names(cluster).items()}
        return SeenEtcd(tuple(replace(one, peer_url=named[one.peer_url]) for one in found.members))

    async def one_pass(self) -> list[act.UpdateEtcdMember]:
        seen = await self.observe(await self.listed())
        planned, updates = plan_etcd(seen), []
        for action in planned.offer.actions:
            match action:
                case act.UpdateEtcdMember(member_id, url):
                    await self.etcd.update(member_id, self._names(cluster_of(seen))[url])
                    updates.append(action)
                case act.NoteMember(name, _, member_id):
                    number = int(name[-1])
                    self.claims[number] = replace(self.claims[number], member_id=member_id)
                case act.Apply(manifest):
                    self.hashes[action.key] = wanted_hash(manifest)
                case act.GuardClaim():
                    pass
                case _:
                    raise AssertionError(f"not expected of members that serve: {action}")
        noted = {"etcd_members": planned.members, "etcd_peer_protocol": planned.peers}
        self.status = EARLIER.model_copy(update=noted)
        return updates

    async def outdated(self) -> list[int]:
        wanted = make_of(await self.cluster())
        return [number for number, pod in self.pods.items() if pod.pod_hash != wanted]

    # What Kubernetes does ---------------------------------------------------------------------------------------------
    def mount(self, cluster: Cluster) -> None:
        """As it does for all pods within a minute, those that run included."""
        assert cluster.spec.meta.etcd is not None
        made: Any = etcd_objects(cluster, cluster.spec.meta.etcd)[-1]
        (volume,) = [one for one in made["spec"]["template"]["spec"]["volumes"] if one["name"] == "tls"]
        data = self.kubernetes.held[volume["secret"]["secretName"]]["data"]
        self.certificates.mkdir(exist_ok=True)
        for item in volume["secret"]["items"]:
            new = self.certificates / f"{item['path']}.new"
            new.write_bytes(base64.b64decode(data[item["key"]]))
            new.rename(self.certificates / item["path"])  # members that start read it meanwhile

    @property
    def certificates(self) -> Path:
        return self._folder / "tls"

    def start(self, number: int, cluster: Cluster) -> None:
        assert cluster.spec.meta.etcd is not None
        self.mount(cluster)
        files: Any = etcd_config_map(cluster, cluster.spec.meta.etcd, Formation(is_formed=self.is_formed))["data"]
        text = files[f"main-etcd-{number}.yaml"].replace(CERTIFICATES_FOLDER, str(self.certificates))
        for named, own in self._names(cluster).items():
            text = text.replace(named, own)
        for port, owns in self.ports.items():
            text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{owns[number]}")
        volume = self._folder / f"volume-{number}"
        options = {**json.loads(text), "data-dir": str(volume), "unsafe-no-fsync": True, "log-level": "error"}
        options |= {"advertise-client-urls": self.urls()[number][0], "heartbeat-interval": 50, "election-timeout": 500}
        file = self._folder / f"main-etcd-{number}.json"
        file.write_text(json.dumps(options))
        with (self._folder / f"{number}.log").open("ab") as log:
            made = subprocess.Popen([str(etcd_binary()), f"--config-file={file}"], stdout=log, stderr=log)
        self._processes[number] = made
        name = member_name(cluster, number)
        self.pods[number] = SeenPod(name, f"pod-{made.pid}", make_of(cluster), is_ready=True)

    def kill(self, number: int) -> None:
        self.kills.append(number)
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill(number)

    async def serve(self, *numbers: int) -> None:
        """Waits until these members answer reads that most confirm."""

        async def do_serve() -> bool:
            try:
                seen = await self.etcd.observe()
            except Unavailable:
                return False
            return all((one := seen.member(number)) is not None and one.is_healthy for number in numbers)

        await eventually(do_serve, timeout=60)

    # A client ---------------------------------------------------------------------------------------------------------
    async def put(self, key: str) -> None:
        """As the meta service does. Raises: StratalogError without a majority."""
        request = rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=b"x"))
        await self._with_client(lambda client: client.txn(rpc.TxnRequest(success=[request])))

    async def keys(self) -> set[str]:
        everything = rpc.RangeRequest(key=b"k", range_end=b"l")
        answer = await self._with_client(lambda client: client.range(everything))
        return {one.key.decode() for one in answer.kvs}

    async def _with_client(self, ask: Callable[[EtcdClient], Awaitable[Any]]) -> Any:
        folder = self._folder / "client"
        folder.mkdir(exist_ok=True)
        shown = {"etcd-client.crt": "tls.crt", "etcd-client.key": "tls.key", "etcd-ca.crt": "ca.crt"}
        for key, file in shown.items():
            (folder / file).write_text(self.kubernetes.text("main-certificates", key))
        files = AccessFiles(ca=folder / "ca.crt", certificate=folder / "tls.crt", key=folder / "tls.key")
        client = EtcdClient([f"127.0.0.1:{port}" for port in self.ports["2379"]], access=read_access(files, {}))
        try:
            return await ask(client)
        finally:
            await client.close()


def make_of(cluster: Cluster) -> str:
    assert cluster.spec.meta.etcd is not None
    return template_hash(etcd_objects(cluster, cluster.spec.meta.etcd)[-1])


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[Callable[[StorageClusterStatus], Scene]]:
    made: list[Scene] = []

    def scene(status: StorageClusterStatus) -> Scene:
        made.append(Scene(tmp_path, status))
        return made[-1]

    try:
        yield scene
    finally:
        for one in made:
            one.stop()


def _asks_as_member(port: int, authorities: str, shown: tuple[str, str] | None, folder: Path) -> bytes:
    """What a member answers at its port for other members. Raises: OSError."""
    context = ssl.create_default_context(cadata=authorities)
    if shown is not None:
        certificate, key = folder / "shown.crt", folder / "shown.key"
        certificate.write_text(shown[0])
        key.write_text(shown[1])
        context.load_cert_chain(certificate, key)
    with (
        socket.create_connection(("127.0.0.1", port), 30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(65_536)


@pytest.mark.thorough
@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.fault("certificates-renewed-while-used")
async def test_members_take_only_each_other_as_members_also_after_their_authority_was_replaced(
    scenes: Callable[[StorageClusterStatus], Scene], tmp_path: Path
) -> None:
    scene = scenes(StorageClusterStatus())
    await scene.issue()
    cluster = await scene.cluster()
    assert cluster.etcd_peers is EtcdPeers.SSL and not cluster.is_etcd_held
    for number in range(3):
        scene.start(number, cluster)
    scene.has_claims = True
    await scene.serve(0, 1, 2)
    await scene.one_pass()
    scene.is_formed = True
    assert all(one.peer_url.startswith("https://") for one in (await scene.listed()).members)

    def shown(holder: str) -> tuple[str, str]:
        first, second = (scene.kubernetes.text("main-certificates", f"{holder}.{end}") for end in ("crt", "key"))
        return first, second

    port, authorities = scene.ports["2382"][0], scene.kubernetes.text("main-certificates", "etcd-ca.crt")

    async def asks(who: tuple[str, str] | None) -> bytes:
        return await asyncio.to_thread(_asks_as_member, port, authorities, who, tmp_path)

    assert b"etcdserver" in await asks(shown("etcd-peer"))
    for who in (shown("meta"), shown("operator"), None):
        with pytest.raises(OSError):
            assert not await asks(who), "the connection was closed before an answer"
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", scene.ports["2380"][0])

    scene.annotations = {ANNOTATION_ROTATE_CA: "june"}
    await scene.issue()
    for number in await scene.outdated():
        scene.kill(number)
        scene.start(number, await scene.cluster())
        await scene.serve(0, 1, 2)
    assert scene.kills == [0, 1, 2], "members read at their start alone whom they trust"
    scene.now += WEEK
    before = shown("etcd-peer")
    await scene.issue()
    assert shown("etcd-peer") != before and not await scene.outdated()
    scene.mount(await scene.cluster())
    for number in (1, 2):
        scene.kill(number)
        await scene.serve(0, *{1, 2} - {number})
        scene.start(number, await scene.cluster())
        await scene.serve(0, 1, 2)
    await scene.put("k")
    assert await scene.keys() == {"k"}


@pytest.mark.thorough
@pytest.mark.real_etcd
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
@pytest.mark.fault("etcd-peers-change-over")
async def test_members_that_run_in_plain_text_change_over_to_tls_and_a_majority_serves_all_the_time(
    scenes: Callable[[StorageClusterStatus], Scene],
) -> None:
    scene, written = scenes(EARLIER), set[str]()

    async def write() -> None:
        written.add(f"k{len(written)}")
        await scene.put(max(written, key=lambda key: int(key[1:])))

    await scene.issue()
    for number in range(3):
        scene.start(number, replace(await scene.cluster(), etcd_peers=EtcdPeers.PLAINTEXT))
    await scene.serve(0, 1, 2)
    scene.is_formed = True
    changed: list[str] = []
    for _ in range(20):
        updates = await scene.one_pass()
        changed += [one.peer_url for one in updates]
        await write()
        outdated = await scene.outdated()
        if scene.status.etcd_peer_protocol == "SSL" and not outdated:
            break
        if outdated:
            assert not updates, "no member gets another URL before all have started to listen"
            scene.kill(outdated[0])
            await scene.serve(*{0, 1, 2} - {outdated[0]})
            await write()
            scene.start(outdated[0], await scene.cluster())
        await scene.serve(0, 1, 2)
    cluster = await scene.cluster()

    assert scene.status.etcd_peer_protocol == "SSL" and cluster.etcd_peers is EtcdPeers.SSL
    assert scene.kills == [0, 1, 2, 0, 1, 2] and changed == [peer_urls(cluster, number)[1] for number in range(3)]
    assert await scene.keys() == written
    for port in scene.ports["2380"]:
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)


# What is planned ------------------------------------------------------------------------------------------------------
def _seen(status: StorageClusterStatus, *, has_claims: bool = False) -> Observed:
    claims = tuple(SeenClaim(f"data-main-etcd-{number}", f"c-{number}", "", number) for number in range(3))
    whole = Seen("main", "uid", SPEC, status)
    return Observed("data", "2026-01-01T00:00:00Z", whole, etcd_claims=claims if has_claims else ())


@pytest.mark.parametrize(
    ("status", "has_claims", "peers"),
    [
        (StorageClusterStatus(), False, EtcdPeers.SSL),
        (StorageClusterStatus(), True, EtcdPeers.MIGRATING),
        (EARLIER, True, EtcdPeers.MIGRATING),
        (EARLIER.model_copy(update={"etcd_peer_protocol": "MIGRATING"}), True, EtcdPeers.MIGRATING),
        (EARLIER.model_copy(update={"etcd_peer_protocol": "SSL"}), True, EtcdPeers.SSL),
        (StorageClusterStatus(observed_generation=1, internal_protocol="PLAINTEXT"), True, EtcdPeers.PLAINTEXT),
        (EARLIER.model_copy(update={"etcd_protocol": "PLAINTEXT"}), True, EtcdPeers.PLAINTEXT),
    ],
    ids=["new", "over-claims-of-before", "of-an-earlier-operator", "under-way", "done", "plain", "etcd-plain"],
)
def test_what_members_speak_follows_from_the_status_and_whether_a_log_may_be_there(
    status: StorageClusterStatus, has_claims: bool, peers: EtcdPeers
) -> None:
    """Over the claims of a cluster that was deleted, only the log of the members knows their URLs."""
    assert etcd_peers(_seen(status).cluster, has_claims=has_claims) is peers
    assert needs_etcd_state(_seen(status, has_claims=has_claims)) or not has_claims or peers is not EtcdPeers.MIGRATING


@pytest.mark.parametrize(
    ("peers", "ports", "listens"),
    [
        (EtcdPeers.PLAINTEXT, [2380], "http://0.0.0.0:2380"),
        (EtcdPeers.MIGRATING, [2380, 2382], "http://0.0.0.0:2380,https://0.0.0.0:2382"),
        (EtcdPeers.SSL, [2382], "https://0.0.0.0:2382"),
    ],
)
def test_ports_of_files_pods_services_and_policies_are_those_of_what_members_speak(
    peers: EtcdPeers, ports: list[int], listens: str
) -> None:
    cluster = Cluster("main", "data", "uid", SPEC, has_internal_tls=True, has_etcd_tls=True, etcd_peers=peers)
    assert SPEC.meta.etcd is not None
    files: Any = etcd_config_map(cluster, SPEC.meta.etcd, Formation())["data"]
    service, members = etcd_objects(cluster, SPEC.meta.etcd)
    of_pod: Any = members
    of_service: Any = service
    policy: Any = network_policies(cluster)[0]

    assert json.loads(files["main-etcd-0.yaml"])["listen-peer-urls"] == listens
    (container,) = of_pod["spec"]["template"]["spec"]["containers"]
    assert [one["containerPort"] for one in container["ports"] if one["name"].startswith("peer")] == ports
    assert [one["port"] for one in of_service["spec"]["ports"] if one["name"].startswith("peer")] == ports
    assert [one["port"] for one in policy["spec"]["ingress"][1]["ports"]] == ports


def test_a_member_that_joins_while_others_change_over_names_them_as_etcd_lists_them() -> None:
    cluster = Cluster(
        "main", "data", "uid", SPEC, has_internal_tls=True, has_etcd_tls=True, etcd_peers=EtcdPeers.MIGRATING
    )
    assert SPEC.meta.etcd is not None
    listed = {1: peer_urls(cluster, 1)[0], 2: peer_urls(cluster, 2)[0]}
    joining = Formation(is_formed=True, joining={1: (0, 1, 2)}, listed=listed)
    files: Any = etcd_config_map(cluster, SPEC.meta.etcd, joining)["data"]
    file = json.loads(files["main-etcd-1.yaml"])

    named = [one.split("=")[1] for one in file["initial-cluster"].split(",")]
    assert named == [peer_urls(cluster, 0)[1], listed[1], listed[2]]
    assert file["initial-advertise-peer-urls"] == listed[1]
