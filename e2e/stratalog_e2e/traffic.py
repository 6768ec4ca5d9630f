"""Clients in a pod, as a test commands them: `flows`, `judge`, the longest gap, a sentinel topic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from stratalog_e2e.kubernetes_api import Kubernetes, Object, until
from stratalog_e2e.logged_in import FOLDER
from stratalog_e2e.traffic_pod import PORT, SENTINELS

READY_S, FLOWS_S, JUDGE_S = 120, 120, 300
POD = "traffic"
GAP_S = 30
"""The longest time in which a shard may acknowledge nothing, where no machine is lost."""


class Clients:
    """One pod, beside no storage node where that can be, so that it outlives a machine."""

    def __init__(self, kube: Kubernetes, namespace: str, image: str, secrets: Sequence[str] = ()) -> None:
        self._kube = kube
        self._namespace = namespace
        self.started: list[Traffic] = []
        self.longest_gaps_s: list[float] = []
        """Of each traffic that was judged."""
        kube.apply(_pod(image, secrets), namespace=namespace)
        until(lambda: kube.get("pod", POD, namespace), _is_ready, READY_S, "the pod with the clients is ready")

    def ask(self, path: str, timeout: float = 90, **asked: object) -> dict[str, Any]:
        query = f"?{urlencode(asked)}" if asked else ""
        raw = f"/api/v1/namespaces/{self._namespace}/pods/{POD}:{PORT}/proxy/{path}{query}"
        return dict(json.loads(self._kube.run("get", "--raw", raw, timeout=timeout)))

    def start(self, bootstrap: str, topic: str, shards: int, per_s: float = 60) -> Traffic:
        self.ask("start", bootstrap=bootstrap, topic=topic, shards=shards, per_s=per_s)
        traffic = Traffic(self)
        self.started.append(traffic)
        traffic.flows()
        return traffic

    def write_sentinels(self, bootstrap: str, topic: str) -> None:
        written = self.ask("sentinel/write", bootstrap=bootstrap, topic=topic)
        assert written == {"written": SENTINELS, "failed": []}, written

    def read_sentinels(self, bootstrap: str, topic: str) -> dict[str, Any]:
        found = self.ask("sentinel/read", bootstrap=bootstrap, topic=topic)
        assert found["count"] == SENTINELS, found
        return found


class Traffic:
    """Producers and a consumer that run until they are judged."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.is_judged = False

    def acknowledged(self) -> dict[str, int]:
        return {shard: int(count) for shard, count in self._clients.ask("acknowledged").items()}

    def flows(self, limit_s: float = FLOWS_S, count: int = 5) -> None:
        """Waits until each shard has acknowledged `count` more records."""
        before = self.acknowledged()

        def has_flown(now: dict[str, int]) -> bool:
            return bool(now) and all(now[shard] >= before.get(shard, 0) + count for shard in {*now, *before})

        until(
            self.acknowledged, has_flown, limit_s, f"{count} more records are acknowledged in each shard than {before}"
        )

    def longest_gap_s(self) -> float:
        return max(self._clients.ask("gap").values())

    def judge(self, longest_gap_s: float = GAP_S) -> int:
        """Returns how many records were acknowledged; raises with all that the log shows and clients were not told, and
        when a shard acknowledged nothing for longer than that."""
        self.is_judged = True
        gap_s = self.longest_gap_s()
        self._clients.longest_gaps_s.append(gap_s)
        verdict = until(
            lambda: self._clients.ask("judge"), lambda told: told["done"], JUDGE_S, "the judge has read all"
        )
        assert not verdict["found"], verdict["found"]
        assert verdict["acknowledged"] > 0, "nothing was acknowledged, so that nothing was shown"
        assert gap_s <= longest_gap_s, f"a shard took nothing for {gap_s} s, {longest_gap_s} s at most"
        return int(verdict["acknowledged"])


def _is_ready(pod: Object | None) -> bool:
    conditions = (pod or {}).get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _pod(image: str, secrets: Sequence[str]) -> Object:
    """`secrets` are mounted for clients that log in."""
    control = "node-role.kubernetes.io/control-plane"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "labels": {"app": POD}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "tolerations": [{"key": control, "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 100, "preference": {"matchExpressions": [{"key": control, "operator": "Exists"}]}}
                    ]
                }
            },
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": POD,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "ports": [{"name": "http", "containerPort": PORT}],
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1},
                    "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "tmp", "mountPath": "/tmp"},
                        *({"name": name, "mountPath": f"{FOLDER}/{name}", "readOnly": True} for name in secrets),
                    ],
                }
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                *({"name": name, "secret": {"secretName": name}} for name in secrets),
            ],
        },
    }
