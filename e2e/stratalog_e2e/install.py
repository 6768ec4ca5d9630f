"""The operator, installed as a user does: its definitions and itself from the two charts, or by `kubectl apply -k`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import yaml

from stratalog_e2e.images import Images
from stratalog_e2e.kubernetes_api import Kubernetes, Refused, until
from stratalog_e2e.surroundings import REPOSITORY

SYSTEM: Final = "stratalog-system"
RELEASE: Final = "stratalog"
INSIDE: Final = "inside"
"""A release in the namespace of a test."""
CHARTS: Final = REPOSITORY / "charts"
LEASE: Final = RELEASE
NO_HELM: Final = "no helm in PATH"


def has_helm() -> bool:
    return shutil.which("helm") is not None


class Operator:
    """Installed once for all tests."""

    def __init__(self, kube: Kubernetes, images: Images) -> None:
        self.kube = kube
        self.images = images

    def install(self, values: Mapping[str, Any] | None = None) -> None:
        """By helm. It may be there already: then it becomes what is asked for."""
        repository, _, tag = self.images.product.rpartition(":")
        asked = {"image": {"repository": repository, "tag": tag}, **(values or {})}
        self.helm("upgrade", "--install", "stratalog-crds", str(CHARTS / "stratalog-crds"), "--wait")
        self.helm(
            "upgrade", "--install", RELEASE, str(CHARTS / "stratalog"), "--wait", "--timeout", "5m", "-f", "-",
            given=yaml.safe_dump(asked),
        )  # fmt: skip

    def uninstall(self) -> None:
        """The definitions stay, as they must: whoever made them for a test takes them away."""
        self.helm("uninstall", RELEASE, "--wait", "--ignore-not-found")
        self.helm("uninstall", "stratalog-crds", "--wait", "--ignore-not-found")

    def remove_definitions(self) -> None:
        self.kube.run("delete", "crd", "-l", "app.kubernetes.io/name=stratalog", "--timeout=120s", timeout=150)
        self.kube.delete("namespace", SYSTEM)

    def install_in(self, namespace: str) -> None:
        """One more, that looks after the namespace in which it is, and after no other."""
        repository, _, tag = self.images.product.rpartition(":")
        asked = {"image": {"repository": repository, "tag": tag}, "watchNamespaces": [namespace]}
        self.helm(
            "upgrade", "--install", INSIDE, str(CHARTS / "stratalog"), "--wait", "--timeout", "5m", "-f", "-",
            given=yaml.safe_dump(asked), namespace=namespace,
        )  # fmt: skip

    def remove_rests_of_inside(self) -> None:
        """What of it is in no namespace outlives its own."""
        whole = "clusterroles,clusterrolebindings"
        self.kube.run("delete", whole, "-l", f"app.kubernetes.io/instance={INSIDE}", "--ignore-not-found")

    def helm(self, *words: str, given: str | None = None, timeout: float = 400, namespace: str = SYSTEM) -> str:
        done = subprocess.run(
            ["helm", *words, "--namespace", namespace, *(["--create-namespace"] if "--install" in words else [])],
            input=given, env=self.kube.environment, capture_output=True, text=True, check=False, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, f"helm {' '.join(words)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    # --- what it is doing ----------------------------------------------------------------------------------------
    def pods(self) -> dict[str, Any]:
        found = self.kube.list("pods", SYSTEM, "app.kubernetes.io/name=stratalog-operator")
        return {one["metadata"]["name"]: one for one in found if "deletionTimestamp" not in one["metadata"]}

    def leader(self) -> str:
        """The pod that holds the Lease; empty while none does."""
        lease = self.kube.get("lease", LEASE, SYSTEM) or {}
        return str(lease.get("spec", {}).get("holderIdentity") or "")

    def log(self, last_s: float) -> str:
        """Of all its pods, those before a restart included. One that is starting has none yet."""
        texts = []
        for name, pod in self.pods().items():
            asked = ("logs", name, "-n", SYSTEM, f"--since={int(last_s) + 1}s")
            with suppress(Refused):
                texts.append(self.kube.run(*asked))
                if any(one["restartCount"] for one in pod["status"].get("containerStatuses", ())):
                    texts.append(self.kube.run(*asked, "--previous"))
        return "\n".join(texts)

    def traceback(self, last_s: float) -> str:
        """The first traceback in the log of the last `last_s`, with the lines around it; empty when there is none."""
        lines = self.log(last_s).splitlines()
        at = next((number for number, line in enumerate(lines) if "Traceback" in line), None)
        return "" if at is None else "\n".join(lines[max(0, at - 3) : at + 30])

    def metrics(self, pod: str = "") -> str:
        name = pod or self.leader_pod()
        return self.kube.run("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{name}:9644/proxy/metrics")

    def leader_pod(self) -> str:
        holder = until(self.leader, bool, 60, "somebody holds the Lease")
        (name,) = (name for name in self.pods() if holder.startswith(name))
        return name

    def scale(self, replicas: int) -> None:
        self.kube.scale("deployment", RELEASE, SYSTEM, replicas)
        until(lambda: len(self.pods()), lambda count: count == replicas, 120, f"the operator has {replicas} pods")
        if replicas:
            self.kube.run("rollout", "status", f"deployment/{RELEASE}", "-n", SYSTEM, "--timeout=120s", timeout=150)
