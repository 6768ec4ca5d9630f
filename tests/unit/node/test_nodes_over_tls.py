"""Nodes that prove to each other who they are: each follows as itself alone, and clients never as a node."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import (
    FINAL_EPOCH,
    NO_SESSION,
    ReplicaFetch,
    SegmentAnswer,
    SegmentAsk,
    decode_replica_answer,
    encode_replica_fetch,
)
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.members import Part
from stratalog.model.mounts import MountMode
from stratalog.settings.process import ProcessSettings
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity, identity_of, internal_rules
from stratalog.tls.material import TlsFiles
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.peer_connection import PeerConnection
from stratalog_node.volume.listener import VolumeListener
from stratalog_node.volume.sealed_files import VolumeStats
from stratalog_node.volume.volume_node import VolumeNode
from support.certificates import DAY, Authority, Issued
from support.cluster_ports import free_port
from support.node_cluster import NodeCluster
from support.stream_client import StreamClient, client_side
from support.tls_in_memory import flood
from support.waiting import eventually
from unit.node.test_mounted_data_sets import gone, is_served

SSL = "security.inter.broker.protocol"


class SecureNodes(NodeCluster):
    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch)
        self.authority = Authority()
        self._clients = 0

    def folder(self, node_id: int) -> Path:
        return self.root / f"tls-{node_id}"

    async def start(self, *node_ids: int, **settings: Any) -> None:
        for node_id in node_ids:
            folder = self.folder(node_id)
            if not folder.exists():
                self.authority.issue_member(f"node/{node_id}").write_folder(folder, self.authority.certificate)
            own = {"ssl_certificate_folder": str(folder), "security_inter_broker_protocol": "SSL"} | settings
            identity = identity_of(ProcessSettings(**own), Part.NODE, node_id)
            assert identity is not None
            self.identities[node_id] = identity
            await super().start(node_id, **own)

    def client(self, own: Issued | None) -> ssl.SSLContext:
        self._clients += 1
        return client_side(self.authority, own, self.root / f"client-{self._clients}")

    def token(self, node_id: int) -> int:
        node = next(iter(self.nodes.values())).catalog.node(node_id)
        assert node is not None
        return node.token


@asynccontextmanager
async def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *node_ids: int) -> AsyncIterator[SecureNodes]:
    async with SecureNodes(tmp_path, monkeypatch) as cluster:
        await cluster.start(*node_ids)
        yield cluster


async def code_of(
    address: tuple[str, int], context: ssl.SSLContext | None, replica_id: int, token: int, *, is_follower: bool = True
) -> int:
    """What a fetch under this id and token is answered with. Raises: OSError where the connection ends."""
    client = await StreamClient.connect(address, context)
    try:
        session = (0, 0) if is_follower else (NO_SESSION, FINAL_EPOCH)
        await client.write(encode_replica_fetch(1, "thief", ReplicaFetch(replica_id, token, 0, 1 << 20, *session)))
        _, answer = decode_replica_answer(memoryview(await client.read_frame())[4:])
        return answer.error_code
    finally:
        client.close()


async def led_by(cluster: NodeCluster, node_id: int, replicas: int) -> ShardKey:
    key = await cluster.shard(replicas)
    while cluster.leader(key) != node_id:
        key = await cluster.shard(replicas, f"again-{key.topic_id}")
    return key


async def test_nodes_follow_each_other_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with secure(tmp_path, monkeypatch, 1, 2, 3) as cluster:
        key = await led_by(cluster, 1, 3)
        values = [b"%d" % number * 10_000 for number in range(20)]
        for value in values:
            await cluster.append(key, value)
        assert await cluster.values(key) == values
        assert set(cluster.segments(key)[-1].isr) == {1, 2, 3}
        await cluster.kill(1)
        await cluster.lose(1)
        assert await cluster.values(key) == values, "what was acknowledged is on the others"


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize("is_follower", [True, False], ids=["follower", "sealed read"])
async def test_a_fetch_counts_only_with_the_certificate_of_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_follower: bool
) -> None:
    """A thief has the token of a node's life, and another certificate of the same authority."""
    async with secure(tmp_path, monkeypatch, 1, 2, 3) as cluster:
        await led_by(cluster, 1, 3)
        address, token = cluster.nodes[1].address, cluster.token(2)
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for thief in (
            cluster.authority.issue("alice"),
            cluster.authority.issue("node-2"),
            cluster.authority.issue("x", uris=["https://prod/node/2"]),
            cluster.authority.issue_member("node/3"),
            cluster.authority.issue_member("meta"),
            cluster.authority.issue_member("operator"),
        ):
            assert await code_of(address, cluster.client(thief), 2, token, is_follower=is_follower) == refused
        own = cluster.authority.issue_member("node/2")
        assert await code_of(address, cluster.client(own), 2, token, is_follower=is_follower) == 0
        wrong = await code_of(address, cluster.client(own), 2, token + 1, is_follower=is_follower)
        assert wrong == ErrorCode.BROKER_ID_NOT_REGISTERED, "the certificate alone is not enough either"


