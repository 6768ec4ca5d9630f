"""`kubectl apply -k deploy/operator`: every file is named, is YAML, and gives the operator's rights and no others."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import yaml

from stratalog_operator.kube.rights import FOR_OWNERS, RIGHTS, Right, Scope
from stratalog_operator.resources.archive_job import ArchiveJobSpec
from stratalog_operator.resources.cluster import StorageClusterSpec
from stratalog_operator.resources.mount import ReadOnlyMountSpec
from stratalog_operator.resources.names import API_VERSION
from stratalog_operator.resources.pool import StorageNodePoolSpec
from stratalog_operator.resources.topic import TopicStorageSpec
from stratalog_operator.resources.user import StorageUserSpec
from support.source_tree import REPOSITORY

PLACE = REPOSITORY / "deploy" / "operator"
EXAMPLES = REPOSITORY / "deploy" / "examples"
MODELS = {
    "StorageCluster": StorageClusterSpec,
    "StorageNodePool": StorageNodePoolSpec,
    "TopicStorage": TopicStorageSpec,
    "StorageUser": StorageUserSpec,
    "ReadOnlyMount": ReadOnlyMountSpec,
    "ArchiveJob": ArchiveJobSpec,
}


def objects() -> list[dict[str, Any]]:
    named = yaml.safe_load((PLACE / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    return [one for name in named for one in yaml.safe_load_all((PLACE / name).read_text(encoding="utf-8")) if one]


def test_every_file_is_taken_and_everything_is_in_the_operators_namespace() -> None:
    named = yaml.safe_load((PLACE / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert {*named, "kustomization.yaml"} == {path.name for path in PLACE.iterdir()}
    for one in objects():
        if one["kind"] not in ("Namespace", "ClusterRole", "ClusterRoleBinding"):
            assert one["metadata"]["namespace"] == "stratalog-system", one["kind"]


def test_its_roles_are_the_operators_rights() -> None:
    found = {one["kind"]: one for one in objects()}

    def given(kind: str) -> set[Right]:
        return {
            Right(verb, group, resource)
            for rule in found[kind]["rules"]
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }

    assert given("ClusterRole") == RIGHTS[Scope.WATCHED] | FOR_OWNERS | RIGHTS[Scope.WHOLE]
    assert given("Role") == RIGHTS[Scope.OWN]
    account = found["ServiceAccount"]["metadata"]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        (subject,) = found[kind]["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert found["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl in PATH: the kustomization is not built")
def test_kubectl_builds_it() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(PLACE)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    made = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert len(made) == len(objects())
    (deployment,) = (one for one in made if one["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "stratalog:0.1.0"


def test_the_parts_of_a_cluster_of_the_examples_speak_tls_with_each_other() -> None:
    found = [one for path in EXAMPLES.glob("*cluster.yaml") for one in yaml.safe_load_all(path.read_text("utf-8"))]
    clusters = [StorageClusterSpec.model_validate(one["spec"]) for one in found if one["kind"] == "StorageCluster"]

    assert len(clusters) == 2 and all(one.asks_for_internal_tls for one in clusters)


def test_the_examples_are_objects_of_our_kinds() -> None:
    seen = set()
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if one["apiVersion"] == API_VERSION:
                seen.add(one["kind"])
                MODELS[one["kind"]].model_validate(one["spec"])
    assert seen == set(MODELS)
