"""All that a pass rests on, as it was read. What could not be read is None or not there *and said so*: never empty.

Plain immutable data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Final, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node
from stratalog.model.mounts import Mount
from stratalog.model.quotas import QuotaLimits
from stratalog.model.rights import Rule
from stratalog.model.topic import Topic
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog.model.views.rights_view import CredentialView
from stratalog_operator.plan.ownership import Fields
from stratalog_operator.resources.archive_job import ArchiveJobSpec, ArchiveJobStatus
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.conditions import Conditions
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, FINALIZER
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus
from stratalog_operator.resources.schema import Part
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from stratalog_operator.resources.user import StorageUserSpec, StorageUserStatus

HalfGuard: TypeAlias = Literal["", "finalizer", "volume"]
SpecT = TypeVar("SpecT", bound=Part)
StatusT = TypeVar("StatusT", bound=Part)


@dataclass(frozen=True, slots=True)
class Seen(Generic[SpecT, StatusT]):
    """An object of one of our kinds."""

    name: str
    uid: str
    spec: SpecT
    status: StatusT
    generation: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: frozenset[str] = frozenset()
    is_deleting: bool = False
    created: str = ""
    """RFC 3339, as all times here."""
    deleted: str = ""
    """Since when it is being deleted."""
    resource_version: str = ""
    """Another one after each change of the object, its status included."""


SeenCluster: TypeAlias = Seen[StorageClusterSpec, StorageClusterStatus]
SeenPool: TypeAlias = Seen[StorageNodePoolSpec, StorageNodePoolStatus]
SeenNode: TypeAlias = Seen[StorageNodeSpec, StorageNodeStatus]
SeenMount: TypeAlias = Seen[ReadOnlyMountSpec, ReadOnlyMountStatus]
SeenTopic: TypeAlias = Seen[TopicStorageSpec, TopicStorageStatus]
SeenArchiveJob: TypeAlias = Seen[ArchiveJobSpec, ArchiveJobStatus]
SeenUser: TypeAlias = Seen[StorageUserSpec, StorageUserStatus]


@dataclass(frozen=True, slots=True)
class Unread:
    """An object of one of our kinds that only the definition of another version accepts."""

    kind: str
    name: str
    uid: str
    why: str
    """The field, and what this version refuses about it."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: frozenset[str] = frozenset()
    is_deleting: bool = False
    created: str = ""
    topic_name: str = ""
    """Of a TopicStorage."""
    user_name: str = ""
    """Of a StorageUser that names one."""
    generation: int = 1
    conditions: Conditions | None = ()
    """Of its status. None: this version cannot read them."""

    @property
    def is_let_go(self) -> bool:
        """A person deleted it and released it by the annotation."""
        is_released = self.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true"
        return self.is_deleting and FINALIZER in self.finalizers and is_released

    @property
    def words(self) -> str:
        return (
            f"{self.kind} {self.name} cannot be read by this version of the operator: {self.why}; correct the object, "
            "or run the version whose definition accepts it"
        )


@dataclass(frozen=True, slots=True)
class SeenPod:
    name: str
    uid: str
    pod_hash: str
    is_ready: bool
    is_failing: bool = False
    """It crashes again and again, or no machine takes it: there is nothing to lose by stopping it."""
    is_leaving: bool = False
    """It is being stopped already."""
    machine: str = ""
    machine_address: str = ""
    """Of the machine, for clients outside of Kubernetes."""
    not_ready_seconds: int = 0
    address: str = ""
    """Of the pod itself; empty: it has none yet."""
    part: str = ""
    """What it is for, by its label."""


@dataclass(frozen=True, slots=True)
class SeenSet:
    """A StatefulSet."""

    name: str
    uid: str
    replicas: int
    pool: str = ""
    node_id: int | None = None
    """Of a storage node's; None for every other one."""


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """The volume claim of a storage node, or of a member of etcd: then `node_id` is the member's number."""

    name: str
    uid: str
    pool: str
    node_id: int
    is_bound: bool = False
    is_guarded: bool = False
    """It has our finalizer, and its volume is kept when it goes."""
    half_guard: HalfGuard = ""
    """The half of the guard that is there while `is_guarded` is False. An operator died in between, or someone took the
    other half."""
    is_leaving: bool = False
    """It is being deleted."""
    is_released: bool = False
    """It was kept on purpose after its node had left; no node uses it."""
    storage_id: str = ""
    """Of the disk that a node registered with while it used the claim."""
    cluster_id: str = ""
    zone: str | None = None
    created: str = ""
    volume: str = ""
    """Name of its PersistentVolume."""
    member_id: str = ""
    """Of the member of etcd whose log is on it."""
    release_word: str = ""
    """What a person wrote into the annotation that releases it."""

    @property
    def is_held(self) -> bool:
        """It has our finalizer: its deletion waits for the operator."""
        return self.is_guarded or self.half_guard == "finalizer"

    @property
    def is_safe(self) -> bool:
        """It is guarded, as far as Kubernetes allows: what is being deleted gets no finalizer, and its volume is
        kept."""
        return self.is_guarded or (self.is_leaving and self.half_guard == "volume")


