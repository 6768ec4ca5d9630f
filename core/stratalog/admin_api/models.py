"""What a node's admin API asks and says: the one source of its JSON, for the server, the client and the command line.

    GET    /v1/status                              NodeStatus
    GET    /v1/topics                              [TopicInfo]
    POST   /v1/topics            CreateTopic       TopicInfo
    GET    /v1/topics/{name}                       TopicDetail
    PATCH  /v1/topics/{name}     AlterTopic        TopicInfo
    DELETE /v1/topics/{name}
    GET    /v1/segments?topic=&shard=              [SegmentInfo]
    GET    /v1/locate?topic=&shard=&offset=        Location
    POST   /v1/seal              SealRequest       [SealedShard]
    POST   /v1/verify            VerifyRequest     VerifyLine per line, the last one VerifyDone

A request that changes something says `Content-Type: application/json`, with or without a body. Errors are an ErrorBody
with a status that says whose fault it is (see `admin_api.errors`). Unknown fields of a request are refused; unknown
fields of an answer are passed over, so that an older command line reads a newer node.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Tier(StrEnum):
    """Where bytes of a segment are."""

    LOCAL = "local"
    COLD = "cold"
    BOTH = "both"
    ELSEWHERE = "elsewhere"
    """Only other nodes have it."""
    NONE = "none"


class ErrorBody(_Answer):
    error: str
    """The kind, a class of `stratalog.model.errors`."""
    message: str


class TierBytes(_Answer):
    """Bytes of batches by where they are; what is in both tiers counts in both."""

    local: int = 0
    cold: int = 0


class StoppedShard(_Answer):
    """A shard that takes no writes until the node is started again."""

    topic: str
    shard: int
    cause: str
    """As the metric `stratalog_log_stopped_shards` names it."""
    reason: str
    next_step: str


class GivenUpGroups(_Answer):
    """Offsets of a shard of the group log that a person gave up: its groups began again without them."""

    shard: int
    base_offset: int
    end_offset: int


class FollowedSegment(_Answer):
    """A segment that another node leads, or that this node copies, and that is not complete here yet."""

    topic: str
    shard: int
    epoch: int
    life: str
    """What its copy does: following, copying, faulty, … (docs/replication.md section 4)."""
    lag_offsets: int
    lag_bytes: int
    """Exact of a sealed segment, else by the mean size of what is here."""
    asks: int | None
    """The node that is asked for the rest."""


class ReplicationStatus(_Answer):
    """What a node follows, and how far it is behind the ends that it knows of."""

    segments: int = 0
    behind: int = 0
    lag_offsets: int = 0
    lag_bytes: int = 0
    copies_due: int = 0
    """Sealed segments that it is to copy."""
    faulty_copies: int = 0
    """Copies whose content on the disk is unknown: they are in no ISR."""
    worst: list[FollowedSegment] = []
    """Those that lack most."""


class ColdReadStatus(_Answer):
    """How consumers read the object store through this node, since its start."""

    readers: int = 0
    """Positions from which such data is read now, as far as they are known."""
    held_bytes: int = 0
    """In memory now, for readers to come."""
    fetched_bytes: int = 0
    refetched_bytes: int = 0
    """Of these, what was here before and had to go for want of memory."""
    served_bytes: int = 0
    """Given to readers: more than was fetched where several of them read the same."""
    throttled: int = 0
    """Reads that waited for the limit of their topic, client or node."""


class KnownNode(_Answer):
    """A node of the cluster, as the one that is asked knows it."""

    node_id: int
    kafka_address: str
    rack: str | None
    is_alive: bool
    is_retired: bool = False
    """It has left permanently."""


class NodeStatus(_Answer):
    node_id: int
    cluster_id: str
    version: str
    started_ms: int
    now_ms: int
    kafka_address: str
    admin_address: str
    data_dir: str
    bucket: str | None
    bucket_trouble: str | None = None
    """Why nothing goes to the object store at present."""
    is_ready: bool
    waiting_for: dict[str, str] = {}
    topics: int
    shards: int
    stopped_shards: int = 0
    """Shards that take no writes. The node still counts as ready, because it serves the others."""
    stopped: list[StoppedShard] = []
    """The first of them, by topic and shard."""
    damaged: list[str] = []
    """Ended segments whose only copy cannot be sealed, and segments of which the object store has other bytes than the
    metadata mean: what is wrong, and what to do next."""
    groups_given_up: list[GivenUpGroups] = []
    """Since the node was started."""
    segments: dict[str, int]
    """Count by state."""
    bytes: TierBytes
    upload_lag_bytes: int
    """Committed bytes of topics with a cold tier that are not yet in the object store."""
    upload_lag_shards: int
    replication: ReplicationStatus = ReplicationStatus()
    cold_reads: ColdReadStatus | None = None
    """None: the node has no object store."""
    disk_total_bytes: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    resident_bytes: int
    loop_blocks: int
    """Times the event loop was blocked (telemetry.watchdog)."""
    nodes: list[KnownNode] = []
    """All of the cluster, by id, this one too."""


class TopicInfo(_Answer):
    name: str
    topic_id: str
    shards: int
    replication_factor: int
    is_internal: bool
    created_ms: int
    settings: dict[str, str]
    """What was set on the topic itself."""
    segments: int
    bytes: TierBytes


class SettingInForce(_Answer):
    key: str
    value: str
    source: Literal["topic", "process", "default"]
    description: str


class ShardInfo(_Answer):
    shard: int
    log_start_offset: int
    high_watermark: int | None
    """Where readers end; null where another node leads, which knows."""
    last_stable_offset: int | None
    commit_offset: int
    """Everything below it is in the object store; -1 when nothing is."""
    leader: int | None
    isr: list[int]
    epoch: int
    segments: int
    bytes: TierBytes


class TopicDetail(_Answer):
    topic: TopicInfo
    shards: list[ShardInfo]
    """As `node_id` knows them: where one ends, its leader knows."""
    settings: list[SettingInForce]
    node_id: int


class CreateTopic(_Request):
    name: Annotated[str, Field(min_length=1, max_length=249)]
    shards: Annotated[int | None, Field(ge=1)] = None
    replication_factor: Annotated[int | None, Field(ge=1)] = None
    settings: dict[str, str] = {}
    validate_only: bool = False


class AlterTopic(_Request):
    set: dict[str, str] = {}
    unset: list[str] = []
    shards: Annotated[int | None, Field(ge=1)] = None


class SegmentInfo(_Answer):
    topic: str
    shard: int
    epoch: int
    state: str
    base_offset: int
    end_offset: int
    """One past the last offset; of the active segment what is committed so far."""
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    tier: Tier
    remote_state: str
    commit_offset: int
    leader: int | None
    replicas: list[int] = []
    isr: list[int] = []
    """Of a segment that is not sealed: the nodes that have all acknowledged data."""
    local_nodes: list[int]
    """Of a sealed segment: the nodes that have proven their copy."""
    digest: str | None
    places: list[str]
    """The local file, the manifest, or the objects of its committed parts."""
    more_places: int = 0
    """Parts whose objects are left out of `places`."""
    node_id: int = -1
    """Who says so; tier and places are as they are there."""


class Location(_Answer):
    """Where one offset is, and why a read would go there."""

    topic: str
    shard: int
    offset: int
    is_readable: bool
    tier: Tier
    state: str | None = None
    epoch: int | None = None
    segment_base_offset: int | None = None
    place: str | None = None
    """The file or the object a read would use."""
    position: int | None = None
    """Where the batch begins in that file or object, in bytes."""
    batch_base_offset: int | None = None
    batch_end_offset: int | None = None
    batch_size_bytes: int | None = None
    record_count: int | None = None
    also_at: list[str] = []
    why: list[str]
    node_id: int = -1
    """Who says so."""
    holders: list[int] = []
    """Nodes that have a copy of the segment."""
    leader: int | None = None
    """The shard's leader. It answers reads and knows where the log ends."""


