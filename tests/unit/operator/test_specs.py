"""The objects that the operator wants: kept as YAML that people read, and rules that hold of all of them."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from stratalog.model.listeners import Listener
from stratalog.settings.load import load_process_settings
from stratalog_cli.entry import COMMANDS
from stratalog_operator.resources.names import ANNOTATION_WANTED_HASH, LABEL_CLUSTER
from stratalog_operator.specs.cluster import cluster_objects
from stratalog_operator.specs.cold_tier import bucket_url
from stratalog_operator.specs.meta import meta_objects
from stratalog_operator.specs.network_policies import network_policies
from stratalog_operator.specs.node import NodeIdentity, node_name, node_set
from stratalog_operator.specs.objects import Manifest, template_hash
from stratalog_operator.specs.settings_file import settings_text
from stratalog_operator.specs.volume import volume_name, volume_objects
from support.golden_specs import cluster, pool, scenes, text_of

GOLDEN = Path(__file__).with_name("golden")
SCENES = scenes()
OBJECTS: list[tuple[str, Any]] = [(scene, made) for scene, objects in SCENES.items() for made in objects]
SETS = [one for one in OBJECTS if one[1]["kind"] == "StatefulSet"]
OURS = [one for one in SETS if one[1]["spec"]["template"]["spec"]["containers"][0]["name"] != "etcd"]
NODE = NodeIdentity(1, "hot")


def _named(made: Any) -> str:
    return f"{made['kind']} {made['metadata']['name']}" if isinstance(made, dict) else str(made)


@pytest.mark.parametrize("scene", SCENES)
def test_what_is_wanted_is_what_was_read_and_kept(scene: str) -> None:
    kept = (GOLDEN / scene).read_text(encoding="utf-8")

    assert text_of(SCENES[scene]) == kept, "read the difference, then: python -m support.golden_specs (from tests/)"


def test_no_kept_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(SCENES)


@pytest.mark.parametrize(("scene", "made"), OBJECTS, ids=_named)
def test_every_object_says_whose_it_is(scene: str, made: Any) -> None:
    """A claim has no owner: what goes with its owner cannot be kept."""
    metadata = made["metadata"]

    assert metadata["namespace"] == "data"
    assert metadata["labels"]["app.kubernetes.io/instance"] == "main"
    assert ANNOTATION_WANTED_HASH in metadata["annotations"]
    assert ("ownerReferences" in metadata) == (made["kind"] != "PersistentVolumeClaim")


def test_the_meta_service_gets_only_the_keys_that_it_uses_of_secrets_for_etcd() -> None:
    """A Secret of cert-manager with a `ca.crt` may have the key of that authority, too."""
    [meta] = [one for scene, one in SETS if scene.startswith("cluster_over") and one["metadata"]["name"] == "main-meta"]
    secrets = {one["name"]: one["secret"] for one in meta["spec"]["template"]["spec"]["volumes"] if "secret" in one}

    keys = {name: [item["key"] for item in secrets[name].get("items", ())] for name in secrets if "etcd" in name}

    assert keys == {"etcd-user": ["password"], "etcd-ca": ["ca.crt"], "etcd-client": ["tls.crt", "tls.key"]}


@pytest.mark.parametrize(("scene", "made"), SETS, ids=_named)
def test_every_pod_is_restricted_and_restarts_only_when_the_plan_says_so(scene: str, made: Any) -> None:
    spec = made["spec"]["template"]["spec"]

    assert made["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in spec["volumes"]} | {"data"}
    selector = made["spec"]["selector"]["matchLabels"]
    assert selector.items() <= made["spec"]["template"]["metadata"]["labels"].items()
    assert selector[LABEL_CLUSTER] == "main"


def test_no_secret_stands_on_a_command_line_or_in_a_settings_file() -> None:
    texts = [json.dumps(made) for _, made in OBJECTS if made["kind"] in ("StatefulSet", "ConfigMap")]

    assert not [text for text in texts if "made-up" in text]
    assert "secretKeyRef" in "".join(texts)


def test_the_settings_file_is_one_that_the_processes_take(tmp_path: Path) -> None:
    file = tmp_path / "stratalog.conf"
    chosen = cluster({"config": {"log.level": "debug"}, "scaleIn": {"verifyIntervalSeconds": 5}})
    file.write_text(settings_text(chosen))
    settings = load_process_settings(file=file)

    assert settings.auth_token_file == "/etc/stratalog/token/token"
    assert settings.default_replication_factor == 3
    assert settings.min_insync_replicas == 2
    assert settings.retire_verify_interval_ms == 5000
    assert settings.log_level == "debug"


@pytest.mark.parametrize(("has_tls", "secret"), [(False, "people"), (True, "main-role-hashes")])
def test_every_process_reads_the_tokens_of_people_where_the_secret_is_mounted(
    tmp_path: Path, has_tls: bool, secret: str
) -> None:
    chosen = cluster({"meta": {"etcd": {}, "roleTokensSecretRef": "people"}, "tls": {"internal": has_tls}})
    file = tmp_path / "stratalog.conf"
    file.write_text(settings_text(chosen))
    path = Path(load_process_settings(file=file).auth_role_tokens_file)
    node = NodeIdentity(1, "hot")
    reader = volume_objects(chosen, pool(), node, "mount", "uid-of-mount")[-1]
    for manifest in (node_set(chosen, pool(), node), meta_objects(chosen)[-1], reader):
        made: Any = manifest
        spec = made["spec"]["template"]["spec"]
        (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == str(path.parent)]
        (volume,) = [one["secret"] for one in spec["volumes"] if one["name"] == mount["name"]]

        assert (path.name, volume["secretName"], mount["readOnly"], "subPath" in mount) == (
            "roles",
            secret,
            True,
            False,
        )


def test_the_bucket_is_one_that_the_processes_take() -> None:
    from stratalog.objects.urls import parse_url

    for cold in (
        {"bucket": "flights", "endpoint": "http://127.0.0.1:7070", "prefix": "a/b"},
        {"bucket": "flights", "credentialsSecretRef": "store", "virtualHostedStyle": True},
        {"type": "gcs", "bucket": "flights"},
        {"type": "gcs", "bucket": "flights", "prefix": "a", "endpoint": "https://storage.example"},
        {"type": "azure", "bucket": "flights", "account": "acme", "endpoint": "http://127.0.0.1:10000/acme"},
    ):
        url = bucket_url(cluster({"coldTier": cold}))
        assert url is not None
        parse_url(url)


@pytest.mark.parametrize(
    ("kind", "variables", "file"),
    [
        ("s3", {"accessKeyId", "secretAccessKey", "sessionToken"}, None),
        ("gcs", set(), "credentials.json"),
        ("azure", {"accountKey"}, None),
    ],
)
def test_pods_get_only_the_keys_of_the_secret_that_their_store_takes(
    kind: str, variables: set[str], file: str | None
) -> None:
    account = {"account": "acme"} if kind == "azure" else {}
    chosen = cluster({"coldTier": {"type": kind, "bucket": "flights", "credentialsSecretRef": "store", **account}})
    for manifest in (node_set(chosen, pool(), NodeIdentity(1, "hot")), meta_objects(chosen)[-1]):
        made: Any = manifest
        spec = made["spec"]["template"]["spec"]
        environment = {one["name"]: one for one in spec["containers"][0]["env"]}
        given = [one["valueFrom"]["secretKeyRef"] for one in environment.values() if "secretKeyRef" in str(one)]
        files = [
            one["secret"]["items"] for one in spec["volumes"] if one.get("secret", {}).get("secretName") == "store"
        ]

        assert {one["key"] for one in given} == variables
        assert files == ([] if file is None else [[{"key": file, "path": file}]])
        if file is not None:
            (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "store"]
            assert environment["GOOGLE_APPLICATION_CREDENTIALS"]["value"] == f"{mount['mountPath']}/{file}"


@pytest.mark.parametrize("kind", ["gcs", "azure"])
def test_pods_that_use_the_store_have_the_service_account_that_the_cloud_knows(kind: str) -> None:
    account = {"account": "acme"} if kind == "azure" else {}
    chosen = cluster({"coldTier": {"type": kind, "bucket": "flights", "serviceAccountName": "log", **account}})
    for manifest in (node_set(chosen, pool(), NodeIdentity(1, "hot")), meta_objects(chosen)[-1]):
        made: Any = manifest
        template = made["spec"]["template"]

        assert template["spec"]["serviceAccountName"] == "log"
        assert template["spec"]["automountServiceAccountToken"] is False
        assert ("azure.workload.identity/use" in template["metadata"]["labels"]) is (kind == "azure")
        assert "azure.workload.identity/use" not in made["spec"]["selector"]["matchLabels"], "it cannot be changed"


@pytest.mark.parametrize(("scene", "made"), OURS, ids=_named)
def test_every_flag_is_one_that_the_command_has(scene: str, made: Any) -> None:
    """A pod whose process refuses its command line crashes forever."""
    (_, *words) = made["spec"]["template"]["spec"]["containers"][0]["command"]
    app = typer.Typer()
    importlib.import_module(COMMANDS[words[0]]).register(app)
    command: Any = typer.main.get_command(app)
    (group,) = command.commands.values() if hasattr(command, "commands") else [command]
    start = group.commands[words[1]] if hasattr(group, "commands") else group

    context = start.make_context(words[1], words[2:])
    settings = [pair.split("=", 1) for pair in context.params["settings"]]
    assert {"metrics.listen", "advertised.listeners"} <= {key for key, _ in settings}
    assert context.params["config"] == Path("/etc/stratalog/settings/stratalog.conf")


def test_a_node_listens_for_clients_outside_and_tells_them_of_the_port_that_leads_to_it() -> None:
    (pod,) = (made for made in SCENES["listeners_for_clients_outside.yaml"] if made["kind"] == "StatefulSet")
    body: Any = pod
    container = body["spec"]["template"]["spec"]["containers"][0]
    words = [
        word.replace("$(POD_NAME)", "main-hot-7-0").replace("$(HOST_IP)", "10.0.0.9") for word in container["command"]
    ]
    settings = load_process_settings(assignments=[words[at + 1] for at, word in enumerate(words) if word == "--set"])

    assert settings.further_listeners == (Listener("outside", "0.0.0.0", 9094), Listener("far", "0.0.0.0", 9095))
    assert settings.advertised_addresses == (
        Listener("internal", "main-hot-7-0.main-nodes.data.svc.cluster.local", 9092),
        Listener("outside", "10.0.0.9", 30_100),
        Listener("far", "kafka.example.org", 31_100),
    )
    assert {"HOST_IP"} <= {one["name"] for one in container["env"]}
    assert {9092, 9094, 9095} <= {one["containerPort"] for one in container["ports"]}


def test_only_what_a_pod_is_made_of_changes_its_hash() -> None:
    """A pod is restarted when its hash is another one, so nothing else may move it."""
    before = template_hash(node_set(cluster(), pool(), NODE))

    def after(spec: dict[str, Any] | None = None, *, restart: str = "", size: str = "10Gi") -> str:
        of_pool = pool({"storage": {"size": size}, "replicas": 9})
        return template_hash(node_set(cluster(spec, restart=restart), of_pool, NODE))

    assert after() == before
    assert after(size="20Gi") == before
    assert after({"scaleIn": {"mode": "RemountVolume"}, "storageRetention": {"whenScaled": "Retain"}}) == before
    changed = [
        after({"image": {"tag": "2"}}),
        after({"config": {"log.level": "debug"}}),
        after({"coldTier": {"bucket": "flights"}}),
        after(restart="monday"),
    ]
    assert len({before, *changed}) == 5


def test_names_fit_whatever_the_pools_and_clusters_are_called() -> None:
    """A pod's labels have 63 characters, and a StatefulSet adds 11 to its own name."""
    longest = node_name("c" * 20, "p" * 20, 99_999)

    assert len(longest) <= 52
    assert len(volume_name("c" * 20, "p" * 20, 99_999)) <= 52