@dataclass(frozen=True, slots=True)
class SeenEtcdMember:
    """As the members themselves list it."""

    number: int | None
    """Of its pod; None: none of this cluster's pods has its address."""
    member_id: str
    is_started: bool
    """It has told the others its name: it has a log of its own."""
    is_learner: bool = False
    """It follows, and has no vote yet."""
    is_healthy: bool = False
    """Under its id it answers a read that most members confirm."""
    version: str = ""
    """That it answered; empty where it did not answer."""
    peer_url: str = ""
    """Under which the other members reach it; empty where `number` is None."""


@dataclass(frozen=True, slots=True)
class SeenEtcd:
    """What the etcd that the operator runs answered."""

    members: tuple[SeenEtcdMember, ...]

    def member(self, number: int) -> SeenEtcdMember | None:
        return next((one for one in self.members if one.number == number), None)


@dataclass(frozen=True, slots=True)
class TopicSums:
    """Of a topic's segments, in bytes; those that are being written are known to their nodes alone."""

    hot_bytes: int = 0
    cold_bytes: int = 0
    unsent_bytes: int = 0
    """Of sealed segments, what is not in the object store."""
    oldest_offset: int = 0
    """The smallest of its shards' first offsets."""
    trouble: str = ""
    """Why some shard does not take writes, in words."""


@dataclass(frozen=True, slots=True)
class SeenUserCertificate:
    """The certificate in the Secret of a StorageUser."""

    issuer: str
    """Fingerprint of the authority of clients by which it was issued; empty: by another one."""
    subject: str
    not_after: str
    not_before: str = ""


@dataclass(frozen=True, slots=True)
class SeenUserSecret:
    """The Secret of a StorageUser as it was read last, without what it keeps secret."""

    uid: str = ""
    """Empty: there is none."""
    version: str = ""
    """Its resourceVersion."""
    is_ours: bool = False
    """It belongs to this StorageUser."""
    has_password: bool = False
    is_whole: bool = False
    """Its other texts follow from the password."""
    rotated_at: str = ""
    rotated_for: str = ""
    """The word for which its password was generated."""
    is_given: bool = True
    """Of a user whose password is given (`authentication.password`): it has that one."""
    given_trouble: str = ""
    """Why that one cannot be used, in words."""
    certificate: SeenUserCertificate | None = None
    """None: it has none that can be read, with its key."""


@dataclass(frozen=True, slots=True)
class SeenRights:
    """The rules, SCRAM users and quotas of a cluster, as the meta service keeps them."""

    version: int
    rules: Mapping[str, frozenset[Rule]] = field(default_factory=dict)
    """By principal."""
    credentials: Mapping[str, tuple[CredentialView, ...]] = field(default_factory=dict)
    """By the name of the user."""
    quotas: Mapping[str, QuotaLimits] | None = field(default_factory=dict)
    """By the name of the user; only what is of a user and no client id. None: the service is older than this operator,
    and does not say."""


@dataclass(frozen=True, slots=True)
class SeenIssuer:
    """A certificate of an authority."""

    fingerprint: str
    not_after: str
    added_at: str = ""
    """Since when it has been trusted, of the next one."""
    pem: str = field(default="", repr=False)
    not_before: str = ""


@dataclass(frozen=True, slots=True)
class SeenAuthority:
    """An authority of the operator's own, without the key."""

    version: str = ""
    """resourceVersion of the Secret; empty: there is none."""
    issuer: SeenIssuer | None = None
    next_issuer: SeenIssuer | None = None
    is_next_damaged: bool = False
    """Something is there in the place of the next one, and cannot be read or has another key."""
    former: int = 0
    """Former ones that have not expired."""
    rotated_for: str = ""
    """The word for which the newest authority was made."""
    trouble: str = ""
    """Why the authority of clients, or of etcd, cannot be used, in words. (Why that of the cluster cannot:
    `SeenCertificates`.)"""


