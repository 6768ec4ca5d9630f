"""What a failed test leaves behind: objects, events and logs of its namespace and of the operator, as files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from stratalog_e2e.install import SYSTEM
from stratalog_e2e.kubernetes_api import Kubernetes, Refused

_KINDS = (
    "scl,snp,snode,ts,rom,statefulsets,deployments,pods,services,persistentvolumeclaims,configmaps,poddisruptionbudgets,"
    "leases"
)


def keep(kube: Kubernetes, namespace: str, folder: Path) -> None:
    """Secrets are left out. What cannot be had is named in its file."""
    for place in (namespace, SYSTEM):
        at = folder / place
        at.mkdir(parents=True, exist_ok=True)
        _write(kube, at / "objects.yaml", "get", _KINDS, "-n", place, "-o", "yaml")
        _write(kube, at / "objects.txt", "get", _KINDS, "-n", place, "-o", "wide")
        _write(kube, at / "events.txt", "get", "events", "-n", place, "--sort-by=.lastTimestamp")
        _write(kube, at / "describe.txt", "describe", "pods,pvc,scl,snp,snode", "-n", place)
        with suppress(Refused):
            for pod in kube.list("pods", place):
                name = pod["metadata"]["name"]
                _write(kube, at / f"{name}.log", "logs", name, "-n", place, "--all-containers")
                if any(one.get("restartCount") for one in pod["status"].get("containerStatuses", ())):
                    _write(kube, at / f"{name}.before.log", "logs", name, "-n", place, "--previous")
    _write(kube, folder / "machines.txt", "describe", "nodes")
    _write(kube, folder / "volumes.yaml", "get", "pv", "-o", "yaml")


def _write(kube: Kubernetes, path: Path, *words: str) -> None:
    try:
        text = kube.run(*words)
    except Exception as error:
        text = f"could not be had: {error}"
    path.write_text(text, encoding="utf-8")
