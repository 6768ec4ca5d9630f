"""Bodies of requests to the meta service, and of answers that are more than one record.

Both ends use them: the client writes what the server reads. A request with a field that is not known is refused, for
the caller may count on it.
"""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stratalog.meta_api.codec import (
    Count,
    Int32,
    Json,
    LockJson,
    NodeJson,
    PartCommitJson,
    PartReplacementJson,
    SealRecordJson,
    SegmentJson,
    SegmentKeyJson,
    TopicJson,
)
from stratalog.meta_api.problems import Problem
from stratalog.model.errors import InvalidRequest

B = TypeVar("B", bound=BaseModel)


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


def read_body(model: type[B], body: bytes, where: str) -> B:
    """Raises InvalidRequest, naming the field that is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "body"
        raise InvalidRequest(f"{where}: {place}: {first['msg']}: see /openapi.json for what is expected") from error


# Requests -------------------------------------------------------------------------------------------------------
class RegisterNodeBody(Body):
    storage_id: str
    host: str
    port: int
    rack: str | None = None


class CreateTopicBody(Body):
    name: str
    shard_count: int
    replication_factor: int
    settings: dict[str, str] = Field(default_factory=dict)
    is_internal: bool = False
    validate_only: bool = False


class AddShardsBody(Body):
    shard_count: int
    """The new total."""


class AlterTopicBody(Body):
    settings: dict[str, str]
    expected: dict[str, str] | None = None
    """The settings as they were read; when they are others now the answer is Conflict."""
    shard_count: int | None = None
    """The new total, when the topic grows in the same change."""


class LogStartBody(Body):
    offset: Count


class RollBody(Body):
    end_offset: Count


class SealBody(Body):
    record: SealRecordJson


class IsrBody(Body):
    isr: tuple[Int32, ...]
    expected_version: Count


class FenceBody(Body):
    fence: Count


class CompleteRemoteBody(Body):
    lock: LockJson
    manifest_key: str
    manifest_digest: bytes
    size_bytes: Count


class CommitPartsBody(Body):
    lock: LockJson
    commits: tuple[PartCommitJson, ...]


class ReplacePartsBody(Body):
    lock: LockJson
    replacements: tuple[PartReplacementJson, ...]


class SegmentKeysBody(Body):
    segments: tuple[SegmentKeyJson, ...]


class AcquireLockBody(Body):
    name: str
    holder: str
    ttl_ms: int
    lasting: tuple[str, ...] = ()


class ReleaseLockBody(Body):
    lock: LockJson


class ProducerIdsBody(Body):
    count: int


# Answers --------------------------------------------------------------------------------------------------------
class Done(Json):
    """The request was performed; there is nothing to tell."""

    done: bool = True


class ClusterJson(Json):
    cluster_id: str
    version: Count
    nodes: Count
    topics: Count
    shards: Count
    refusal: str | None
    """Why changes are refused; null while they are not."""


class NodeList(Json):
    items: tuple[NodeJson, ...]


class TopicList(Json):
    items: tuple[TopicJson, ...]


class TopicIds(Json):
    items: tuple[UUID, ...]


class SegmentList(Json):
    items: tuple[SegmentJson, ...]


class PartOutcome(Json):
    """Of one commit or replacement: the segment after it, or why it was refused."""

    segment: SegmentJson | None = None
    problem: Problem | None = None


class PartOutcomeList(Json):
    items: tuple[PartOutcome, ...]


class ProducerIdBlock(Json):
    """Ids from `first` up to, not with, `end`."""

    first: Count
    end: Count
