"""What each role may ask of the meta service, route by route, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from stratalog.machines.sasl.scram import credential_from
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.rights_commands import AlterCredentials
from stratalog.model.commands.table_commands import COMMANDS, CreateTopic, RegisterNode
from stratalog.model.errors import Forbidden, NotFound
from stratalog.model.metadata import NodeInfo
from stratalog.model.roles import Caller, Needs, Role
from stratalog.model.scram import ScramMechanism, UserCredential
from stratalog.telemetry.http_access import HttpAccess
from stratalog_meta import MetaService
from stratalog_meta.api.needs import NEEDS, OTHER_NEEDS
from stratalog_meta.api.routes import ROUTES
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import IMPATIENT, HandClock
from unit.telemetry.test_http_roles import CLUSTER_TOKEN, NAMED, TOKENS

ALL_NEEDS = {(route.method, route.path): route.needs for route in ROUTES} | dict(OTHER_NEEDS)
CALLERS = {TOKENS[role]: Caller("", role) for role in Role} | {CLUSTER_TOKEN: Caller("", Role.ADMIN, is_part=True)}


@asynccontextmanager
async def served() -> AsyncIterator[MetaServer]:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    access = HttpAccess(lambda: (CLUSTER_TOKEN,), named=lambda: NAMED)
    server = MetaServer(service, heartbeat_s=0.05, access=access)
    await server.start("127.0.0.1", 0)
    yield server
    await server.close()
    await service.close()


def test_each_command_says_what_it_needs() -> None:
    assert NEEDS.keys() == set(COMMANDS)


@pytest.mark.parametrize("token", CALLERS)
async def test_each_route_answers_403_to_exactly_those_whose_role_does_not_suffice(token: str) -> None:
    async with served() as server, aiohttp.ClientSession(server.address) as http:
        for (method, path), needs in ALL_NEEDS.items():
            place = path.format(topic_id="0" * 32, shard=0, epoch=0, base_offset=0)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            async with http.request(method, place, headers=headers, data=b"{}" if method == "POST" else None) as answer:
                assert (answer.status == 403) is not CALLERS[token].may(needs), (method, path, answer.status)
            async with http.request(method, place, headers={"Content-Type": "application/json"}) as answer:
                assert answer.status == 401, (method, path)


def deciding(needs: Needs) -> set[str]:
    return {kind.__name__ for kind, one in NEEDS.items() if one == needs}


def test_what_deletes_data_or_changes_rights_is_for_admins_and_nodes_alone() -> None:
    of_operators = {
        kind.__name__
        for kind, needs in NEEDS.items()
        if Caller("", Role.OPERATOR).may(needs)
    }  # fmt: skip
    assert of_operators == {
        "CreateTopic",
        "AddShards",
        "AlterTopic",
        "SealTopic",
        "RollElsewhere",
        "BeginRecovery",
        "CreateMount",
        "MountCut",
        "BeginMount",
        "MoveMount",
        "EndMount",
        "RetireNode",
        "CancelRetirement",
    }
    of_admins = {kind.__name__ for kind, needs in NEEDS.items() if Caller("", Role.ADMIN).may(needs)}
    assert of_admins - of_operators == {
        "DeleteTopic",
        "SealUnclean",
        "CreateRules",
        "DeleteRules",
        "AlterCredentials",
        "AlterQuotas",
    }
    assert not any(Caller("", Role.VIEWER).may(needs) for needs in NEEDS.values())


async def test_keys_of_users_are_for_parts_alone() -> None:
    async with served() as server:
        nodes = HttpMetaClient(server.address, IMPATIENT, token=lambda: CLUSTER_TOKEN, with_credentials=True)
        credential = credential_from(ScramMechanism.SCRAM_SHA_256, b"p" * 32, b"salt", 4096)
        await nodes.perform(AlterCredentials(put=(UserCredential("bob", ScramMechanism.SCRAM_SHA_256, credential),)))
        assert [one.user for one in (await nodes.snapshot()).credentials] == ["bob"]
        await nodes.close()
        for role in Role:
            admin = HttpMetaClient(server.address, IMPATIENT, token=lambda role=role: TOKENS[role])
            assert (await admin.snapshot()).credentials == ()
            await admin.close()
            curious = HttpMetaClient(
                server.address, IMPATIENT, token=lambda role=role: TOKENS[role], with_credentials=True
            )
            with pytest.raises(Forbidden, match="needs a token of the cluster"):
                await curious.snapshot()
            with pytest.raises(Forbidden):
                await anext(aiter(curious.watch(0)))
            await curious.close()


async def test_tokens_of_lives_are_for_parts_alone() -> None:
    async with served() as server:
        for token in CALLERS:
            node = HttpMetaClient(server.address, IMPATIENT, token=lambda: CLUSTER_TOKEN)
            registered = await node.perform(RegisterNode(NodeInfo(1, "disk", "localhost", 1)))
            await node.close()
            assert registered.token != 0
            person = HttpMetaClient(server.address, IMPATIENT, token=lambda token=token: token)
            seen = {one.token for one in (*(await person.snapshot()).nodes, *await person.nodes())}
            assert (seen != {0}) is (token == CLUSTER_TOKEN)
            await person.close()


async def test_data_are_given_up_by_admins_alone() -> None:
    async with served() as server:
        operator = HttpMetaClient(server.address, IMPATIENT, token=lambda: TOKENS[Role.OPERATOR])
        with pytest.raises(Forbidden, match="role operator, and this needs the role admin"):
            await operator.perform(RetireNode(1, force_storage_id="disk"))
        with pytest.raises(NotFound):
            await operator.perform(RetireNode(1))
        with pytest.raises(Forbidden):
            await operator.perform(RegisterNode(NodeInfo(1, "disk", "localhost", 1)))
        await operator.close()
        admin = HttpMetaClient(server.address, IMPATIENT, token=lambda: TOKENS[Role.ADMIN])
        with pytest.raises(NotFound):
            await admin.perform(RetireNode(1, force_storage_id="disk"))
        await admin.close()
        viewer = HttpMetaClient(server.address, IMPATIENT, token=lambda: TOKENS[Role.VIEWER])
        with pytest.raises(Forbidden):
            await viewer.perform(CreateTopic("orders", 1, 1, {}), validate_only=True)
        await viewer.close()
