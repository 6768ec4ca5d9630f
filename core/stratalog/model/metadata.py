"""The records of the meta service: what is asked of it, what it keeps beside topics, and what it tells of its changes.

Plain immutable data, shared by the shard table (a pure machine), the service around it and the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from stratalog.model.activity import Activity
from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.ids import SegmentKey
from stratalog.model.listeners import INTERNAL, Listener
from stratalog.model.mounts import Mount
from stratalog.model.quotas import EntityQuotas, QuotaEntity
from stratalog.model.retirement import Retirement
from stratalog.model.rights import Rule
from stratalog.model.scram import CredentialName, UserCredential
from stratalog.model.segment import RemotePart, Segment
from stratalog.model.topic import Shard, Topic


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A storage node. `storage_id` is made when the data directory is made: a new id means an empty disk."""

    node_id: Int32
    storage_id: str
    host: str
    port: int
    rack: str | None = None
    listeners: tuple[Listener, ...] = ()
    """Beside the internal one, which is `host` and `port`: where clients that come in by their names find it."""
    reads_bucket_by_default: bool = True
    """Topics that do not set `remote.read.policy` are read from the object store there: its own policy is not
    Disable."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a node: from one registration to the next. What an earlier life asks is `Fenced`."""

    node_id: Int32
    epoch: Count
    """Of the registration (`Registration.node_epoch`)."""


@dataclass(frozen=True, slots=True)
class Node:
    """A storage node as the meta service knows it: what it said of itself, its present life, and whether that lives."""

    node_id: Int32
    storage_id: str
    host: str
    port: int
    rack: str | None = None
    epoch: Count = 0
    is_alive: bool = True
    """False from the end of its lease until it is heard of again. Not alive is not gone: what it holds counts."""
    token: Count = 0
    """Of its present life, random: a node shows it when it follows another, so that no client passes for a node. Where
    nodes have certificates, other readers get 0."""
    has_room: bool = True
    """False while its disk is nearly full: new segments go elsewhere if they can."""
    retirement: Retirement | None = None
    """Its wish to leave, and how far that is."""
    scarcity: Count = 0
    """Of room on its disk, coarse and seldom changed: 0 (plenty) to 3 (`machines.copies.disk_room`)."""
    listeners: tuple[Listener, ...] = ()
    """See `NodeInfo.listeners`."""
    absences: Count = 0
    """How often it was lost: the number of its present absence, or of its last one while it is alive. What a person
    decides about a lost node names it, so that the decision does not hold for a later absence."""
    can_write: bool = True
    """False while its disk makes no progress (`machines.leading.disk_health`): others lead, if they can, what it
    led."""
    reads_bucket_by_default: bool = True
    """See `NodeInfo.reads_bucket_by_default`."""

    def address(self, listener: str) -> tuple[str, int] | None:
        """Host and port for clients of the listener with that name; None: it has none."""
        if listener == INTERNAL:
            return self.host, self.port
        return next(((one.host, one.port) for one in self.listeners if one.name == listener), None)

    @property
    def info(self) -> NodeInfo:
        place = (self.node_id, self.storage_id, self.host, self.port, self.rack)
        return NodeInfo(*place, self.listeners, self.reads_bucket_by_default)

    @property
    def is_leaving(self) -> bool:
        """Nothing new is placed on it: it is cordoned, or has left."""
        return self.retirement is not None and self.retirement.is_cordoned

    @property
    def takes_new(self) -> bool:
        """Its disk works, and has room for more segments."""
        return self.has_room and self.can_write

    @property
    def is_retired(self) -> bool:
        """It has left permanently."""
        return self.retirement is not None and self.retirement.step.is_released

    @property
    def life(self) -> Life:
        return Life(self.node_id, self.epoch)

    def without_token(self) -> Node:
        """What readers other than nodes get."""
        return replace(self, token=0)


