"""Pods of a cluster whose parts prove who they are by certificates hold hashes of tokens, and no token: what they
mount, what becomes of it while Secrets change, and how a cluster gets there whose pods had the token."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.model.roles import Role
from stratalog.model.tokens import MOST_NAMED, digest_of, parse_named_tokens
from stratalog.settings.load import load_process_settings
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.token_file import role_file, token_file
from stratalog_operator.announce import Announcer
from stratalog_operator.apply.role_hashes import put_roles
from stratalog_operator.kube.client import MERGE, path_of
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.observe.role_hashes import read_roles
from stratalog_operator.passes import Passes
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.failures import is_needed_by
from stratalog_operator.plan.observed import SeenRoles
from stratalog_operator.plan.roles import plan_roles
from stratalog_operator.plan.roll import roll
from stratalog_operator.resources.cluster import StorageClusterSpec
from stratalog_operator.resources.kinds import CLUSTER
from stratalog_operator.specs import pods
from stratalog_operator.specs.meta import meta_objects
from stratalog_operator.specs.node import NodeIdentity, node_set
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.specs.role_hashes import OF_META, OF_NODES, hashed_roles, role_hashes_secret
from stratalog_operator.specs.settings_file import settings_text
from stratalog_operator.specs.volume import volume_objects
from stratalog_operator.stats import OperatorStats
from support.api_server import ApiServer
from support.golden_specs import cluster, pool
from support.kind_samples import sample
from support.kubernetes_client import kubernetes_of
from support.operator_world import World, settled, world
from support.secret_store import Secrets

TOKEN, NEXT_TOKEN = "the-token-of-the-cluster", "the-next-token-of-the-cluster"
ALICE, GRAFANA = "alice-has-this-token", "grafana-has-this-token"
PEOPLE = f"# who may what\nadmin alice {ALICE}\nviewer grafana sha256:{digest_of(GRAFANA.encode()).hex()}\n"
SECRET = "main-role-hashes"
MAIN = cluster({"meta": {"etcd": {}, "roleTokensSecretRef": "people"}, "tls": {"internal": True}})


# What is in the Secret ------------------------------------------------------------------------------------------------
def test_a_node_knows_people_by_hashes_and_the_token_of_the_cluster_as_that_of_a_viewer() -> None:
    made = hashed_roles(MAIN, PEOPLE, (TOKEN, NEXT_TOKEN))

    assert not [text for text in made.values() if ALICE in text or GRAFANA in text or TOKEN in text]
    people = {("alice", Role.ADMIN, digest_of(ALICE.encode())), ("grafana", Role.VIEWER, digest_of(GRAFANA.encode()))}
    tokens = {("cluster-token", Role.VIEWER, digest_of(token.encode())) for token in (TOKEN, NEXT_TOKEN)}
    found = {key: {(one.name, one.role, one.digest) for one in parse_named_tokens(made[key], key)} for key in made}
    assert found == {OF_META: people, OF_NODES: people | tokens}


@given(
    named=st.lists(
        st.tuples(st.sampled_from(["viewer", "operator", "admin"]), st.integers(0, 3)), max_size=MOST_NAMED + 1
    ),
    tokens=st.lists(st.integers(0, 3), max_size=4),
    name=st.sampled_from(["cluster-token", "someone"]),
)
def test_what_is_written_is_a_file_that_every_process_accepts(
    named: list[tuple[str, int]], tokens: list[int], name: str
) -> None:
    """However full the person's file is, whatever names are in it, and if the cluster's has a token on two lines."""
    lines = [f"{role} {name if not kind else f'name-{number}'} token-number-{number:06}" for number, (role, kind) in
             enumerate(named)]  # fmt: skip
    text, of_cluster = "\n".join(lines), tuple(f"token-of-the-cluster-{number}" for number in tokens)
    try:
        expected = parse_named_tokens(text, "it")
    except InvalidRequest:
        with pytest.raises(InvalidRequest, match="people"):
            hashed_roles(MAIN, text, of_cluster)
        return
    made = hashed_roles(MAIN, text, of_cluster)

    assert parse_named_tokens(made[OF_META], "it") == expected
    assert parse_named_tokens(made[OF_NODES], "it")[: len(expected)] == expected
    assert all(one.role is Role.VIEWER for one in parse_named_tokens(made[OF_NODES], "it")[len(expected) :])


def test_a_role_token_that_is_the_token_of_the_cluster_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequest, match="the token of alice is the one of") as refused:
        hashed_roles(MAIN, PEOPLE, (ALICE,))
    assert ALICE not in str(refused.value)


# What the operator does while Secrets change --------------------------------------------------------------------------
class Given:
    """The Secrets of a cluster, and the passes over them."""

    def __init__(self) -> None:
        self.kubernetes = Secrets()
        self.kubernetes.give("main-token", "token", TOKEN.encode())
        self.kubernetes.give("people", "roles", PEOPLE.encode())

    async def one_pass(self) -> SeenRoles:
        """What was seen before it was written."""
        seen = await read_roles(self.kubernetes, MAIN)
        if not seen.is_published:
            await put_roles(self.kubernetes, MAIN, act.PutRoles(seen.texts, seen.version))
        return seen

    def names(self, key: str = OF_NODES) -> list[str]:
        return [one.name for one in parse_named_tokens(self.kubernetes.text(SECRET, key), key)]


async def test_a_token_that_is_taken_out_of_a_secret_is_taken_from_the_pods() -> None:
    one = Given()
    await one.one_pass()
    assert (one.names(), one.names(OF_META)) == (["alice", "grafana", "cluster-token"], ["alice", "grafana"])
    assert (await one.one_pass()).is_published, "it is not written in every pass"

    one.kubernetes.give("people", "roles", PEOPLE.replace("admin alice", "# admin alice").encode())
    one.kubernetes.give("main-token", "token", f"{NEXT_TOKEN}\n{TOKEN}".encode())
    await one.one_pass()
    assert one.names() == ["grafana", "cluster-token", "cluster-token"] and one.names(OF_META) == ["grafana"]


@pytest.mark.fault("secret-token-cluster-cannot")
@pytest.mark.parametrize(
    ("people", "words"),
    [
        (None, "Secret data/people, which spec.meta.roleTokensSecretRef names, is not there"),
        ("", "has no text under the key roles"),
        (f"king alice {ALICE}", "roles of Secret data/people, line 1: the first word must be a role"),
        (f"admin alice {TOKEN}", "the token of alice is the one of auth.token.file"),
    ],
)
@pytest.mark.parametrize("was_written", [False, True])
async def test_tokens_that_cannot_be_used_change_nothing_for_people_and_the_operator_says_why(
    people: str | None, words: str, was_written: bool
) -> None:
    """A cluster that is new starts without them. That of the cluster can still be replaced."""
    one = Given()
    if was_written:
        await one.one_pass()
    del one.kubernetes.held["people"]
    if people is not None:
        one.kubernetes.give("people", "roles" if people else "other", people.encode())
    one.kubernetes.give("main-token", "token", TOKEN.encode())
    seen = await one.one_pass()

    assert words in seen.trouble and ALICE not in seen.trouble and TOKEN not in seen.trouble
    assert one.names() == (["alice", "grafana"] if was_written else []) + ["cluster-token"]
    one.kubernetes.give("people", "roles", PEOPLE.encode())
    assert not (await one.one_pass()).trouble
    assert one.names() == ["alice", "grafana", "cluster-token"]


async def test_a_revoked_role_is_gone_also_while_the_token_of_the_cluster_cannot_be_used() -> None:
    one = Given()
    await one.one_pass()
    one.kubernetes.give("main-token", "token", b"short")
    one.kubernetes.give("people", "roles", f"viewer bob {ALICE}".encode())
    await one.one_pass()

    assert one.names() == ["bob"]


async def test_hashes_go_into_no_secret_of_another_object_and_over_no_newer_version() -> None:
    one = Given()
    one.kubernetes.give(SECRET, "roles", PEOPLE.encode())
    seen = await read_roles(one.kubernetes, MAIN)
    with pytest.raises(InvalidRequest, match="does not belong to this StorageCluster"):
        await put_roles(one.kubernetes, MAIN, act.PutRoles(seen.texts, seen.version))
    assert one.kubernetes.text(SECRET, "roles") == PEOPLE
    one.kubernetes.held[SECRET]["data"] = {
        key: base64.b64encode(text.encode()).decode() for key, text in seen.texts.items()
    }
    assert not (await read_roles(one.kubernetes, MAIN)).is_published, "its owner may write anything into it later"
    del one.kubernetes.held["people"]
    assert "alice" not in (await read_roles(one.kubernetes, MAIN)).texts[OF_NODES], "what others wrote is not kept"
    one.kubernetes.give("people", "roles", PEOPLE.encode())
    del one.kubernetes.held[SECRET]
    await one.one_pass()
    with pytest.raises(Conflict):
        await put_roles(one.kubernetes, MAIN, act.PutRoles({}, "1"))


# What pods have -------------------------------------------------------------------------------------------------------
def _pods(of: Cluster) -> dict[str, Any]:
    node = NodeIdentity(1, "hot")
    sets: dict[str, Any] = {
        "node": node_set(of, pool(), node),
        "reader": volume_objects(of, pool(), node, "mount", "uid-of-mount")[-1],
        "meta": meta_objects(of)[-1],
    }
    return {part: made["spec"]["template"]["spec"] for part, made in sets.items()}


def _files(spec: Any, kubernetes: Secrets, folder: Path) -> list[str]:
    """Mounts Secrets as Kubernetes does, and returns the settings of the command with these paths."""
    command = spec["containers"][0]["command"]
    given = [command[number + 1] for number, word in enumerate(command) if word == "--set"]
    folders = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    for volume in spec["volumes"]:
        held = kubernetes.held.get(volume.get("secret", {}).get("secretName", ""))
        if held is None:
            continue
        place = folder / volume["name"]
        place.mkdir(parents=True)
        items = volume["secret"].get("items") or [{"key": key, "path": key} for key in held["data"]]
        for item in items:
            (place / item["path"]).write_bytes(base64.b64decode(held["data"][item["key"]]))
        given = [one.replace(folders[volume["name"]], str(place)) for one in given]
    return given


@pytest.mark.parametrize(
    ("part", "of_cluster", "of_alice"),
    [("node", Role.VIEWER, Role.ADMIN), ("reader", Role.VIEWER, Role.ADMIN), ("meta", Role.ADMIN, Role.ADMIN)],
)
async def test_no_process_but_the_meta_service_reads_a_token_and_all_know_whose_it_is(
    tmp_path: Path, part: str, of_cluster: Role, of_alice: Role
) -> None:
    """The files are those that Kubernetes mounts, the settings those of the pod, the rules those of the processes."""
    one = Given()
    await one.one_pass()
    spec = _pods(MAIN)[part]
    lines = settings_text(MAIN).splitlines()
    lines = [line.replace(pods.TOKEN_FOLDER, str(tmp_path / "token")) for line in lines]
    lines = [line.replace(pods.ROLES_FOLDER, str(tmp_path / "roles")) for line in lines]
    given = [line for line in _files(spec, one.kubernetes, tmp_path) if line.startswith("auth.")]
    settings = load_process_settings(
        assignments=[*lines, *given, "http.security.protocol=SSL", "ssl.certificate.folder=x"], has_bucket=False
    )
    tokens = token_file(settings.auth_token_file)
    roles = role_file(settings.auth_role_tokens_file, tokens)
    assert roles is not None
    access = HttpAccess(tuple if tokens is None else tokens.all, named=roles.all)
    callers = [access.caller([f"Bearer {token}"]) for token in (TOKEN, ALICE)]

    assert [caller and caller.role for caller in callers] == [of_cluster, of_alice]
    mounted = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert ALICE.encode() not in mounted
    assert (TOKEN.encode() in mounted) is (callers[0] is not None and callers[0].is_part) is (part == "meta")


def test_without_certificates_every_part_has_the_token_that_it_shows_to_the_others() -> None:
    plain = cluster({"meta": {"etcd": {}, "roleTokensSecretRef": "people"}})
    for spec in _pods(plain).values():
        secrets = {one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
        assert secrets == {"main-token", "people"}
        assert not [word for word in spec["containers"][0]["command"] if word.startswith("auth.")]


# How a cluster gets there ---------------------------------------------------------------------------------------------
def _tls_world(monkeypatch: pytest.MonkeyPatch, *, of_earlier_make: bool) -> World:
    one = world(3)
    spec = one.cluster.spec.model_dump(by_alias=True, exclude_none=True) | {"tls": {"internal": True}}
    one.cluster = replace(one.cluster, spec=StorageClusterSpec.model_validate(spec))
    if of_earlier_make:
        _by_earlier_operator(monkeypatch)
    else:
        one.roles = SeenRoles({OF_NODES: ""}, "", is_published=False)
    one.settle()
    return one


def _by_earlier_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that mounts the token in every pod, and knows no hashes."""
    monkeypatch.setattr(pods, "holds_token", lambda cluster, *, is_meta: True)


