"""What each role may ask of a node's admin port and its pages, route by route, over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.roles import FOR_ADMINS, Caller, Role
from stratalog.telemetry.http_access import HttpAccess
from stratalog.ui.application import UI_NEEDS
from stratalog_node.admin.routes import NEEDS
from support.audit_lines import KeptAudit
from unit.admin.test_admin_slices import new_meta, pages_of
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