@dataclass(frozen=True, slots=True)
class Registration:
    cluster_id: str
    node_epoch: Count
    """Grows with each registration; part of every object name this node life writes."""
    token: Count = 0
    """See `Node.token`."""
    is_continued: bool = True
    """The directory is the one in which the node's last life ran. False: it is a copy, or an older state: what it lacks
    may have been confirmed, and what it holds of sealed segments is to be looked at."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a node tells of its disk and of its object store; the service keeps it in memory alone."""

    disk_free_bytes: Count
    disk_total_bytes: Count
    has_store: bool
    store_away_ms: Count = 0
    """For so long its uploads have had no answer."""
    is_tiered_by_default: bool = True
    """Topics that do not set `remote.storage.enable` are uploaded."""
    activity: Activity | None = None
    """For the cluster UI."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node says that it lives."""

    life: Life
    is_last: bool = False
    """It stops in order, so no node waits for the end of its lease."""
    has_room: bool = True
    """For more segments, on its disk."""
    vitals: Vitals | None = None
    can_write: bool = True
    """See `Node.can_write`."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer to a heartbeat."""

    lease_ms: Count
    """How long the node counts as alive from now on; a quarter of it is a good time to the next heartbeat. 0: without
    an end, for the service keeps no leases."""
    version: Count
    """The newest one: a node whose watch is behind knows."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A write lock: `epoch` grows with each new holder; `expires_ms` by the meta service's clock.

    A holder's name must be its own and of one life (for a node: `life_name`), for asking again under it renews.
    """

    name: str
    holder: str
    epoch: Count
    expires_ms: Count
    earlier: tuple[str, ...] = ()
    """Who held it before, oldest first: the last few. What they left behind is this lock's, not a stranger's."""


def life_name(node_id: int, node_epoch: int) -> str:
    """The name under which one life of a node holds locks."""
    return f"node-{node_id}/{node_epoch}"


@dataclass(frozen=True, slots=True)
class PartCommit:
    """Move one segment's commit offset from `expected_commit_offset` to `part.end_offset` (compare-and-set).

    `part.base_offset` must equal `expected_commit_offset` (or the segment's base offset for its first part).
    """

    segment: SegmentKey
    expected_commit_offset: CountOrNone
    part: RemotePart


@dataclass(frozen=True, slots=True)
class PartReplacement:
    """Point committed parts at other objects that hold the same offsets (bundle compaction)."""

    segment: SegmentKey
    old: tuple[RemotePart, ...]
    new: tuple[RemotePart, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All metadata at one version. Immutable; the records are shared with the service when it is in this process."""

    version: int
    topics: tuple[Topic, ...]
    shards: tuple[Shard, ...]
    nodes: tuple[Node, ...]
    mounts: tuple[Mount, ...] = ()
    rules: tuple[Rule, ...] = ()
    credentials: tuple[UserCredential, ...] = ()
    """Only nodes get them: over HTTP a snapshot has none unless its reader asks for them."""
    quotas: tuple[EntityQuotas, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicChanged:
    topic: Topic


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    topic: Topic


@dataclass(frozen=True, slots=True)
class ShardChanged:
    """The log start moved (then `segments` is empty: they did not change by it), or the shard is new (then
    `segments` holds its first one)."""

    shard: Shard


@dataclass(frozen=True, slots=True)
class SegmentChanged:
    segment: Segment


@dataclass(frozen=True, slots=True)
class SegmentPurged:
    """Its files and objects are gone; so is its metadata."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class NodeChanged:
    node: Node


@dataclass(frozen=True, slots=True)
class MountChanged:
    mount: Mount


@dataclass(frozen=True, slots=True)
class MountEnded:
    name: str


@dataclass(frozen=True, slots=True)
class RuleCreated:
    rule: Rule


@dataclass(frozen=True, slots=True)
class RuleDeleted:
    rule: Rule


@dataclass(frozen=True, slots=True)
class CredentialChanged:
    """Only nodes get it, as `Snapshot.credentials`."""

    credential: UserCredential


@dataclass(frozen=True, slots=True)
class CredentialDeleted:
    name: CredentialName


@dataclass(frozen=True, slots=True)
class QuotasChanged:
    """All limits of an entity, as they are now."""

    quotas: EntityQuotas


@dataclass(frozen=True, slots=True)
class QuotasDeleted:
    """It has no limit any more."""

    entity: QuotaEntity


Change: TypeAlias = (
    TopicChanged
    | TopicDeleted
    | ShardChanged
    | SegmentChanged
    | SegmentPurged
    | NodeChanged
    | MountChanged
    | MountEnded
    | RuleCreated
    | RuleDeleted
    | CredentialChanged
    | CredentialDeleted
    | QuotasChanged
    | QuotasDeleted
)


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes of one transaction, or of several that became durable together, in order; `version` is the state's
    version after the last."""

    version: int
    changes: tuple[Change, ...]
