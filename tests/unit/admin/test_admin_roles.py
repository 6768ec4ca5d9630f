"""What each role may ask of a node's admin port and its pages, route by route, over HTTP; and, through that port, of
the meta service."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.meta_api.node_client import NodeMetaClient
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.errors import Forbidden
from stratalog.model.metadata import Life
from stratalog.model.roles import FOR_ADMINS, FOR_OPERATORS, Caller, Role
from stratalog.telemetry.http_access import HttpAccess
from stratalog.ui.application import UI_NEEDS
from stratalog_node.admin.routes import NEEDS
from support.audit_lines import KeptAudit
from unit.admin.test_admin_slices import new_meta, pages_of
from unit.meta.test_meta_tls import ONE, secure
from unit.meta.test_meta_tls import TOKEN as SERVICE_TOKEN
from unit.telemetry.test_http_roles import CLUSTER_TOKEN, NAMED, TOKENS

CALLERS = {TOKENS[role]: Caller("", role) for role in Role} | {CLUSTER_TOKEN: Caller("", Role.ADMIN, is_part=True)}
OF_VIEWERS_NOT = {"/v1/records", "/v1/topics/{name}/find", "/topics/{topic}/records"}


@pytest.mark.parametrize("token", CALLERS)
async def test_each_route_answers_403_to_exactly_those_whose_role_does_not_suffice(token: str, tmp_path: Path) -> None:
    access = HttpAccess(lambda: (CLUSTER_TOKEN,), named=lambda: NAMED)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    audit = KeptAudit()
    async with new_meta() as meta, pages_of(meta, tmp_path, audit, access) as pages:
        for (method, path), needs in NEEDS.items():
            async with pages.http.request(method, path.format(name="x"), headers=headers, data=b"{}") as answer:
                assert (answer.status == 403) is not CALLERS[token].may(needs), (method, path, answer.status)
        forced = b'{"name":"m","force_storage_id":"disk"}'
        async with pages.http.post("/v1/mounts/end", headers=headers, data=forced) as answer:
            assert (answer.status == 403) is not CALLERS[token].may(FOR_ADMINS)
    audit.close()


def test_viewers_read_everything_but_records_and_change_nothing() -> None:
    for (method, path), needs in (NEEDS | dict(UI_NEEDS)).items():
        is_read = method == "GET" and path not in OF_VIEWERS_NOT
        assert Caller("", Role.VIEWER).may(needs) is is_read, (method, path)


def test_operators_do_everything_but_delete() -> None:
    for (method, path), needs in (NEEDS | dict(UI_NEEDS)).items():
        assert Caller("", Role.OPERATOR).may(needs) is (method != "DELETE"), (method, path)
        assert Caller("", Role.ADMIN).may(needs)


# Through a node that asks the meta service with its certificate ----------------------------------------------------
@pytest.mark.parametrize("token", CALLERS)
async def test_what_a_node_asks_for_is_decided_by_the_role_of_who_asks_the_node(token: str, tmp_path: Path) -> None:
    """The certificate lets the node ask for all of these: it must not let a viewer."""
    access = HttpAccess(lambda: (CLUSTER_TOKEN,), named=lambda: NAMED)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    is_operator, is_admin = (CALLERS[token].may(needs) for needs in (FOR_OPERATORS, FOR_ADMINS))
    async with secure(tmp_path) as service:
        node = NodeMetaClient(service.client(service.issue("node/1")))
        node.life = Life(1, (await node.perform(RegisterNode(ONE))).node_epoch)
        await node.perform(CreateTopic("known", 1, 1, {}))
        async with pages_of(service.service, tmp_path, access=access, asking=node) as pages:

            async def changes(method: str, path: str, body: bytes) -> bool:
                before = await node.read_version()
                async with pages.http.request(method, path, headers=headers, data=body) as answer:
                    is_refused = answer.status == 403
                assert is_refused is (await node.read_version() == before), (method, path, answer.status)
                return not is_refused

            assert await changes("POST", "/v1/topics", b'{"name":"new"}') is is_operator
            assert await changes("PATCH", "/v1/topics/known", b'{"shards":2}') is is_operator
            assert await changes("DELETE", "/v1/topics/known", b"{}") is is_admin


async def test_a_node_asks_for_no_change_of_people_without_its_life(tmp_path: Path) -> None:
    """Neither with the token of an admin, which it saw at its own port: the certificate counts."""
    async with secure(tmp_path) as service:
        node = service.client(service.issue("node/1"), token=SERVICE_TOKEN)
        await node.perform(RegisterNode(ONE))
        with pytest.raises(Forbidden, match="may not ask for CreateTopic without naming its life"):
            await node.perform(CreateTopic("new", 1, 1, {}))
