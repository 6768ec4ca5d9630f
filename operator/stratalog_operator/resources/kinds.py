"""The kinds: their models, short names and columns. One entry here is one definition in `crds/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog_operator.resources.archive_job import ArchiveJobSpec, ArchiveJobStatus
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus
from stratalog_operator.resources.schema import SHORT_NAME, Part, rule
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from stratalog_operator.resources.user import StorageUserSpec, StorageUserStatus


@dataclass(frozen=True, slots=True)
class Column:
    """Of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    is_wide: bool = False
    """Shown by `-o wide` alone."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    plural: str
    short_name: str
    text: str
    """For `kubectl explain`."""
    spec: type[Part]
    status: type[Part]
    columns: tuple[Column, ...]
    name_rules: tuple[dict[str, str], ...] = ()
    """At the root, where metadata.name can be seen."""
    has_scale: bool = False

    @property
    def singular(self) -> str:
        return self.name.lower()


def _condition(name: str, kind: str) -> Column:
    return Column(name, f'.status.conditions[?(@.type=="{kind}")].status')


def _message(kind: str) -> Column:
    return Column("Message", f'.status.conditions[?(@.type=="{kind}")].message', is_wide=True)


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
_READY: Final = _condition("Ready", "Ready")


def _short(kind: str) -> dict[str, str]:
    return rule(
        f"size(self.metadata.name) <= {SHORT_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"metadata.name of a {kind} must be a DNS label of at most {SHORT_NAME} characters that begins with a letter: "
        "names of nodes and labels are derived from it",
    )


_ID_TEXT: Final = "self.metadata.name.substring(size(self.spec.clusterRef) + size(self.spec.poolRef) + 2)"


CLUSTER: Final = Kind(
    "StorageCluster",
    "storageclusters",
    "scl",
    "A Stratalog cluster: tiered message storage that speaks the Kafka protocol.",
    StorageClusterSpec,
    StorageClusterStatus,
    (
        _READY,
        Column("Nodes", ".status.nodes.ready", "integer"),
        Column("Desired", ".status.nodes.desired", "integer"),
        Column("Image", ".status.image"),
        _condition("Cold", "ColdTierAvailable"),
        _AGE,
        _message("Ready"),
    ),
    (_short("StorageCluster"),),
)
POOL: Final = Kind(
    "StorageNodePool",
    "storagenodepools",
    "snp",
    "A group of identical storage nodes; kubectl scale changes their number.",
    StorageNodePoolSpec,
    StorageNodePoolStatus,
    (
        _READY,
        Column("Nodes", ".status.replicas", "integer"),
        Column("Desired", ".spec.replicas", "integer"),
        Column("Zones", ".spec.zones"),
        _AGE,
        _message("Ready"),
    ),
    (
        _short("StorageNodePool"),
        rule(
            "!self.metadata.name.matches('^(.*-)?(etcd|meta)$')",
            "metadata.name of a StorageNodePool cannot be etcd or meta, nor end with -etcd or -meta: volume claims and "
            "pods of nodes would have the names of those of etcd and the meta service",
        ),
    ),
    has_scale=True,
)
NODE: Final = Kind(
    "StorageNode",
    "storagenodes",
    "snode",
    "A storage node, created by the operator, and the record of its retirement.",
    StorageNodeSpec,
    StorageNodeStatus,
    (
        _READY,
        Column("Pool", ".spec.poolRef"),
        Column("Id", ".spec.nodeId", "integer"),
        Column("Zone", ".spec.zone"),
        Column("Disk%", ".status.data.diskUsedPercent", "integer"),
        Column("Step", ".status.retirement.step"),
        Column("Remaining", ".status.retirement.remainingBytes", "integer"),
        _AGE,
        Column("Why", ".status.retirement.message", is_wide=True),
    ),
    (
        rule(
            # Not string(nodeId): the estimate of its length has no bound.
            f"self.metadata.name.startsWith(self.spec.clusterRef + '-' + self.spec.poolRef + '-') && {_ID_TEXT}"
            f".matches('^(0|[1-9][0-9]*)$') && int({_ID_TEXT}) == self.spec.nodeId",
            "metadata.name of a StorageNode must be CLUSTER-POOL-ID: the operator creates them; scale the pool instead",
        ),
    ),
)
TOPIC: Final = Kind(
    "TopicStorage",
    "topicstorages",
    "ts",
    "A topic of a Stratalog cluster: its shards, replicas, tiers and retention.",
    TopicStorageSpec,
    TopicStorageStatus,
    (
        _READY,
        Column("Topic", ".spec.topicName", is_wide=True),
        Column("Shards", ".status.observed.shards", "integer"),
        Column("RF", ".status.observed.replicationFactor", "integer"),
        Column("Policy", ".status.observed.policy"),
        Column("Hot", ".status.tiering.hotBytes", "integer"),
        Column("Cold", ".status.tiering.coldBytes", "integer"),
        Column("Lag", ".status.tiering.commitLagBytes", "integer"),
        _AGE,
        _message("Ready"),
    ),
)
USER: Final = Kind(
    "StorageUser",
    "storageusers",
    "su",
    "A client of a Stratalog cluster: how it logs in, and what it may do.",
    StorageUserSpec,
    StorageUserStatus,
    (
        _READY,
        Column("Auth", ".spec.authentication.type"),
        Column("Rules", ".status.rules", "integer"),
        Column("Rotates", ".status.rotatesAt"),
        _AGE,
        Column("Principal", ".status.principal", is_wide=True),
        _message("Ready"),
    ),
)
MOUNT: Final = Kind(
    "ReadOnlyMount",
    "readonlymounts",
    "rom",
    "Sealed data that is served read-only: of a retired node, of topics in a time range, or of a snapshot.",
    ReadOnlyMountSpec,
    ReadOnlyMountStatus,
    (
        _READY,
        Column("Node", ".spec.source.retiredNode.nodeId", "integer"),
        Column("Topics", ".spec.source.topics.names"),
        Column("Snapshot", ".spec.source.snapshot.name"),
        Column("Holder", ".status.holder"),
        Column("Segments", ".status.segments", "integer"),
        Column("Expires", ".status.expiresAt"),
        _AGE,
        _message("Ready"),
    ),
)

ARCHIVE_JOB: Final = Kind(
    "ArchiveJob",
    "archivejobs",
    "aj",
    "Work on the cold data of a cluster, on a schedule or on request: archive, compact, verify, export.",
    ArchiveJobSpec,
    ArchiveJobStatus,
    (
        _READY,
        Column("Action", ".spec.action"),
        Column("Schedule", ".spec.schedule"),
        Column("Active", ".status.activeRuns", "integer"),
        Column("Rows", ".status.lastRun.rows", "integer"),
        Column("Lag", ".status.lagRecords", "integer"),
        Column("Success", ".status.lastSuccessAt", "date"),
        Column("Next", ".status.nextRunAt"),
        _AGE,
        Column("Bytes", ".status.lastRun.bytes", "integer", is_wide=True),
        _message("Ready"),
    ),
    (
        rule(
            "size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name of an ArchiveJob must be a DNS label of at most 63 characters: its Jobs and pods have it as "
            "a label",
        ),
    ),
)

KINDS: Final = (CLUSTER, POOL, NODE, TOPIC, USER, MOUNT, ARCHIVE_JOB)
