"""A namespace for a test, under the restricted pod security standard, with an S3 server. It is watched from beginning
to end, and deleted with all its objects at the end.

At the end of each test it checks what must hold in all of them: of the storage pods that were ready, at most one was
away at a time; no pod restarted, unless the test is about that; no unexpected Warning was written; the operator kept to
its budget of writes and logged no traceback.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from stratalog_e2e.budget import Writes
from stratalog_e2e.install import Operator
from stratalog_e2e.kubernetes_api import Kubernetes, Object, condition, documents, until
from stratalog_e2e.observer import Observer
from stratalog_e2e.surroundings import REPOSITORY
from stratalog_e2e.traffic import Clients
from stratalog_operator.specs.objects import META_PORT

EXAMPLES: Final = REPOSITORY / "deploy" / "examples"
CLUSTER, POOL = "main", "hot"
READY_S: Final = 300
GONE_S: Final = 180
BOOTSTRAP: Final = f"{CLUSTER}-bootstrap:9092"
ORDINARY_WARNINGS: Final = frozenset(
    {
        "FailedScheduling",  # a claim that has no volume yet
        "Unhealthy",  # a probe of a process that starts or ends
        "BackOff",  # a meta service before its etcd
        "FailedMount",  # a Secret a moment before it is made
        "FailedAttachVolume",
        "ProvisioningFailed",
        "FailedToUpdateEndpointSlices",
        "FailedToUpdateEndpoint",
        "ClusterIPNotAllocated",  # Kubernetes' own look at a Service that is just being made
        "NoPods",  # a budget before its pods
        "CalculateExpectedPodCountFailed",
        "CheckInProgress",  # of several that leave at once, those that one node looks after later
        "ReleaseInProgress",  # of several that leave at once, all but one
        "MountPending",  # a retirement between its release and the moment in which another serves what was held
    }
)


class Place:
    def __init__(self, kube: Kubernetes, name: str, operator: Operator) -> None:
        self.kube = kube
        self.name = name
        self.images = operator.images
        self._operator = operator
        self.writes = Writes(operator)
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self.observer = Observer(kube, name)
        self.expected_warnings: set[str] = set()
        self.expects_restarts = False
        """Of storage pods: the test kills, moves or rolls some."""
        self.expects_outage = False
        """Of all of them at once: the test takes the cluster away and makes it again."""
        self.expects_tracebacks = False
        """In the operator's log: the test deletes the definitions, and kopf logs the end of each of its watches so."""
        self.is_gone = False
        """The test itself has deleted the namespace."""
        self.notes: list[str] = []
        """Notes of this run for the summary."""
        self._clients: Clients | None = None

    # --- what is there -----------------------------------------------------------------------------------------------
    def get(self, kind: str, name: str) -> Object | None:
        return self.kube.get(kind, name, self.name)

    def list(self, kind: str, selector: str = "") -> list[Object]:
        return self.kube.list(kind, self.name, selector)

    def pods(self, part: str = "node", cluster: str = CLUSTER) -> dict[str, Object]:
        found = self.list("pods", f"stratalog.dev/cluster={cluster},stratalog.dev/part={part}")
        return {one["metadata"]["name"]: one for one in found}

    def pod_uids(self, part: str = "node") -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(part).items()}

    def node_ids(self) -> list[int]:
        return sorted(int(one["spec"]["nodeId"]) for one in self.list("storagenodes"))

    def condition(self, kind: str, name: str, of: str) -> Object:
        return condition(self.get(kind, name), of)

    # --- what is done ------------------------------------------------------------------------------------------------
    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kube.apply(*objects, namespace=self.name)

    def make_store(self) -> None:
        self.apply(*documents(EXAMPLES / "store.yaml"))
        self.kube.run("rollout", "status", "deployment/store", "-n", self.name, "--timeout=180s", timeout=200)

    def make_cluster(self, *, nodes: int = 3, changes: Mapping[str, Any] | None = None, waits: bool = True) -> None:
        """The examples', smaller, with inside listeners only; `changes` by dotted path of the StorageCluster's spec."""
        self.apply(self.cluster_object(changes), pool_object(nodes))
        if waits:
            self.cluster_is_ready()

    def cluster_object(self, changes: Mapping[str, Any] | None = None, name: str = CLUSTER) -> Object:
        (made,) = documents(EXAMPLES / "cluster.yaml")
        made["metadata"]["name"] = name
        repository, _, tag = self.images.product.rpartition(":")
        small = {
            "image": {"repository": repository, "tag": tag},
            "meta": {"replicas": 2, "etcd": {"replicas": 1, "storage": "256Mi"}},
            # Clients of these tests use the listener of the nodes, which would ask them for certificates; and commands
            # in pods of nodes change things, for which those would hold no token.
            "listeners": [{"name": "internal", "port": 9092}],
            "tls": None,
            # Tests read them through the API server, which passes on no token.
            "config": {"auth.metrics.enable": "false"},
        }
        return changed(made, {f"spec.{path}": value for path, value in {**small, **(changes or {})}.items()})

    def cluster_is_ready(self, limit_s: float = READY_S, name: str = CLUSTER) -> Object:
        return self.is_true("storagecluster", name, "Ready", limit_s)

    def is_true(self, kind: str, name: str, of: str, limit_s: float = READY_S) -> Object:
        self.until_condition(kind, name, of, "True", limit_s)
        return self.get(kind, name) or {}

    def until_condition(self, kind: str, name: str, of: str, status: str, limit_s: float, reason: str = "") -> Object:
        """The condition, of what is asked for now."""

        def read_condition() -> Object:
            found = self.get(kind, name)
            seen = condition(found, of)
            seen["isCurrent"] = seen.get("observedGeneration") == (found or {}).get("metadata", {}).get("generation")
            return seen

        def is_so(seen: Object) -> bool:
            return seen["status"] == status and seen["isCurrent"] and (not reason or seen["reason"] == reason)

        return until(read_condition, is_so, limit_s, f"{kind} {name}: {of}={status} {reason}")

    def pool_has(self, ready: int, pool: str = POOL, limit_s: float = READY_S) -> None:
        """So many nodes, all of them serving, and none that is leaving."""

        def read_counts() -> Object:
            found = self.get("storagenodepool", pool) or {}
            status = found.get("status", {})
            return {
                "replicas": status.get("replicas"),
                "ready": status.get("readyReplicas"),
                "Ready": condition(found, "Ready"),
            }

        wanted = lambda seen: (seen["replicas"], seen["ready"], seen["Ready"]["status"]) == (ready, ready, "True")  # noqa: E731
        until(read_counts, wanted, limit_s, f"pool {pool} has {ready} nodes that serve")

    def scale(self, replicas: int, pool: str = POOL) -> None:
        self.kube.scale("snp", pool, self.name, replicas)

    def make_topic(self, name: str = "flights", *, shards: int = 3, waits: bool = True, **spec: Any) -> None:
        self.apply(topic_object(name, shards=shards, **spec))
        if waits:
            self.is_true("topicstorage", name, "Ready", 120)

    @property
    def clients(self) -> Clients:
        if self._clients is None:
            self._clients = Clients(self.kube, self.name, self.images.clients)
        return self._clients

    def stratalog(self, *words: str, pod: str = "") -> str:
        """The command line, in a storage node's pod."""
        asked = pod or sorted(name for name, one in self.pods().items() if _is_ready(one))[0]
        return self.kube.exec(asked, self.name, "stratalog", *words)

    def admin(self) -> str:
        """Admin ports of all storage nodes, as the command line takes them."""
        service = f"{CLUSTER}-nodes.{self.name}.svc:9644"
        return ",".join(f"{name}.{service}" for name in sorted(self.pods()))

    def meta(self) -> str:
        """All instances of the meta service, as the command line takes them: a storage node's pod names none to it."""
        service = f"{CLUSTER}-meta.{self.name}.svc:{META_PORT}"
        return ",".join(f"http://{name}.{service}" for name in sorted(self.pods("meta")))

    # --- the end -----------------------------------------------------------------------------------------------------
    def judge(self, without_traffic: str) -> None:
        """Judges all traffic that the test has not judged itself. `without_traffic`: why a test has no clients. Raises:
        AssertionError with what the judge found, or if a test without such a reason had no clients."""
        started = [] if self._clients is None else self._clients.started
        assert bool(started) != bool(without_traffic), (
            f"{len(started)} clients ran, and the test says of itself: {without_traffic or 'with clients'}"
        )
        for traffic in started:
            if not traffic.is_judged:
                traffic.judge()

    def check(self) -> None:
        """Raises AssertionError with everything that must not have happened."""
        wrong = self.observer.violations(
            restarts_are_expected=self.expects_restarts, outage_is_expected=self.expects_outage
        )
        wrong += list(self._unexpected_warnings())
        traceback = "" if self.expects_tracebacks else self._operator.traceback(60 * self.writes.minutes())
        wrong += [found for found in (self.writes.problem(), traceback) if found]
        assert not wrong, "\n".join(wrong)

    def figures(self) -> str:
        """Figures for the summary."""
        gaps = [] if self._clients is None else self._clients.longest_gaps_s
        gap = f"; longest gap {max(gaps):.1f} s" if gaps else ""
        said = "".join(f"; {note}" for note in self.notes)
        return f"{self.writes.count()} writes in {self.writes.minutes():.1f} min{gap}{said}"

    def _unexpected_warnings(self) -> Iterable[str]:
        if self.is_gone:
            return
        known = ORDINARY_WARNINGS | self.expected_warnings
        for event in self.list("events"):
            if event["type"] == "Warning" and event["reason"] not in known:
                of = event["involvedObject"]
                yield f"Warning {event['reason']} of {of['kind']} {of['name']}: {event['message']}"

    def remove(self, volumes: bool = True) -> None:
        """Clusters first, as a person would; then volumes that were kept for its sake, and the namespace. That all of
        it goes is looked at once, at the end of all tests: the next one need not wait for it."""
        self.observer.end()
        if self.is_gone:
            return
        kept = [
            one["spec"]["volumeName"] for one in self.list("persistentvolumeclaims") if one["spec"].get("volumeName")
        ]
        self.kube.run("delete", "scl,snp,ts,rom", "--all", "-n", self.name, "--timeout=120s", timeout=150)
        if volumes:
            give_back(self.kube, kept)
        self.kube.run("delete", "namespace", self.name, "--ignore-not-found", "--wait=false")


