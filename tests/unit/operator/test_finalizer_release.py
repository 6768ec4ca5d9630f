"""`stratalog operator release`, and an operator whose kinds are being removed: what of one cluster fails holds up no
other."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.model.errors import Unavailable
from stratalog_operator.finalizer_release import let_go_all
from stratalog_operator.kube.client import path_of
from stratalog_operator.queue import Key
from support.noted_kubernetes import NotedKubernetes


class Passes:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def let_go(self, key: Key) -> int:
        self.asked.append(key[1])
        if key[1] == "bad":
            raise Unavailable("the API server refuses a finalizer")
        return 0


def _cluster(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "data", "finalizers": ["stratalog.dev/operator"]}
    return {"kind": "StorageCluster", "metadata": {**metadata, "deletionTimestamp": "2013-01-01T00:00:00Z"}}


@pytest.mark.fault("stratalog-operator-release-operator")
async def test_a_cluster_that_cannot_be_let_go_holds_up_no_other() -> None:
    kubernetes, passes = NotedKubernetes(), Passes()
    items = [_cluster("bad"), _cluster("good")]
    kubernetes.answers_to[path_of("StorageCluster", "")] = {"items": items}
    with pytest.raises(Unavailable, match="refuses a finalizer"):
        await let_go_all(kubernetes, passes, (), ["StorageCluster"])  # type: ignore[arg-type]

    assert passes.asked == ["bad", "good"]
