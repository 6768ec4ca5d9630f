"""Clients that take all connections that a node allows keep no other node from following it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stratalog_node.replication.peer_connection import PeerConnection
from stratalog_node.serve.connections import connection_places
from support.node_cluster import NodeCluster
from support.raw_client import RawClient
from support.waiting import eventually

MOST = 5


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, max_connections=MOST)
        yield cluster


@pytest.fixture
def open_sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def crowd(cluster: NodeCluster, sockets: ExitStack, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    server = cluster.nodes[1].server
    found = []
    for _ in range(count):
        before = server.stats.accepted
        found.append(sockets.enter_context(socket.create_connection(cluster.nodes[1].address)))
        await eventually(lambda before=before: server.stats.accepted > before)
    return found


@pytest.mark.fault("clients-take-connections-node")
@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
async def test_a_follower_gets_in_where_clients_fill_the_limits(
    cluster: NodeCluster, open_sockets: ExitStack, limit: str
) -> None:
    await cluster.stop(1)
    await cluster.start(1, **{limit: MOST})
    clients = await crowd(cluster, open_sockets, MOST + 3)
    await cluster.start(2)
    key = await cluster.shard(2)
    while cluster.leader(key) != 1:
        key = await cluster.shard(2, f"again-{key.topic_id}")
    await cluster.append(key, b"acknowledged by both")
    assert set(cluster.segments(key)[-1].isr) == {1, 2}
    server = cluster.nodes[1].server
    assert len(server._places._nodes) >= 1
    assert len(server._places._clients) == MOST, "a node takes no client's place"
    assert clients


@pytest.mark.fault("clients-take-connections-node")
async def test_a_connection_without_a_token_is_refused_as_before(cluster: NodeCluster, open_sockets: ExitStack) -> None:
    await crowd(cluster, open_sockets, MOST)
    server = cluster.nodes[1].server
    host, port = cluster.nodes[1].address
    client = open_sockets.enter_context(RawClient(f"{host}:{port}"))
    client.send(client.frame(18, 0))
    await eventually(lambda: server.stats.turned_away["trial"] == 1)
    assert client.is_closed_by_node()
    await crowd(cluster, open_sockets, connection_places.MOST_ON_TRIAL + 2)
    await eventually(lambda: server.stats.turned_away["trial"] == 3)
    assert len(server._places.on_trial) == connection_places.MOST_ON_TRIAL


@pytest.mark.fault("clients-take-connections-node")
async def test_a_connection_on_trial_that_says_nothing_ends(
    cluster: NodeCluster, open_sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_places, "TRIAL_MS", 0)
    await crowd(cluster, open_sockets, MOST + 1)
    server = cluster.nodes[1].server
    await eventually(lambda: server.stats.turned_away["trial"] == 1)
    assert not server._places.on_trial and server.stats.connections == MOST


@pytest.mark.fault("clients-take-connections-node")
async def test_a_node_asks_where_shards_end_though_clients_fill_the_limits(
    cluster: NodeCluster, open_sockets: ExitStack
) -> None:
    """ListOffsets is any client's question: the connection has shown a token before."""
    key = await cluster.shard(1)
    while cluster.leader(key) != 1:
        key = await cluster.shard(1, f"again-{key.topic_id}")
    await cluster.append(key, b"one")
    await cluster.start(2)
    clients = await crowd(cluster, open_sockets, MOST + 3)
    shard = cluster.nodes[1].shards.get(key)
    assert shard is not None
    asker, address = cluster.nodes[2]._asker, cluster.nodes[1].address
    line = PeerConnection(1, asker, lambda: address, 1 << 20)
    try:
        assert await line.ask_ends({shard.topic.name: [0]}, 10.0) == {(shard.topic.name, 0): 1}
    finally:
        line.close()
    assert clients
