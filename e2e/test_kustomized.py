"""The operator by kubectl alone, as docs/kubernetes.md has it beside helm: it makes the same cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stratalog_e2e.install import SYSTEM, Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.surroundings import REPOSITORY

DEPLOYMENT = "stratalog-operator"


@pytest.fixture
def by_kubectl(operator: Operator, tmp_path: Path) -> Iterator[Operator]:
    """Instead of helm's, which is there again afterwards."""
    operator.uninstall()
    repository, _, tag = operator.images.product.rpartition(":")
    base = os.path.relpath(REPOSITORY / "deploy" / "operator", tmp_path.resolve())
    overlay = {"resources": [base], "images": [{"name": "stratalog", "newName": repository, "newTag": tag}]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    kube = operator.kube
    try:
        kube.run("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        kube.run("apply", "-k", str(tmp_path))
        kube.run("rollout", "status", f"deployment/{DEPLOYMENT}", "-n", SYSTEM, "--timeout=180s", timeout=200)
        yield operator
    finally:
        kube.run("delete", "-k", str(tmp_path), "--ignore-not-found", "--timeout=180s", timeout=200)
        until(lambda: kube.get("namespace", SYSTEM), lambda found: found is None, 120, f"{SYSTEM} is gone")
        operator.install()


def test_kubectl_alone_installs_it_and_a_cluster_comes_up(by_kubectl: Operator, stored: Place) -> None:
    stored.make_cluster()
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    traffic.judge()
    by_kubectl.kube.run("exec", f"deployment/{DEPLOYMENT}", "-n", SYSTEM, "--", "stratalog", "operator", "check")
    assert stored.condition("storagecluster", CLUSTER, "Healthy")["status"] == "True"
