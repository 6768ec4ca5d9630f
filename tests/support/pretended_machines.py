"""What Kubernetes with machines would do in a namespace of a bare API server: runs pods of StatefulSets, binds claims,
and takes along what belonged to something that is gone.

Blocking; a round does all that is due. Nothing runs in the pods: they are ready at once, unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from stratalog_operator.kube.client import path_of
from stratalog_operator.resources.names import LABEL_PART
from support.api_server import MERGE, ApiServer

_OWNED: Final = (
    "StorageNode", "ReadOnlyMount", "CronJob", "Job", "StatefulSet", "Service", "ConfigMap", "Secret",
    "PodDisruptionBudget",
)  # fmt: skip
_OWNERS: Final = ("StorageCluster", "StorageNode", "ReadOnlyMount", "StorageUser", "ArchiveJob", "CronJob")
_PROTECTION: Final = "kubernetes.io/pvc-protection"


class Machines:
    def __init__(self, api: ApiServer, namespace: str, *, policy: str = "Delete") -> None:
        """`policy` is what becomes of a volume whose claim goes, as its class says."""
        self._api = api
        self._namespace = namespace
        self._policy = policy
        self.started: list[str] = []
        """UIDs of all pods that ever were, by their start."""
        self.down: set[str] = set()
        """Pods of these names are not ready."""

    def round(self) -> None:
        self._collect()
        pods = {pod["metadata"]["name"]: pod for pod in self._all("Pod")}
        wanted: set[str] = set()
        for one in self._all("StatefulSet"):
            for number in range(one["spec"]["replicas"]):
                name = f"{one['metadata']['name']}-{number}"
                wanted.add(name)
                if name not in pods:
                    self._start(one, name)
        for name, pod in pods.items():
            if pod["metadata"]["labels"].get(LABEL_PART) == "job":
                continue  # the test says how it ends
            if name not in wanted or "deletionTimestamp" in pod["metadata"]:
                self._ask("DELETE", path_of("Pod", self._namespace, name), {"gracePeriodSeconds": 0})
            else:
                self._set_ready(pod)
        for claim in self._all("PersistentVolumeClaim"):
            self._bind(claim, pods)

    def _all(self, kind: str) -> list[dict[str, Any]]:
        answer = self._api.ask("GET", path_of(kind, self._namespace))
        if answer.code == 404:  # its definition was deleted
            return []
        assert answer.is_ok, answer.message
        return list(answer.body["items"])

    def _ask(self, method: str, path: str, body: object = None, *, kind: str = "application/json") -> dict[str, Any]:
        """What is gone, or has changed meanwhile, the next round sees."""
        answer = self._api.ask(method, path, body, kind=kind)
        assert answer.is_ok or answer.code in (404, 409), answer.message
        return answer.body

    def _start(self, owner: dict[str, Any], name: str) -> None:
        template = owner["spec"]["template"]
        volumes = [*template["spec"]["volumes"]]
        for claimed in owner["spec"].get("volumeClaimTemplates", []):
            claim = {"claimName": f"{claimed['metadata']['name']}-{name}"}
            volumes.append({"name": claimed["metadata"]["name"], "persistentVolumeClaim": claim})
        spec = {**template["spec"], "volumes": volumes, "nodeName": "machine-1"}
        body = {"metadata": {**template["metadata"], "name": name}, "spec": spec}
        made = self._ask("POST", path_of("Pod", self._namespace), body)
        if "uid" in made.get("metadata", {}):
            self.started.append(made["metadata"]["uid"])
            self._set_ready(made)

    def _set_ready(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        wanted = "False" if name in self.down else "True"
        conditions = pod.get("status", {}).get("conditions") or []
        if any(one["type"] == "Ready" and one["status"] == wanted for one in conditions):
            return
        ready = {"type": "Ready", "status": wanted, "lastTransitionTime": pod["metadata"]["creationTimestamp"]}
        path = f"{path_of('Pod', self._namespace, name)}/status"
        self._ask("PATCH", path, {"status": {"conditions": [ready]}}, kind=MERGE)

    def _bind(self, claim: dict[str, Any], pods: dict[str, dict[str, Any]]) -> None:
        name, path = (
            claim["metadata"]["name"],
            path_of("PersistentVolumeClaim", self._namespace, claim["metadata"]["name"]),
        )
        if "deletionTimestamp" in claim["metadata"]:
            self._unprotect(claim, path, pods)
            return
        if "volumeName" not in claim["spec"]:
            volume = f"{self._namespace}-{name}-{claim['metadata']['uid'][:8]}"
            spec = {
                "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/nowhere"}, "persistentVolumeReclaimPolicy": self._policy,
            }  # fmt: skip
            self._ask("POST", "/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
            self._ask("PATCH", path, {"spec": {"volumeName": volume}}, kind=MERGE)
        if claim.get("status", {}).get("phase") != "Bound":
            self._ask("PATCH", f"{path}/status", {"status": {"phase": "Bound"}}, kind=MERGE)

    def _unprotect(self, claim: dict[str, Any], path: str, pods: dict[str, dict[str, Any]]) -> None:
        """A claim that is in use stays until its pod has gone."""
        finalizers = claim["metadata"].get("finalizers") or []
        users = [volume.get("persistentVolumeClaim", {}) for pod in pods.values() for volume in pod["spec"]["volumes"]]
        is_used = any(one.get("claimName") == claim["metadata"]["name"] for one in users)
        if _PROTECTION in finalizers and not is_used:
            rest = [one for one in finalizers if one != _PROTECTION]
            stamp = claim["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": stamp, "finalizers": rest}}
            self._ask("PATCH", path, body, kind=MERGE)

    def _collect(self) -> None:
        living = {one["metadata"]["uid"] for kind in _OWNERS for one in self._all(kind)}
        for kind in _OWNED:
            for one in self._all(kind):
                owners = one["metadata"].get("ownerReferences") or []
                if owners and not any(owner["uid"] in living for owner in owners):
                    self._ask("DELETE", path_of(kind, self._namespace, one["metadata"]["name"]))