def test_the_same_input_gives_the_same_bytes() -> None:
    again: dict[str, list[Manifest]] = scenes()

    assert {scene: text_of(objects) for scene, objects in again.items()} == {
        scene: text_of(objects) for scene, objects in SCENES.items()
    }


def test_the_word_that_restarts_all_restarts_etcd_too_and_settings_do_not() -> None:
    def etcd(spec: dict[str, Any] | None = None, *, restart: str = "") -> str:
        (found,) = (
            one
            for one in cluster_objects(cluster(spec, restart=restart))
            if one["kind"] == "StatefulSet" and one["metadata"]["name"].endswith("-etcd")
        )
        return template_hash(found)

    assert etcd(restart="monday") != etcd() != etcd(restart="tuesday")
    assert etcd({"config": {"log.level": "debug"}}) == etcd()


def test_an_operator_whose_namespace_is_not_known_is_let_in_from_any() -> None:
    inner = cluster({"listeners": [{"name": "internal", "port": 9092}]})
    for namespace, selected in (("", {}), ("operators", {"matchLabels": {"kubernetes.io/metadata.name": "operators"}})):
        made = {one["metadata"]["name"]: one for one in network_policies(replace(inner, operator_namespace=namespace))}
        (operator,) = (one for one in made["main-meta"]["spec"]["ingress"][0]["from"] if "namespaceSelector" in one)
        assert operator["namespaceSelector"] == selected