@pytest.mark.parametrize("killed_after", [None, 0, 1, 2, 3])
def test_a_cluster_whose_pods_had_the_token_gets_rid_of_it_one_node_at_a_time_and_back(
    monkeypatch: pytest.MonkeyPatch, killed_after: int | None
) -> None:
    """The world fails the test if a serving pod is stopped while another does not serve. The operator is killed in each
    pass, after that many writes."""
    one = _tls_world(monkeypatch, of_earlier_make=True)
    nodes = [f"main-hot-{number}-0" for number in (1, 2, 3)]
    before = one.uids()
    monkeypatch.undo()
    one.roles = SeenRoles({OF_NODES: ""}, "", is_published=False)
    one.done.clear()
    for _ in range(4):
        one.reconcile(killed_after=killed_after)
        one.kubelet()
    one.settle()
    upgraded = one.uids()
    stops = [action for action in one.done if isinstance(action, act.StopPod | act.PutRoles)]
    assert isinstance(stops[0], act.PutRoles), "no pod is stopped before the files of the new ones are there"
    assert sorted({one.name for one in stops if isinstance(one, act.StopPod)}) == nodes, "meta service and etcd stay"
    assert {name for name in before if upgraded[name] != before[name]} == set(nodes)

    _by_earlier_operator(monkeypatch)
    one.roles = None
    one.settle()
    assert {name for name in before if one.uids()[name] != upgraded[name]} == set(nodes)
    assert not roll(one.observe()).outdated