async def test_who_is_not_of_the_cluster_gets_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with secure(tmp_path, monkeypatch, 1, 2) as cluster:
        await led_by(cluster, 1, 2)
        address, token = cluster.nodes[1].address, cluster.token(2)
        foreign = Authority().issue_member("node/2")
        expired = cluster.authority.issue("x", begins=-2 * DAY, ends=-DAY, uris=["stratalog://prod/node/2"])
        two_names = cluster.authority.issue("x", uris=["stratalog://prod/node/2", "stratalog://prod/node/1"])
        for context in (
            None,
            cluster.client(None),
            cluster.client(foreign),
            cluster.client(expired),
            cluster.client(two_names),
            cluster.client(cluster.authority.issue_member("node/2", "test")),
        ):
            with pytest.raises(OSError):
                await code_of(address, context, 2, token)


async def test_a_node_is_none_on_the_listeners_of_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SecureNodes(tmp_path, monkeypatch) as cluster:
        port = free_port()
        further = {
            "listeners": f"clients://127.0.0.1:{port}",
            "listener_security_protocol_map": "clients:SSL",
            "ssl_client_auth": "required",
        }
        await cluster.start(1, **further)
        await cluster.start(2)
        await led_by(cluster, 1, 2)
        own = cluster.client(cluster.authority.issue_member("node/2"))
        with pytest.raises(OSError):
            await code_of(("127.0.0.1", port), own, 2, cluster.token(2))
        assert await code_of(cluster.nodes[1].address, own, 2, cluster.token(2)) == 0


# What a node takes for another one ------------------------------------------------------------------------------------
@pytest.mark.fault("token-stolen-other-certificate")
async def test_a_node_asks_no_other_than_the_one_it_dialled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 3 answers where node 2 is expected, and does not even hear the token."""
    async with secure(tmp_path, monkeypatch, 1, 2, 3) as cluster:
        key = await led_by(cluster, 2, 3)
        await cluster.append(key, b"one")
        shard = cluster.nodes[2].shards.get(key)
        assert shard is not None
        asked = {shard.topic.name: [0]}
        for number, is_reached in ((2, True), (3, False)):
            address = cluster.nodes[number].address
            line = PeerConnection(2, cluster.nodes[1]._asker, lambda address=address: address, 1 << 20)  # type: ignore[misc]
            try:
                if is_reached:
                    assert await line.ask_ends(asked, 10.0) == {(shard.topic.name, 0): 1}
                else:
                    with pytest.raises(
                        Unavailable, match=r"names stratalog://prod/node/3, and stratalog://prod/node/2"
                    ):
                        await line.ask_ends(asked, 10.0)
            finally:
                line.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_rules_for_clients_take_nothing_from_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Clients without rules see nothing; a node that asks where shards end is none of them."""
    async with SecureNodes(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, authorizer_class_name="stratalog", security_inter_broker_protocol=protocol)
        key = await led_by(cluster, 1, 2)
        await cluster.append(key, b"one")
        shard = cluster.nodes[1].shards.get(key)
        assert shard is not None
        line = PeerConnection(1, cluster.nodes[2]._asker, lambda: cluster.nodes[1].address, 1 << 20)
        try:
            assert await line.ask_ends({shard.topic.name: [0]}, 10.0) == {(shard.topic.name, 0): 1}
        finally:
            line.close()


async def test_a_peer_that_speaks_plain_text_or_has_expired_is_named_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    folder = authority.issue_member("node/1").write_folder(tmp_path / "own", authority.certificate)
    own = TlsIdentity(TlsFiles(str(folder)), TlsRules(), servers=())
    expired = authority.issue("x", begins=-2 * DAY, ends=-DAY, uris=["stratalog://prod/node/2"])
    old = TlsIdentity(
        TlsFiles(str(expired.write_folder(tmp_path / "old", authority.certificate))),
        TlsRules(),
        now=lambda: datetime.now(UTC) - 1.5 * DAY,
    )

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\0\0\0\x08plain...")
        writer.close()

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    for context, serve, words in (
        (None, answers, "it speaks no TLS there"),
        (None, ends, r"compare security\.inter\.broker\.protocol"),
        (old.server, ends, "its certificate has expired"),
    ):
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        address = server.sockets[0].getsockname()
        line = PeerConnection(2, Asker(1, 7, own.to_node), lambda address=address: address, 1 << 20)  # type: ignore[misc]
        with pytest.raises(Unavailable, match=words):
            await line.ask_ends({"flights": [0]}, 10.0)
        server.close()


def test_a_node_starts_with_its_own_certificate_alone(tmp_path: Path) -> None:
    authority = Authority()
    for issued, words in (
        (authority.issue_member("node/2"), "names stratalog://prod/node/2, and this process needs"),
        (authority.issue_member("meta"), "names stratalog://prod/meta"),
        (authority.issue("node-1"), "names no member of a cluster: it needs the URI stratalog://CLUSTER/node/1"),
    ):
        folder = issued.write_folder(tmp_path, authority.certificate)
        settings = ProcessSettings(ssl_certificate_folder=str(folder), security_inter_broker_protocol="SSL")
        with pytest.raises(InvalidRequest, match=words):
            identity_of(settings, Part.NODE, 1)
    (tmp_path / "ca.crt").unlink()
    authority.issue_member("node/1").write_folder(tmp_path)
    with pytest.raises(InvalidRequest, match=r"security\.inter\.broker\.protocol=SSL asks clients for certificates"):
        identity_of(settings, Part.NODE, 1)


