"""The records of the meta service as JSON: pydantic models, one per record, the one source of the HTTP schema.

`XJson.model_validate(record)` reads a record's attributes, `.to_record()` makes the record again. Bytes travel as
base64, ids as text. Unknown fields of a record are ignored, so an older reader understands a newer writer; unknown
fields of a request are refused (`api.bodies`).

Importing this costs tens of milliseconds (schemas are built): only what speaks HTTP imports it.
Cost: 5 us per segment to JSON, 5 us back.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Lock, NodeInfo, PartCommit, PartReplacement, Registration
from stratalog.model.parts import PartList
from stratalog.model.producers import BatchMemo, ProducerSnapshot
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, SealRecord, Segment, SegmentState
from stratalog.model.topic import Shard, Topic

# Bounds are described here and kept by the shard table, so that both ways to the service refuse alike.
Int32 = Annotated[int, Field(json_schema_extra={"minimum": 0, "maximum": 2**31 - 1})]
Count = Annotated[int, Field(json_schema_extra={"minimum": 0, "maximum": 2**63 - 1})]
"""An offset, a size, a count, a time."""
CountOrNone = Annotated[int, Field(json_schema_extra={"minimum": -1, "maximum": 2**63 - 1})]
"""The same, or -1 for none yet."""


class Json(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True, ser_json_bytes="base64", val_json_bytes="base64")


class ShardKeyJson(Json):
    topic_id: UUID
    shard: Int32

    def to_record(self) -> ShardKey:
        return ShardKey(self.topic_id, self.shard)


class SegmentKeyJson(Json):
    topic_id: UUID
    shard: Int32
    epoch: Int32
    base_offset: Count

    def to_record(self) -> SegmentKey:
        return SegmentKey(self.topic_id, self.shard, self.epoch, self.base_offset)


class BatchMemoJson(Json):
    first_sequence: int
    last_sequence: int
    base_offset: Count
    timestamp_ms: int

    def to_record(self) -> BatchMemo:
        return BatchMemo(self.first_sequence, self.last_sequence, self.base_offset, self.timestamp_ms)


class ProducerJson(Json):
    producer_id: int
    producer_epoch: int
    last_append_ms: int
    batches: tuple[BatchMemoJson, ...]

    def to_record(self) -> ProducerSnapshot:
        batches = tuple(memo.to_record() for memo in self.batches)
        return ProducerSnapshot(self.producer_id, self.producer_epoch, self.last_append_ms, batches)


class SealRecordJson(Json):
    """The one truth about a sealed segment, written once."""

    epoch: Int32
    base_offset: Count
    end_offset: Count
    first_timestamp_ms: int
    max_timestamp_ms: int
    size_bytes: Count
    digest: bytes
    producers: tuple[ProducerJson, ...]
    replicas: tuple[Int32, ...]
    sealed_ms: Count

    def to_record(self) -> SealRecord:
        return SealRecord(
            self.epoch,
            self.base_offset,
            self.end_offset,
            self.first_timestamp_ms,
            self.max_timestamp_ms,
            self.size_bytes,
            self.digest,
            tuple(producer.to_record() for producer in self.producers),
            self.replicas,
            self.sealed_ms,
        )


class RemotePartJson(Json):
    """A piece of an object that holds offsets of one segment."""

    object_key: str
    position: Count
    size_bytes: Count
    base_offset: Count
    end_offset: Count

    def to_record(self) -> RemotePart:
        return RemotePart(self.object_key, self.position, self.size_bytes, self.base_offset, self.end_offset)


class RemoteCopyJson(Json):
    state: RemoteState
    commit_offset: CountOrNone
    parts: tuple[RemotePartJson, ...]
    parts_kept: Count = 0
    """In a watch only: so many parts, sent before, come before `parts`."""
    manifest_key: str | None
    manifest_digest: bytes | None
    size_bytes: Count

    def to_record(self, kept: PartList | None = None) -> RemoteCopy:
        parts = kept or PartList()
        for part in self.parts:
            parts = parts.appended(part.to_record())
        return RemoteCopy(
            self.state, self.commit_offset, parts or (), self.manifest_key, self.manifest_digest, self.size_bytes
        )


class SegmentJson(Json):
    key: SegmentKeyJson
    state: SegmentState
    leader: Int32 | None
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    isr_version: Count
    opened_ms: Count
    end_offset: Count | None
    seal: SealRecordJson | None
    local_nodes: tuple[Int32, ...]
    remote: RemoteCopyJson
    deleted_ms: Count | None
    fence: Count

    def to_record(self, kept: PartList | None = None) -> Segment:
        return Segment(
            self.key.to_record(),
            self.state,
            self.leader,
            self.replicas,
            self.isr,
            self.isr_version,
            self.opened_ms,
            self.end_offset,
            None if self.seal is None else self.seal.to_record(),
            self.local_nodes,
            self.remote.to_record(kept),
            self.deleted_ms,
            self.fence,
        )


class TopicJson(Json):
    name: str
    topic_id: UUID
    shard_count: Int32
    replication_factor: Int32
    settings: dict[str, str]
    created_ms: Count
    is_internal: bool

    def to_record(self) -> Topic:
        return Topic(
            self.name,
            self.topic_id,
            self.shard_count,
            self.replication_factor,
            self.settings,
            self.created_ms,
            self.is_internal,
        )


class ShardJson(Json):
    key: ShardKeyJson
    log_start_offset: Count
    segments: tuple[SegmentJson, ...]

    def to_record(self) -> Shard:
        segments = tuple(segment.to_record() for segment in self.segments)
        return Shard(self.key.to_record(), self.log_start_offset, segments)


class NodeJson(Json):
    node_id: Int32
    storage_id: str
    host: str
    port: int
    rack: str | None = None

    def to_record(self) -> NodeInfo:
        return NodeInfo(self.node_id, self.storage_id, self.host, self.port, self.rack)


class RegistrationJson(Json):
    cluster_id: str
    node_epoch: Count

    def to_record(self) -> Registration:
        return Registration(self.cluster_id, self.node_epoch)


class LockJson(Json):
    name: str
    holder: str
    epoch: Count
    expires_ms: Count
    earlier: tuple[str, ...] = ()

    def to_record(self) -> Lock:
        return Lock(self.name, self.holder, self.epoch, self.expires_ms, self.earlier)


class PartCommitJson(Json):
    segment: SegmentKeyJson
    expected_commit_offset: CountOrNone
    part: RemotePartJson

    def to_record(self) -> PartCommit:
        return PartCommit(self.segment.to_record(), self.expected_commit_offset, self.part.to_record())


class PartReplacementJson(Json):
    segment: SegmentKeyJson
    old: tuple[RemotePartJson, ...]
    new: tuple[RemotePartJson, ...]

    def to_record(self) -> PartReplacement:
        old = tuple(part.to_record() for part in self.old)
        new = tuple(part.to_record() for part in self.new)
        return PartReplacement(self.segment.to_record(), old, new)
