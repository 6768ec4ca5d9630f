"""Every metric that the operator exports moves: passes of the product's own parts over a Kubernetes that only notes."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from kubernetes.aio.client import Configuration

from stratalog.model.errors import Unavailable
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.tls.material import TlsMaterial
from stratalog_operator.announce import Announcer
from stratalog_operator.kube.client import path_of
from stratalog_operator.metas import MetaConnection, MetaConnections
from stratalog_operator.passes import Passes
from stratalog_operator.plan.observed import SeenMeta
from stratalog_operator.process import Operator, OperatorSettings
from stratalog_operator.queue import Key
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.stats import export
from stratalog_operator.workers import Workers
from support.meta_requests import RecordedRequests
from support.noted_kubernetes import NotedKubernetes
from support.waiting import eventually

ELSEWHERE = {"stratalog_operator_is_leader": ("test_operator_runs_served.py", "stratalog_operator_is_leader 1")}
"""It needs a Lease: by the page of an operator at a real API server."""
_PATIENT = 60.0
TOKEN = base64.b64encode(b"token-of-a-small-test").decode()

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AllServe",
    "message": "",
    "observedGeneration": 1,
    "lastTransitionTime": "2013-01-01T00:00:00Z",
}


class TopicsOnlyRequests(RecordedRequests):
    async def make_topic(self, *_: object) -> None: ...

    change_topic = remove_topic = make_mount = make_topic


class NoMeta(MetaConnections):
    async def observe(self) -> SeenMeta:
        raise AssertionError("without a pod of it nobody is asked")

    async def connect(self, cluster: Cluster, token: str, own: TlsMaterial | None = None) -> MetaConnection:
        if cluster.name == "bad":
            raise Unavailable("its pass fails")
        return MetaConnection(self, TopicsOnlyRequests())

    async def forget(self, key: Key) -> None: ...

    async def close(self) -> None: ...


def _kubernetes(*names: str) -> NotedKubernetes:
    """Clusters that were ready and whose objects are all gone, which causes Events. A pass over the one named `bad`
    fails."""
    made = NotedKubernetes()
    made.missing.add(path_of("StorageCluster", "data", "gone"))
    for name in names:
        metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"}
        made.answers_to[path_of("StorageCluster", "data", name)] = {
            "metadata": metadata,
            "spec": {"meta": {"etcd": {}}, "image": {"repository": "stratalog"}},
            "status": {"conditions": [READY]},
        }
        made.answers_to[path_of("Secret", "data", f"{name}-token")] = {
            "metadata": {"name": f"{name}-token", "uid": f"uid-of-{name}-token"},
            "data": {"token": TOKEN},
        }
    return made


async def test_every_metric_of_the_operator_moves() -> None:
    kubernetes, metas = _kubernetes("good", "bad"), NoMeta()
    operator = Operator(OperatorSettings("one"), Configuration(host="http://127.0.0.1:1"), metas)
    stats, registry = operator.stats, MetricRegistry()
    export(registry, stats, kubernetes)
    announcer = Announcer(kubernetes, stats, "one")
    workers = operator._workers = Workers(Passes(kubernetes, metas, announcer, stats).run_pass, stats, at_once=1)
    registry.refresh_with(workers.measure)
    exported = {one.name for one in registry.descriptions() if one.name.startswith("stratalog_operator_")}
    moved: set[str] = set()

    def has_all_moved() -> bool:
        moved.update(name for name, series in registry.values().items() if any(series.values()))
        return moved | ELSEWHERE.keys() >= exported

    kubernetes.gate.clear()
    running = [asyncio.create_task(workers.run()), asyncio.create_task(announcer.run())]
    for name in ("good", "bad", "gone"):
        operator._woken(("data", name), is_named_only=False)
    # One is looked at, and is not answered; the others wait.
    await eventually(lambda: has_all_moved() or stats.queue_oldest_seconds > 0, timeout=_PATIENT)
    kubernetes.gate.set()
    try:
        await eventually(has_all_moved, timeout=_PATIENT)
    finally:
        assert exported - moved <= ELSEWHERE.keys()
        await workers.finish(_PATIENT)
        for task in running:
            task.cancel()

    for name, (place, words) in ELSEWHERE.items():
        assert words in Path(__file__).with_name(place).read_text(), f"{name}: {place} does not show it any more"
    assert stats.wakes == 3 and stats.failures >= 1
