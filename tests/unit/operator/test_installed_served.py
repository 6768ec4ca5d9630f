"""`stratalog operator check` against a real API server: what an account lacks is named, right by right."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog_operator.installed import problems
from stratalog_operator.kube.rights import FOR_OWNERS, RIGHTS, Scope, rules
from support.api_server import ApiServer
from support.kubernetes_client import kubernetes_of

pytestmark = pytest.mark.real_apiserver
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def token_of(api: ApiServer, namespace: str, name: str) -> str:
    place = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api.ask("POST", place, {"metadata": {"name": name}}).is_ok
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    answer = api.ask("POST", f"{place}/{name}/token", request)
    assert answer.is_ok, answer.message
    return str(answer.body["status"]["token"])


def give(api: ApiServer, kind: str, place: str, name: str, account: dict[str, Any], given: list[Any]) -> None:
    path = f"{RBAC}{place}/{kind.lower()}s"
    assert api.ask("POST", path, {"metadata": {"name": name}, "rules": given}).is_ok
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }
    assert api.ask("POST", f"{RBAC}{place}/{kind.lower()}bindings", binding).is_ok


async def test_what_the_account_lacks_is_named_until_nothing_is(api: ApiServer) -> None:
    own, watched = api.namespace("checked-system"), api.namespace("checked")
    token = token_of(api, own, "operator")
    account = {"name": "operator", "namespace": own}
    ours = RIGHTS[Scope.WATCHED] | FOR_OWNERS

    async with kubernetes_of(api, token) as kubernetes:
        give(api, "Role", f"/namespaces/{own}", "lease", account, rules(RIGHTS[Scope.OWN]))
        found = await problems(kubernetes, [watched], own, "stratalog")
        assert len(found) == len(ours) + len(RIGHTS[Scope.WHOLE]) + 1
        assert f"no right to create persistentvolumeclaims (core) in namespace {watched}" in found
        assert "no right to patch persistentvolumes (core) in all of Kubernetes" in found

        give(api, "Role", f"/namespaces/{watched}", "operator", account, rules(ours))
        give(api, "ClusterRole", "", "checked-whole", account, rules(RIGHTS[Scope.WHOLE]))
        waits = f"no lease stratalog in {own}: no operator has begun to work yet"
        assert await problems(kubernetes, [watched], own, "stratalog") == [waits]

        lease = {"metadata": {"name": "stratalog"}, "spec": {"holderIdentity": "one"}}
        assert api.ask("POST", f"/apis/coordination.k8s.io/v1/namespaces/{own}/leases", lease).is_ok
        assert await problems(kubernetes, [watched], own, "stratalog") == []
        # Not in other namespaces: the rights end where they were given.
        assert len(await problems(kubernetes, [], own, "stratalog")) == len(ours)