class SealRequest(_Request):
    topic: str
    shard: Annotated[int | None, Field(ge=0)] = None


class SealedShard(_Answer):
    shard: int
    epoch: int
    base_offset: int
    end_offset: int
    """Where the segment ends and the next one begins."""
    outcome: Literal["sealed", "sealing", "empty", "elsewhere"]
    """`empty`: the active segment holds nothing, so there was nothing to seal. `elsewhere`: another node leads the
    shard, and has to be asked."""
    leader: int | None = None


class VerifyRequest(_Request):
    topic: str | None = None
    shard: Annotated[int | None, Field(ge=0)] = None


class Finding(_Answer):
    """Something that is wrong, where, and what to do. A hint is about costs only."""

    severity: Literal["error", "warning", "hint"]
    place: str
    what: str
    next_step: str


class VerifyStart(_Answer):
    kind: Literal["start"] = "start"
    segments: int
    bytes: int


class VerifySegment(_Answer):
    kind: Literal["segment"] = "segment"
    topic: str
    shard: int
    epoch: int
    base_offset: int
    end_offset: int
    state: str
    local_bytes: int
    """Bytes of batches checked on disk."""
    cold_bytes: int
    """Bytes of batches checked in the object store."""
    findings: list[Finding]


class VerifyDone(_Answer):
    kind: Literal["done"] = "done"
    segments: int
    local_bytes: int
    cold_bytes: int
    errors: int
    warnings: int
    node_id: int = -1
    """Who checked: its own copies, and what is in the object store."""
    other_holders: list[int] = []
    """Other nodes that have copies of what was to be checked: those were not."""


VerifyLine: TypeAlias = Annotated[VerifyStart | VerifySegment | VerifyDone, Field(discriminator="kind")]

_VERIFY_LINE: TypeAdapter[VerifyStart | VerifySegment | VerifyDone] = TypeAdapter(VerifyLine)


def read_verify_line(line: bytes | str) -> VerifyStart | VerifySegment | VerifyDone:
    return _VERIFY_LINE.validate_json(line)