def test_a_new_cluster_has_its_hashes_before_its_first_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    one = _tls_world(monkeypatch, of_earlier_make=False)
    kinds = [("PutRoles" if isinstance(action, act.PutRoles) else action.key[0]) for action in one.done
             if isinstance(action, act.PutRoles | act.Apply)]  # fmt: skip

    assert kinds.index("PutRoles") < kinds.index("StatefulSet")


def test_no_pod_is_stopped_while_the_hashes_cannot_be_written() -> None:
    assert is_needed_by(act.StopPod("main-hot-1-0", "uid", "a test"), act.PutRoles({}, "1"))
    assert "token" not in repr(act.PutRoles({OF_NODES: "viewer token sha256:…"}, "1")), "hashes are in no log"


def test_no_pod_is_stopped_while_the_token_that_the_meta_service_mounts_cannot_be_used() -> None:
    one = settled(3)
    one.edit_cluster({"image": {"tag": "2"}})
    one.reconcile()
    seen = replace(one.observe(), token_trouble="Secret data/main-token has no key token")
    made = roll(seen)

    assert not made.offer.disruptive and "has no key token" in made.waits
    roles = SeenRoles({}, "1", is_published=True, trouble="Secret data/people is not there")
    assert plan_roles(replace(seen, roles=roles)).invalid == (
        "Secret data/people is not there; Secret data/main-token has no key token"
    )


