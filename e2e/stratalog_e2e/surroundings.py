"""Which Kubernetes is tested on: the one that KUBECONFIG names, else one that `kind` makes and that goes afterwards.

The tests ask nothing of it but three workers with a zone each, a default storage class, and the right to all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stratalog_e2e.kubernetes_api import Kubernetes

REPOSITORY = Path(__file__).resolve().parents[2]
KIND_CLUSTER = "stratalog-e2e"
KIND_FILE = REPOSITORY / "deploy" / "examples" / "kind.yaml"


def missing_program() -> str:
    """Why no test can run here; empty when nothing is missing."""
    if shutil.which("kubectl") is None:
        return "no kubectl in PATH"
    if os.environ.get("KUBECONFIG"):
        return ""
    if shutil.which("kind") is None:
        return "no KUBECONFIG names a cluster, and there is no kind in PATH to make one"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "no KUBECONFIG names a cluster, and docker does not answer, so that kind could make one"
    return ""


@contextmanager
def kubernetes(folder: Path) -> Iterator[Kubernetes]:
    named = os.environ.get("KUBECONFIG")
    if named:
        yield Kubernetes(Path(named))
        return
    made = Kubernetes(folder / "kubeconfig")
    command = ["kind", "create", "cluster", "--name", KIND_CLUSTER, "--config", str(KIND_FILE), "--wait", "300s"]
    subprocess.run([*command, "--kubeconfig", str(made.kubeconfig)], check=True, timeout=900)
    try:
        yield made
    finally:
        subprocess.run(["kind", "delete", "cluster", "--name", KIND_CLUSTER], check=False, timeout=120)


def kind_name(kube: Kubernetes) -> str | None:
    """Of a cluster that kind made, whoever asked for it; None for any other."""
    context = kube.run("config", "current-context").strip()
    return context.removeprefix("kind-") if context.startswith("kind-") else None


def workers(kube: Kubernetes) -> list[str]:
    """Machines that take pods, in the order of their names."""
    control = "node-role.kubernetes.io/control-plane"
    found = kube.list("nodes")
    return sorted(one["metadata"]["name"] for one in found if control not in one["metadata"]["labels"])


def zones(kube: Kubernetes) -> list[str]:
    key = "topology.kubernetes.io/zone"
    found = (one["metadata"]["labels"].get(key) for one in kube.list("nodes"))
    return sorted({zone for zone in found if zone})