@dataclass(frozen=True, slots=True)
class SeenLeaf:
    """The certificate of a storage node."""

    issuer: str
    """Fingerprint of the authority by which it was issued; empty: by none that is known, or it cannot be read."""
    not_after: str
    names: frozenset[str]
    not_before: str = ""


@dataclass(frozen=True, slots=True)
class SeenCertificates:
    """What the Secrets of the operator's own authorities hold, without the keys."""

    authority: SeenAuthority = SeenAuthority()
    """Of the cluster."""
    leaves_version: str = ""
    """resourceVersion of the Secret; empty: there is none. So is the next one."""
    trust_version: str = ""
    trouble: str = ""
    """Why they cannot be used, in words."""
    clients: SeenAuthority | None = None
    """Of clients. None: this cluster has none."""
    etcd: SeenAuthority | None = None
    """Of etcd and its clients. None: this cluster has none."""
    leaves: Mapping[str, SeenLeaf] = field(default_factory=dict)
    """By the id of the node."""
    is_published: bool = False
    """The Secrets of nodes and clients have all authorities that are to be trusted now, and so have nodes those of
    clients, and meta service and etcd those of etcd."""


MAX_RANGES: Final = 100
"""In the status of a mount."""


@dataclass(frozen=True, slots=True)
class MountSums:
    """Sums of a user's mount, or of a retired node's volume."""

    segments: int = 0
    bytes: int = 0
    ranges: tuple[str, ...] = ()
    """The first hundred TOPIC/SHARD BASE..END of a retired node's volume. A user's mount lists its own ranges."""


@dataclass(frozen=True, slots=True)
class NodeSums:
    segments: int = 0
    """That list it as a holder."""
    leaders: int = 0
    disk_used_percent: int | None = None
    """None: it has not told (yet, to this instance of the service). Unknown is not empty."""


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A Job of an ArchiveJob."""

    name: str
    uid: str
    started_at: str = ""
    finished_at: str = ""
    result: Literal["", "Succeeded", "Failed"] = ""
    """Empty: it is under way."""
    reason: str = ""
    """Why it failed, as Kubernetes says it, as one word."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class SeenReport:
    """What the last pod of a Job left."""

    text: str
    """Its termination message: a claim of the pod."""
    reason: str = ""
    """Why its container ended, as Kubernetes says it; empty where that is not out of the ordinary."""


@dataclass(frozen=True, slots=True)
class SeenRebalance:
    """How new writes are spread over the nodes."""

    segments: tuple[SegmentKey, ...]
    """Those whose shards would continue elsewhere if they ended now."""
    is_even: bool
    pending_shards: int
    """Segments that were asked to end and have not ended yet."""


