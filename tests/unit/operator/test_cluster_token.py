"""The operator shows the token of each cluster to its meta service, as the Secret has it in that pass."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.telemetry.http_access import HttpAccess
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_operator.announce import Announcer
from stratalog_operator.kube.client import path_of
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.observe.cluster_token import read_token, tokens_in
from stratalog_operator.passes import Passes
from stratalog_operator.resources.cluster import StorageClusterSpec
from stratalog_operator.resources.kinds import CLUSTER
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.stats import OperatorStats
from support.api_server import ApiServer
from support.golden_specs import cluster
from support.kind_samples import sample
from support.kubernetes_client import kubernetes_of
from support.meta_worlds import HandClock
from support.secret_store import Secrets

OLD, NEW = "the-old-token-of-all", "the-new-token-of-all"


def secret(**data: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


@pytest.mark.parametrize(("text", "token"), [(OLD, OLD), (f"{OLD}\n", OLD), (f"{NEW}\n{OLD}\n", NEW)])
def test_the_first_line_of_the_secrets_key_is_shown(text: str, token: str) -> None:
    assert tokens_in(secret(token=text, other="x"), "it")[0] == token


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({}, "has no key token"),
        ({"data": None}, "has no key token"),
        (secret(password=OLD), "has no key token"),
        ({"data": {"token": 7}}, "has no key token"),
        ({"data": {"token": "%%%"}}, "other characters"),
        (secret(token="ß" * 20), "other characters"),
        (secret(token=""), "holds no token"),
        (secret(token="short"), "line 1"),
    ],
)
def test_a_secret_that_holds_no_token_is_reported_of_and_not_repeated(held: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tokens_in(held, "Secret data/main-token")
    assert words in str(refused.value) and "Secret data/main-token" in str(refused.value)


@pytest.mark.fault("secret-of-others-cluster")
@pytest.mark.parametrize(
    ("owner", "is_named", "is_taken"),
    [
        (None, False, True),
        ("uid-of-main", False, True),
        ("uid-of-a-user", False, False),
        ("uid-of-a-user", True, True),
    ],
    ids=["a person's own", "of the cluster", "of a StorageUser", "named by the cluster"],
)
async def test_a_token_is_not_taken_from_a_secret_of_another_object(
    owner: str | None, is_named: bool, is_taken: bool
) -> None:
    """Such as that of a StorageUser with the name main-token."""
    meta = {"etcd": {}, **({"tokenSecretRef": "main-token"} if is_named else {})}
    main = Cluster("main", "data", "uid-of-main", StorageClusterSpec.model_validate({"meta": meta}))
    kubernetes = Secrets()
    kubernetes.give("main-token", "token", OLD.encode())
    if owner is not None:
        owners = [{"kind": "StorageUser", "name": "main-token", "uid": owner}]
        kubernetes.held["main-token"]["metadata"]["ownerReferences"] = owners
    if is_taken:
        assert await read_token(kubernetes, main) == OLD
        return
    with pytest.raises(InvalidRequest, match="belongs to StorageUser main-token and not to this StorageCluster"):
        await read_token(kubernetes, main)


async def test_a_token_that_changes_is_shown_from_the_next_pass_on() -> None:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    tokens = [OLD]
    server = MetaServer(service, access=HttpAccess(lambda: tuple(tokens)))
    url = await server.start("127.0.0.1", 0)
    connections, main = HttpMetaConnections(lambda _: url), cluster()
    with pytest.raises(Unavailable):
        await (await connections.connect(main, "")).observer.observe()
    assert (await (await connections.connect(main, OLD)).observer.observe()).cluster_id == service.cluster_id
    tokens[:] = [NEW]
    with pytest.raises(Unavailable):
        await (await connections.connect(main, OLD)).observer.observe()
    assert (await (await connections.connect(main, NEW)).observer.observe()).cluster_id == service.cluster_id
    await connections.close()
    await server.close()
    await service.close()


@pytest.mark.fault("secret-token-cluster-cannot")
@pytest.mark.real_apiserver
async def test_a_secret_that_cannot_be_used_stops_neither_a_pass_nor_a_deletion(api: ApiServer) -> None:
    namespace = api.namespace("unusable-token")
    bad = {"metadata": {"name": "main-token"}, "data": secret(token="short")["data"]}
    assert api.ask("POST", path_of("Secret", namespace), bad).is_ok
    assert api.ask("POST", path_of("StorageCluster", namespace), sample(CLUSTER)).is_ok
    metas = HttpMetaConnections()
    async with kubernetes_of(api) as kubernetes:
        passes = Passes(kubernetes, metas, Announcer(kubernetes, OperatorStats(), "one"), OperatorStats())
        await passes.run_pass((namespace, "main"))
        made = {one["metadata"]["name"] for one in api.ask("GET", path_of("StatefulSet", namespace)).body["items"]}
        found = api.ask("GET", path_of("StorageCluster", namespace, "main")).body
        assert api.ask("DELETE", path_of("StorageCluster", namespace, "main")).is_ok
        await passes.run_pass((namespace, "main"))
    await metas.close()
    ready = {one["type"]: one for one in found["status"]["conditions"]}["Ready"]

    assert "main-meta" in made
    assert (ready["status"], ready["reason"]) == ("Unknown", "TokenUnusable")
    assert f"Secret {namespace}/main-token" in ready["message"] and "short" not in ready["message"].split(":")[-1]
    assert not api.ask("GET", path_of("StorageCluster", namespace, "main")).is_ok, "nothing holds it"
