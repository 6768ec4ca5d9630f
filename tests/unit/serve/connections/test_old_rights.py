"""A node whose rules may be older than they may be turns clients away, and keeps the connections of nodes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stratalog.model.commands.rights_commands import CreateRules
from stratalog.model.listeners import INTERNAL, Listener
from stratalog.model.rights import ANONYMOUS, NODE, Operation, Permission, Principal, Resource, ResourceType, Rule
from support.raw_client import batch_of
from support.serve_rig import ServeRig
from support.stream_client import StreamClient
from support.waiting import eventually

MOST_MS = 60_000


class AgingRig(ServeRig):
    """Its metadata are as old as the test says."""

    age_ms = 0
    places: dict[str, tuple[str, int]]

    async def client(self, listener: str) -> StreamClient:
        client = await StreamClient.connect(self.places[listener])
        self._clients.append(client)
        return client

    def look(self) -> None:
        """What the server does once a second."""
        self.server._end_old_rights()


@asynccontextmanager
async def aging(tmp_path: Path, **settings: object) -> AsyncIterator[AgingRig]:
    async with AgingRig(tmp_path / "node", **({"authorizer_class_name": "stratalog"} | settings)) as rig:
        rig.server._metadata_age_ms = lambda: rig.age_ms
        rig.places = {}
        for name in ("clients", INTERNAL):
            sock = socket.create_server(("127.0.0.1", 0))
            sock.setblocking(False)
            rig.places[name] = sock.getsockname()
            rig.server.open(sock, Listener(name, *rig.places[name]))
        await rig.shard_of()
        rule = Rule(Resource(ResourceType.TOPIC, "*"), str(ANONYMOUS), "*", Operation.WRITE, Permission.ALLOW)
        await rig.meta.service.perform(CreateRules((rule,)))
        await eventually(lambda: [*rig.catalog.rights.authorizer.rules()])
        yield rig


async def is_served(client: StreamClient) -> bool:
    try:
        await client.write(client.produce_frame("flights", batch_of(b"one")))
        return (await client.produced()).error_code == 0
    except ConnectionError:
        return False


@pytest.mark.fault("rights-cannot-be-refreshed")
@pytest.mark.parametrize("listener", ["clients", INTERNAL])
async def test_clients_are_turned_away_while_the_rules_are_too_old(tmp_path: Path, listener: str) -> None:
    async with aging(tmp_path, authorizer_metadata_max_age_ms=MOST_MS) as rig:
        client = await rig.client(listener)
        assert await is_served(client)
        rig.age_ms = MOST_MS
        rig.look()
        assert await is_served(client)
        rig.age_ms += 1
        rig.look()
        assert await client.is_closed()
        late = await rig.client("clients")
        assert not await is_served(late), "it was closed unread"
        rig.age_ms = 0
        rig.look()
        assert await is_served(await rig.client(listener))


@pytest.mark.fault("rights-cannot-be-refreshed")
async def test_nodes_stay_connected_and_clients_of_their_listener_do_not(tmp_path: Path) -> None:
    async with aging(tmp_path, authorizer_metadata_max_age_ms=MOST_MS) as rig:
        node = await rig.client(INTERNAL)
        assert await is_served(node)
        (connection,) = rig.server._connections
        connection.identify(Principal(NODE, "2"))
        rig.age_ms = MOST_MS + 1
        rig.look()
        assert await is_served(node)
        another = await rig.client(INTERNAL)
        assert not await is_served(another), "it asks as a client does"


@pytest.mark.parametrize(
    "settings",
    [{}, {"authorizer_class_name": "", "authorizer_metadata_max_age_ms": MOST_MS}],
    ids=["no bound", "no authorizer"],
)
async def test_by_default_clients_are_served_by_the_rules_that_were_seen_last(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    async with aging(tmp_path, **settings) as rig:
        client = await rig.client("clients")
        rig.age_ms = 10**9
        rig.look()
        assert await is_served(client)