def give_back(kube: Kubernetes, names: Iterable[str]) -> None:
    """A volume that was kept goes back to the class that made it, with what is on it."""
    for name in names:
        if kube.get("persistentvolume", name) is not None:
            kube.run("patch", "pv", name, "-p", '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}')


def remove_volumes(kube: Kubernetes, names: Iterable[str]) -> None:
    """And they are gone when it returns."""
    give_back(kube, names)
    until(
        lambda: [name for name in names if kube.get("persistentvolume", name)], lambda left: not left, GONE_S,
        "volumes are gone",
    )  # fmt: skip


def pool_object(nodes: int, name: str = POOL, changes: Mapping[str, Any] | None = None) -> Object:
    (made,) = documents(EXAMPLES / "pool.yaml")
    made["metadata"]["name"] = name
    small = {"replicas": nodes, "storage": {"size": "256Mi"}, **(changes or {})}
    return changed(made, {f"spec.{path}": value for path, value in small.items()})


def topic_object(name: str, *, shards: int = 3, **spec: Any) -> Object:
    (made,) = documents(EXAMPLES / "topic.yaml")
    made["metadata"]["name"] = name
    return changed(made, {"spec": {**made["spec"], "topicName": name, "shards": shards, **spec}})


def changed(made: Mapping[str, Any], changes: Mapping[str, Any]) -> Object:
    """A copy with other values at dotted paths; None takes a field away."""
    copied: Object = copy.deepcopy(dict(made))
    for path, value in changes.items():
        *way, last = path.split(".")
        at = copied
        for word in way:
            at = at.setdefault(word, {})
        if value is None:
            at.pop(last, None)
        else:
            at[last] = copy.deepcopy(value)
    return copied


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
