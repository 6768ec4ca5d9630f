"""Real processes that speak TLS to each other, with certificates and without any token: they serve, they are renewed
while clients write, and none of them is taken for another. One that still has a token serves beside them."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.admin import NewTopic

from stratalog.admin_api.client import AdminClient
from stratalog.model.roles import Role
from stratalog.model.tokens import NamedToken, digest_of, hashed_line
from support.certificates import Authority
from support.cluster_ports import free_port
from support.meta_process import MetaProcess
from support.node_process import NodeFailed, NodeProcess
from support.stream_client import client_side
from support.waiting import eventually_sync


class Secure:
    """A meta service and two nodes, each with a folder of its own certificate."""

    def __init__(self, folder: Path, of_meta: Mapping[str, str] | None = None) -> None:
        """`of_meta`: further settings of the meta service."""
        self.folder = folder
        self.authority = Authority()
        self.operator = self.authority.issue_member("operator")
        self.context = client_side(self.authority, self.operator, folder / "operator")
        (folder / "operator" / "ca.crt").write_bytes(self.authority.certificate)
        settings = tuple(f"{key}={value}" for key, value in (self.settings("meta") | dict(of_meta or {})).items())
        place = ("--data", str(folder / "meta"))
        self.meta = MetaProcess(folder, "meta", *place, settings=settings, scheme="https")
        self.ports = {number: free_port() for number in (1, 2)}
        self.nodes = {number: self.node(number, f"node/{number}", self.ports[number]) for number in (1, 2)}

    def settings(self, part: str) -> dict[str, str]:
        return {"ssl.certificate.folder": str(self.renew(part)), "http.security.protocol": "SSL"}

    def renew(self, part: str) -> Path:
        place = self.folder / f"tls-{part.replace('/', '-')}"
        issued = self.authority.issue_member(part) if "/" in part or part == "meta" else self.authority.issue(part)
        return issued.write_folder(place, self.authority.certificate)

    def node(self, number: int, part: str, port: int, **more: str) -> NodeProcess:
        settings = {
            **self.settings(part),
            "security.inter.broker.protocol": "SSL",
            "listeners": f"clients://127.0.0.1:{port}",
            "offsets.topic.num.partitions": "1",
        }
        return NodeProcess(
            self.folder / f"data-{number}-{part.replace('/', '-')}",
            settings=settings | more,
            verb=("node", "start"),
            arguments=("--meta", self.meta.url, "--id", str(number)),
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def admin(self, number: int) -> AdminClient:
        return AdminClient(f"https://{self.nodes[number].admin}", tls=lambda: self.context)

    def get(self, address: str, path: str) -> str:
        with urllib.request.urlopen(f"https://{address}{path}", timeout=10, context=self.context) as answer:
            return bytes(answer.read()).decode()

    def metric(self, address: str, name: str) -> float:
        lines = self.get(address, "/metrics").splitlines()
        (line,) = [line for line in lines if line.startswith((f"{name} ", f'{name}{{of="own"}} '))]
        return float(line.rpartition(" ")[2])

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("stratalog"))
        environment = os.environ | {"STRATALOG_CERTIFICATE_FOLDER": str(self.folder / "operator")}
        return subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Secure]:
    made = Secure(tmp_path)
    made.meta.start()
    for node in made.nodes.values():
        node.start()
    yield made
    for node in made.nodes.values():
        node.kill()
    made.meta.kill()


@pytest.mark.fault("certificate-replaced-cluster-runs")
def test_a_cluster_serves_over_tls_and_certificates_are_renewed_while_clients_write(cluster: Secure) -> None:
    kafka = KafkaAdmin({"bootstrap.servers": cluster.bootstrap})
    (made,) = kafka.create_topics([NewTopic("flights", 2, 2)]).values()
    made.result(30)
    through_node = ("--admin", f"https://{cluster.nodes[1].admin}")
    asked = [
        cluster.command("topics", *words, *through_node) for words in (("create", "more"), ("delete", "more", "--yes"))
    ]
    assert [one.returncode for one in asked] == [0, 0], asked
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})

    def write(count: int) -> None:
        for number in range(count):
            producer.produce("flights", b"%d" % number, on_delivery=lambda error, _: failures.append(error))
            assert producer.flush(30) == 0

    write(20)
    assert [cluster.admin(number).status().node_id for number in (1, 2)] == [1, 2]
    assert all(len(shard.isr) == 2 for shard in cluster.admin(1).topic("flights").shards)
    listed = cluster.command("nodes", "list", "--meta", cluster.meta.url)
    assert listed.returncode == 0 and listed.stdout.count("127.0.0.1") >= 2, listed.stderr
    page = cluster.get(cluster.meta.address, "/nodes/2")
    assert "cannot be asked" not in page and "does not answer" not in page

    for part in ("meta", "node/1", "node/2"):
        cluster.renew(part)
    addresses = [cluster.meta.admin, *(node.admin for node in cluster.nodes.values())]
    eventually_sync(
        lambda: all(cluster.metric(address, "stratalog_tls_reloads_total") == 1 for address in addresses), timeout=30
    )
    write(20)
    cluster.nodes[2].restart()  # so all its connections are new ones
    write(20)
    eventually_sync(lambda: all(len(one.isr) == 2 for one in cluster.admin(1).topic("flights").shards), timeout=30)
    assert failures == [None] * 60

    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{cluster.meta.url}/v1/nodes", timeout=10, context=client_side(cluster.authority))


def test_no_node_starts_as_another_one_or_with_the_certificate_of_a_client(cluster: Secure) -> None:
    with pytest.raises(NodeFailed, match=r"names stratalog://prod/node/2, and this process needs"):
        cluster.node(3, "node/2", free_port()).start()
    with pytest.raises(NodeFailed, match=r"names no member of a cluster: it needs the URI stratalog://CLUSTER/node/3"):
        cluster.node(3, "alice", free_port()).start()
    plain = {"security.inter.broker.protocol": "PLAINTEXT"}
    with pytest.raises(NodeFailed, match=r"asks for the token|only node 3 may do this"):
        cluster.node(3, "alice", free_port(), **plain).start()
    assert cluster.command("nodes", "list", "--meta", cluster.meta.url, "-o", "json").stdout.count('"node_id"') == 2


@pytest.mark.slow
@pytest.mark.fault("token-replaced-cluster-runs")
def test_a_node_gives_up_the_token_of_the_cluster_beside_one_that_has_it_and_takes_it_again(tmp_path: Path) -> None:
    """As pods do on Kubernetes, one after the other, while the meta service has certificate and token."""
    token, person, roles = "the-token-of-the-cluster", "alice-has-this-token", tmp_path / "roles"
    (tmp_path / "token").write_text(token)
    named = (NamedToken("cluster-token", Role.VIEWER, digest_of(token.encode())),)
    named += (NamedToken("alice", Role.ADMIN, digest_of(person.encode())),)
    roles.write_text("".join(f"{hashed_line(one)}\n" for one in named))
    with_token = {"auth.token.file": str(tmp_path / "token")}
    made = Secure(tmp_path, with_token)
    made.nodes = {
        1: made.node(1, "node/1", made.ports[1], **with_token),
        2: made.node(2, "node/2", made.ports[2], **{"auth.role.tokens.file": str(roles)}),
    }
    by_authority = client_side(made.authority)

    def status(shown: str, number: int, path: str, method: str = "GET") -> int:
        headers = {"Authorization": f"Bearer {shown}", "Content-Type": "application/json"}
        url = f"https://{made.nodes[number].admin}{path}"
        request = urllib.request.Request(url, headers=headers, method=method, data=b"{}" if method == "POST" else None)
        try:
            with urllib.request.urlopen(request, timeout=10, context=by_authority) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def is_in_sync() -> bool:
        return all(len(one.isr) == 2 for one in made.admin(1).topic("flights").shards)

    made.meta.start()
    try:
        for node in made.nodes.values():
            node.start()
        kafka = KafkaAdmin({"bootstrap.servers": made.bootstrap})
        (topic,) = kafka.create_topics([NewTopic("flights", 2, 2)]).values()
        topic.result(30)
        eventually_sync(is_in_sync, timeout=30)
        assert [status(token, number, "/v1/status") for number in (1, 2)] == [200, 200]
        assert [status(token, number, "/v1/verify", "POST") == 403 for number in (1, 2)] == [False, True]
        assert status(person, 2, "/v1/verify", "POST") != 403
        listed = made.command("nodes", "list", "--meta", made.meta.url, "-o", "json")
        assert listed.stdout.count('"node_id"') == 2, listed

        # A command in the pod of node 2 shows the certificate of the node.
        shown = os.environ | {"STRATALOG_CERTIFICATE_FOLDER": str(tmp_path / "tls-node-2")}
        program, admin = str(Path(sys.executable).with_name("stratalog")), f"https://{made.nodes[2].admin}"
        asked = [("segments", "flights"), ("status",), ("mounts", "list"), ("verify", "flights")]
        ran = [subprocess.run([program, *words, "--admin", admin], env=shown, capture_output=True) for words in asked]
        assert [one.returncode == 0 for one in ran] == [True, True, True, False], ran
        assert b"has the role viewer" in ran[-1].stderr

        made.nodes[2].kill()
        made.nodes[2].settings = made.node(2, "node/2", made.ports[2], **with_token).settings
        made.nodes[2].start()
        eventually_sync(is_in_sync, timeout=30)
        assert status(token, 2, "/v1/verify", "POST") != 403
        assert status(person, 2, "/v1/status") == 401
    finally:
        for node in made.nodes.values():
            node.kill()
        made.meta.kill()