# Renewal ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("certificate-replaced-cluster-runs")
async def test_certificates_and_the_authority_are_renewed_under_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step reaches one node after another, and all connections between them end each time."""
    async with secure(tmp_path, monkeypatch, 1, 2) as cluster:
        key = await led_by(cluster, 1, 2)
        await cluster.append(key, b"first")
        other = Authority("another authority")
        both = cluster.authority.certificate + other.certificate
        count = 1
        for issuer, trusted in (
            (cluster.authority, both),
            (other, both),
            (other, other.certificate),
        ):
            for node_id in (1, 2):
                identity = cluster.identities[node_id]
                issuer.issue_member(f"node/{node_id}").write_folder(cluster.folder(node_id), trusted)
                identity.refresh()
                assert identity.stats.is_rejected == 0
                for connection in list(cluster.nodes[1].server._connections):
                    connection.close("a test ends it")
                await cluster.append(key, b"%d" % count)
                count += 1
                await eventually(lambda: set(cluster.segments(key)[-1].isr) == {1, 2})
        assert len(await cluster.values(key)) == count
        old = client_side(other, cluster.authority.issue_member("node/2"), tmp_path / "old")
        with pytest.raises(OSError):
            await code_of(cluster.nodes[1].address, old, 2, cluster.token(2))


# The directory of a retired node --------------------------------------------------------------------------------------
async def nothing(ask: SegmentAsk) -> SegmentAnswer[bytes]:
    raise AssertionError(f"nothing was asked for: {ask}")


async def test_the_directory_of_a_retired_node_is_read_by_nodes_alone(tmp_path: Path) -> None:
    authority = Authority()
    folder = authority.issue_member("node/9").write_folder(tmp_path / "own", authority.certificate)
    settings = ProcessSettings(ssl_certificate_folder=str(folder), security_inter_broker_protocol="SSL")
    identity = identity_of(settings, Part.NODE, 9)
    rules = internal_rules(settings)
    assert identity is not None and rules is not None
    listener = VolumeListener(nothing, lambda node_id, token: (node_id, token) == (2, 77), VolumeStats())
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    await listener.open(listening, lambda: identity.streaming(rules), identity.principal_of)

    def client(own: Issued | None) -> ssl.SSLContext:
        return client_side(authority, own, tmp_path / "client")

    async def code(own: Issued) -> int:
        return await code_of(address, client(own), 2, 77, is_follower=False)

    try:
        assert await code(authority.issue_member("node/2")) == 0
        for thief in (
            authority.issue("alice"),
            authority.issue_member("node/3"),
            authority.issue_member("operator"),
            authority.issue_member("node/2", "test"),
        ):
            assert await code(thief) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for context in (None, client(None)):
            with pytest.raises(OSError):
                await code_of(address, context, 2, 77, is_follower=False)
        assert await flood(address, client(authority.issue("alice"))) < 200
        assert await code(authority.issue_member("node/2")) == 0
        renewed = authority.issue_member("node/9")
        renewed.write_folder(folder)
        identity.refresh()
        reader, writer = await asyncio.open_connection(
            *address, ssl=client(authority.issue_member("node/2")), server_hostname="127.0.0.1"
        )
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert ssl.DER_cert_to_PEM_cert(shown).strip().encode() == renewed.certificate.strip()
        assert reader is not None
        writer.transport.abort()
    finally:
        await listener.close()
        listening.close()


async def test_nodes_read_the_directory_of_a_retired_node_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.05)
    async with secure(tmp_path, monkeypatch, 1, 2, 3) as cluster:
        key = await cluster.shard(1)
        left = cluster.leader(key)
        await cluster.append(key, b"kept in the directory")
        assert cluster.nodes[left].ask_roll(key)
        await cluster.is_sealed(key)
        await gone(cluster, left, MountMode.VOLUME)
        folder = cluster.folder(left)
        settings = ProcessSettings(ssl_certificate_folder=str(folder), security_inter_broker_protocol="SSL")
        meta: Any = cluster.meta
        tls = identity_of(settings, Part.NODE, left)
        served = VolumeNode(settings, tmp_path / str(left), "127.0.0.1", 0, meta, tls=tls)
        await served.start()
        try:
            await is_served(cluster, left)
            reader = next(iter(cluster.nodes.values()))
            shard = reader.shards.get(key)
            assert shard is not None
            await eventually(lambda: reader.catalog.reads_at(left) == served.address)
            found: list[bytes] = []

            async def is_read() -> bool:
                with suppress(Unavailable):  # a slow machine: the node asks again
                    found.extend(bytes(piece) for piece in await shard.read(0, 1 << 20))
                return bool(found)

            await eventually(is_read)
            assert b"kept in the directory" in b"".join(found) and served.files.stats.reads >= 1
        finally:
            await served.close()