@dataclass(frozen=True, slots=True)
class SeenMeta:
    """What the meta service answered."""

    cluster_id: str
    nodes: tuple[Node, ...]
    retirements: tuple[RetirementStatus, ...] = ()
    mounts: tuple[Mount, ...] = ()
    unwell: tuple[str, ...] = ()
    """What forbids to stop a pod that serves, in words: shards without a leader, or with too few in sync. Those that
    could never have enough are left out."""
    unwell_count: int = 0
    """In all, where `unwell` has the first of them."""
    thin: tuple[str, ...] = ()
    """What is under-replicated, in words: it takes writes, and has fewer replicas or copies than its topic asks for."""
    thin_count: int = 0
    behind: frozenset[int] = frozenset()
    """Nodes that some shard does not count in sync."""
    store_away_seconds: int | None = None
    """For so long some node has had no answer of the object store; None: no node has said anything yet."""
    topics: tuple[Topic, ...] = ()
    topic_sums: Mapping[UUID, TopicSums] = field(default_factory=dict)
    node_sums: Mapping[int, NodeSums] = field(default_factory=dict)
    mount_sums: Mapping[str, MountSums] = field(default_factory=dict)
    asked_rolls: Mapping[str, int] = field(default_factory=dict)
    """By topic: segments that were asked to end and have not ended yet."""
    rights: SeenRights | None = None
    """None: the service is older than this operator, and cannot be asked for them."""
    _topics: Mapping[str, Topic] = field(init=False, repr=False, compare=False)
    """By name: each TopicStorage asks for its own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_topics", {topic.name: topic for topic in self.topics})

    def node(self, node_id: int) -> Node | None:
        return next((node for node in self.nodes if node.node_id == node_id), None)

    def retirement(self, node_id: int) -> RetirementStatus | None:
        return next((one for one in self.retirements if one.node_id == node_id), None)

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def mount(self, name: str) -> Mount | None:
        return next((mount for mount in self.mounts if mount.name == name), None)

    def mount_of(self, node_id: int) -> Mount | None:
        return next((mount for mount in self.mounts if mount.node_id == node_id), None)


@dataclass(frozen=True, slots=True)
class SeenRoles:
    """The Secret with hashes of tokens that the pods of a cluster with certificates mount."""

    texts: Mapping[str, str] = field(repr=False)
    """By its keys: what it is to have."""
    version: str
    """Empty: it is not there."""
    is_published: bool
    """It has what it is to have, as far as that is known."""
    trouble: str = ""
    """Why a Secret with tokens cannot be used, in words."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Of one cluster."""

    namespace: str
    now: str
    """RFC 3339, in UTC."""
    cluster: SeenCluster
    pools: tuple[SeenPool, ...] = ()
    nodes: tuple[SeenNode, ...] = ()
    mounts: tuple[SeenMount, ...] = ()
    hashes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Of what is there, by kind and name: what was wanted of it when it was applied."""
    sets: tuple[SeenSet, ...] = ()
    pods: tuple[SeenPod, ...] = ()
    claims: tuple[SeenClaim, ...] = ()
    meta: SeenMeta | None = None
    """None: it did not answer. Unknown is not empty."""
    has_token: bool = False
    is_namespace_leaving: bool = False
    operator_version: str = ""
    """Of who looks."""
    operator_namespace: str = ""
    """Where its pods are; empty: not known."""
    clock_ahead_seconds: int = 0
    """Of who looks: how far its clock is ahead of that of the Kubernetes API server."""
    topics: tuple[SeenTopic, ...] = ()
    uids: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Of what is there, by kind and name."""
    fields: Mapping[tuple[str, str], Fields] = field(default_factory=dict)
    """Of what is there, by kind and name: what of it is ours still. Not there: all of it, as far as is known."""
    etcd_claims: tuple[SeenClaim, ...] = ()
    """Of the members of the etcd that the operator runs."""
    etcd: SeenEtcd | None = None
    """None: it was not asked, because nothing is to be done, or most members did not answer."""
    token_trouble: str = ""
    """Why the token of the cluster cannot be used, in words. The meta service is not asked then, unless the operator
    has a certificate for it."""
    users: tuple[SeenUser, ...] = ()
    user_secrets: Mapping[str, SeenUserSecret] = field(default_factory=dict)
    """By the StorageUser. Not there: not read yet."""
    settled_users: frozenset[str] = frozenset()
    """Of these nothing has changed since a pass found nothing to do about them."""
    certificates: SeenCertificates | None = None
    """None: they are not the operator's."""
    proven_pods: frozenset[str] = frozenset()
    """UIDs of pods that were just seen to show a certificate of the authority that issues now."""
    roles: SeenRoles | None = None
    """None: the pods mount the tokens themselves."""
    rebalance: SeenRebalance | None = None
    """None: it was not asked for, because nothing is to be done, or the meta service did not answer."""
    archive_jobs: tuple[SeenArchiveJob, ...] = ()
    runs: Mapping[str, tuple[SeenRun, ...]] = field(default_factory=dict)
    """By the ArchiveJob."""
    reports: Mapping[str, SeenReport | None] = field(default_factory=dict)
    """By the UID of a Job that ended; None: it has no pod any more. Not there: not read yet."""
    scheduled: frozenset[str] = frozenset()
    """ArchiveJobs that have a CronJob."""
    zones: Mapping[str, tzinfo] = field(default_factory=dict)
    """Time zones of ArchiveJobs by name, as far as this machine knows them."""
    unread: tuple[Unread, ...] = ()
    """Objects of the cluster that this version cannot read. They are in none of the lists above."""

    def set_named(self, name: str) -> SeenSet | None:
        return next((one for one in self.sets if one.name == name), None)

    def pod_named(self, name: str) -> SeenPod | None:
        return next((one for one in self.pods if one.name == name), None)

    def claim_named(self, name: str) -> SeenClaim | None:
        return next((one for one in self.claims if one.name == name), None)

    def pool_named(self, name: str) -> SeenPool | None:
        return next((one for one in self.pools if one.name == name), None)

    def sets_without_node(self) -> list[SeenSet]:
        """StatefulSets of storage nodes whose StorageNode is gone."""
        known = {node.spec.node_id for node in self.nodes}
        return [one for one in self.sets if one.node_id is not None and one.node_id not in known]