@pytest.mark.fault("secret-token-cluster-cannot")
@pytest.mark.real_apiserver
async def test_the_operator_writes_the_hashes_and_an_unusable_token_does_not_keep_it_from_the_meta_service(
    api: ApiServer,
) -> None:
    namespace = api.namespace("role-hashes")
    made: Any = sample(CLUSTER)
    made["spec"] = {"meta": {"etcd": {}, "roleTokensSecretRef": "people"}, "tls": {"internal": True}}
    people = {"metadata": {"name": "people"}, "stringData": {"roles": PEOPLE}}
    assert api.ask("POST", path_of("Secret", namespace), people).is_ok
    assert api.ask("POST", path_of("StorageCluster", namespace), made).is_ok
    metas = HttpMetaConnections()

    def condition(name: str) -> tuple[str, str]:
        found = api.ask("GET", path_of("StorageCluster", namespace, "main")).body["status"]["conditions"]
        (one,) = [one for one in found if one["type"] == name]
        return one["reason"], one["message"]

    def hashes() -> list[str]:
        data = api.ask("GET", path_of("Secret", namespace, SECRET)).body["data"]
        return [one.name for one in parse_named_tokens(base64.b64decode(data[OF_NODES]).decode(), "it")]

    async with kubernetes_of(api) as kubernetes:
        passes = Passes(kubernetes, metas, Announcer(kubernetes, OperatorStats(), "one"), OperatorStats())
        await passes.run_pass((namespace, "main"))
        assert hashes() == ["alice", "grafana"]
        await passes.run_pass((namespace, "main"))
        assert hashes() == ["alice", "grafana", "cluster-token"], "the token was made in the pass before"
        bad = {"data": {"token": base64.b64encode(b"short").decode()}}
        await kubernetes.ask("PATCH", path_of("Secret", namespace, "main-token"), bad, content_type=MERGE)
        await passes.run_pass((namespace, "main"))
    await metas.close()

    assert condition("Ready")[0] != "TokenUnusable"
    reason, message = condition("Reconciled")
    assert reason == "InvalidSpec" and f"Secret {namespace}/main-token" in message
    owner = api.ask("GET", path_of("Secret", namespace, role_hashes_secret(MAIN))).body["metadata"]["ownerReferences"]
    assert [one["kind"] for one in owner] == ["StorageCluster"], "it goes with the cluster"
