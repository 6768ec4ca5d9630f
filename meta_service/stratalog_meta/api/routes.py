"""What the meta service answers over HTTP: one table of routes; server and OpenAPI description are made from it.

Handlers know no HTTP library: they get a `Call` and return a pydantic model. What they raise becomes a problem.
Paths name a segment by topic id, shard, epoch and base offset, as its key does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BaseModel

from stratalog.meta_api import bodies, codec
from stratalog.meta_api.bodies import Done, PartOutcome, PartOutcomeList, read_body
from stratalog.meta_api.problems import to_problem
from stratalog.model.errors import InvalidRequest, LimitExceeded, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import NodeInfo
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic
from stratalog_meta.service import MetaService

B = TypeVar("B", bound=BaseModel)

MAX_TOPICS_LISTED: Final = 1_000
MAX_SEGMENTS_NAMED: Final = 10_000
"""In one request."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what its path and query say, and its body."""

    service: MetaService
    params: Mapping[str, str]
    query: Mapping[str, str]
    raw: bytes

    def read(self, model: type[B]) -> B:
        return read_body(model, self.raw, "request")

    def number(self, name: str) -> int:
        return read_number(self.params[name], f"{name} in the path")

    @property
    def topic_id(self) -> UUID:
        try:
            return UUID(self.params["topic_id"])
        except ValueError as error:
            raise InvalidRequest(
                f"{self.params['topic_id']!r:.80} is no topic id: give the UUID, not the name"
            ) from error

    @property
    def shard_key(self) -> ShardKey:
        return ShardKey(self.topic_id, self.number("shard"))

    @property
    def segment_key(self) -> SegmentKey:
        return SegmentKey(self.topic_id, self.number("shard"), self.number("epoch"), self.number("base_offset"))


def read_number(text: str, what: str, most: int = 2**63 - 1) -> int:
    """Raises InvalidRequest for what is no number from 0 to `most`."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise InvalidRequest(f"{what} must be a number from 0 to {most}, not {text!r:.40}")
    return int(text)


@dataclass(frozen=True, slots=True)
class LongAnswer:
    """A JSON object that ends in a list of segments, of which there may be thousands: the server makes it in pieces."""

    before: bytes
    segments: Sequence[Segment]
    after: bytes = b"]}"


Handler: TypeAlias = Callable[[Call], Awaitable[BaseModel | LongAnswer]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    summary: str
    handler: Handler
    body: type[BaseModel] | None
    answer: type[BaseModel]


# Nodes and reading ----------------------------------------------------------------------------------------------
async def _cluster(call: Call) -> BaseModel:
    snapshot = await call.service.snapshot()
    return bodies.ClusterJson(
        cluster_id=call.service.cluster_id,
        version=snapshot.version,
        nodes=len(snapshot.nodes),
        topics=len(snapshot.topics),
        shards=len(snapshot.shards),
        refusal=call.service.refusal,
    )


async def _nodes(call: Call) -> BaseModel:
    nodes = (await call.service.snapshot()).nodes
    return bodies.NodeList(items=tuple(codec.NodeJson.model_validate(node) for node in nodes))


async def _register_node(call: Call) -> BaseModel:
    body = call.read(bodies.RegisterNodeBody)
    node = NodeInfo(call.number("node_id"), body.storage_id, body.host, body.port, body.rack)
    return codec.RegistrationJson.model_validate(await call.service.register_node(node))


async def _forget_local(call: Call) -> BaseModel:
    await call.service.forget_local(_segment_keys(call), call.number("node_id"))
    return Done()


# Topics ---------------------------------------------------------------------------------------------------------
async def _topics(call: Call) -> BaseModel:
    """All topics, or those of one name; `after` and `limit` go through them by name."""
    topics = sorted((await call.service.snapshot()).topics, key=lambda topic: topic.name)
    name, after = call.query.get("name"), call.query.get("after", "")
    limit = read_number(call.query.get("limit", str(MAX_TOPICS_LISTED)), "limit", MAX_TOPICS_LISTED)
    chosen = [topic for topic in topics if (name is None or topic.name == name) and topic.name > after]
    return bodies.TopicList(items=tuple(codec.TopicJson.model_validate(topic) for topic in chosen[:limit]))


async def _topic(call: Call) -> BaseModel:
    return codec.TopicJson.model_validate(await call.service.topic(call.topic_id))


async def _create_topic(call: Call) -> BaseModel:
    body = call.read(bodies.CreateTopicBody)
    topic = await call.service.create_topic(
        body.name,
        shard_count=body.shard_count,
        replication_factor=body.replication_factor,
        settings=body.settings,
        is_internal=body.is_internal,
        validate_only=body.validate_only,
    )
    return codec.TopicJson.model_validate(topic)


async def _delete_topic(call: Call) -> BaseModel:
    await call.service.delete_topic(call.topic_id)
    return Done()


async def _add_shards(call: Call) -> BaseModel:
    body = call.read(bodies.AddShardsBody)
    return codec.TopicJson.model_validate(await call.service.add_shards(call.topic_id, body.shard_count))


async def _alter_topic(call: Call) -> BaseModel:
    body = call.read(bodies.AlterTopicBody)
    topic: Topic = await call.service.alter_topic(
        call.topic_id, body.settings, expected=body.expected, shard_count=body.shard_count
    )
    return codec.TopicJson.model_validate(topic)


async def _shard(call: Call) -> LongAnswer:
    return _long_shard(await call.service.shard(call.shard_key))


async def _advance_log_start(call: Call) -> LongAnswer:
    body = call.read(bodies.LogStartBody)
    return _long_shard(await call.service.advance_log_start(call.shard_key, body.offset))


def _long_shard(shard: Shard) -> LongAnswer:
    key = codec.ShardKeyJson.model_validate(shard.key).model_dump_json().encode()
    return LongAnswer(b'{"key":%s,"log_start_offset":%d,"segments":[' % (key, shard.log_start_offset), shard.segments)


# Life of a segment ----------------------------------------------------------------------------------------------
async def _segment(call: Call) -> BaseModel:
    return _segment_json(await call.service.segment(call.segment_key))


async def _roll(call: Call) -> BaseModel:
    body = call.read(bodies.RollBody)
    return _segment_json(await call.service.roll_segment(call.segment_key, body.end_offset))


async def _seal(call: Call) -> BaseModel:
    body = call.read(bodies.SealBody)
    return _segment_json(await call.service.seal_segment(call.segment_key, body.record.to_record()))


async def _isr(call: Call) -> BaseModel:
    body = call.read(bodies.IsrBody)
    return _segment_json(await call.service.propose_isr(call.segment_key, body.isr, body.expected_version))


async def _fence(call: Call) -> BaseModel:
    body = call.read(bodies.FenceBody)
    return _segment_json(await call.service.raise_fence(call.segment_key, body.fence))


# Remote copies --------------------------------------------------------------------------------------------------
async def _complete(call: Call) -> BaseModel:
    body = call.read(bodies.CompleteRemoteBody)
    segment = await call.service.complete_remote(
        body.lock.to_record(),
        call.segment_key,
        manifest_key=body.manifest_key,
        manifest_digest=body.manifest_digest,
        size_bytes=body.size_bytes,
    )
    return _segment_json(segment)


async def _commit_parts(call: Call) -> BaseModel:
    body = call.read(bodies.CommitPartsBody)
    commits = [commit.to_record() for commit in body.commits]
    return _outcomes(await call.service.commit_parts(body.lock.to_record(), commits))


async def _replace_parts(call: Call) -> BaseModel:
    body = call.read(bodies.ReplacePartsBody)
    replacements = [replacement.to_record() for replacement in body.replacements]
    return _outcomes(await call.service.replace_parts(body.lock.to_record(), replacements))


async def _deleted(call: Call) -> LongAnswer:
    return LongAnswer(b'{"items":[', await call.service.deleted_segments())


async def _purged_topics(call: Call) -> BaseModel:
    return bodies.TopicIds(items=tuple(sorted(await call.service.purged_topics())))


async def _purge(call: Call) -> BaseModel:
    await call.service.purge_segments(_segment_keys(call))
    return Done()


# Locks and numbers ----------------------------------------------------------------------------------------------
async def _acquire_lock(call: Call) -> BaseModel:
    body = call.read(bodies.AcquireLockBody)
    lock = await call.service.acquire_lock(body.name, body.holder, body.ttl_ms, body.lasting)
    return codec.LockJson.model_validate(lock)


async def _release_lock(call: Call) -> BaseModel:
    await call.service.release_lock(call.read(bodies.ReleaseLockBody).lock.to_record())
    return Done()


async def _producer_ids(call: Call) -> BaseModel:
    block = await call.service.allocate_producer_ids(call.read(bodies.ProducerIdsBody).count)
    return bodies.ProducerIdBlock(first=block.start, end=block.stop)


def _segment_keys(call: Call) -> list[SegmentKey]:
    keys = call.read(bodies.SegmentKeysBody).segments
    if len(keys) > MAX_SEGMENTS_NAMED:
        raise LimitExceeded(f"{len(keys)} segments are named, at most {MAX_SEGMENTS_NAMED} may be: ask in parts")
    return [key.to_record() for key in keys]


def _segment_json(segment: Segment) -> codec.SegmentJson:
    return codec.SegmentJson.model_validate(segment)


def _outcomes(outcomes: list[Segment | StratalogError]) -> PartOutcomeList:
    return PartOutcomeList(
        items=tuple(
            PartOutcome(segment=_segment_json(outcome))
            if isinstance(outcome, Segment)
            else PartOutcome(problem=to_problem(outcome))
            for outcome in outcomes
        )
    )


_TOPIC = "/v1/topics/{topic_id}"
_SHARD = _TOPIC + "/shards/{shard}"
_SEGMENT = _SHARD + "/segments/{epoch}/{base_offset}"

ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/cluster", "The cluster's id and sizes", _cluster, None, bodies.ClusterJson),
    Route("GET", "/v1/nodes", "Registered nodes", _nodes, None, bodies.NodeList),
    Route(
        "PUT",
        "/v1/nodes/{node_id}",
        "A node begins a life",
        _register_node,
        bodies.RegisterNodeBody,
        codec.RegistrationJson,
    ),
    Route(
        "POST",
        "/v1/nodes/{node_id}/forget-local",
        "May the node free these local copies?",
        _forget_local,
        bodies.SegmentKeysBody,
        Done,
    ),
    Route("GET", "/v1/topics", "Topics by name; query: name, after, limit", _topics, None, bodies.TopicList),
    Route("POST", "/v1/topics", "Create a topic", _create_topic, bodies.CreateTopicBody, codec.TopicJson),
    Route("GET", _TOPIC, "One topic", _topic, None, codec.TopicJson),
    Route("DELETE", _TOPIC, "Delete a topic", _delete_topic, None, Done),
    Route("POST", _TOPIC + "/delete", "The same, for clients that send it once only", _delete_topic, None, Done),
    Route(
        "POST",
        _TOPIC + "/settings",
        "Replace its settings, and let it grow",
        _alter_topic,
        bodies.AlterTopicBody,
        codec.TopicJson,
    ),
    Route("POST", _TOPIC + "/shard-count", "Add shards", _add_shards, bodies.AddShardsBody, codec.TopicJson),
    Route("GET", _SHARD, "A shard and its segments", _shard, None, codec.ShardJson),
    Route(
        "PUT", _SHARD + "/log-start", "Advance the log start", _advance_log_start, bodies.LogStartBody, codec.ShardJson
    ),
    Route("GET", _SEGMENT, "One segment", _segment, None, codec.SegmentJson),
    Route("POST", _SEGMENT + "/roll", "End it and open the next one", _roll, bodies.RollBody, codec.SegmentJson),
    Route("PUT", _SEGMENT + "/seal", "Write its seal record, once", _seal, bodies.SealBody, codec.SegmentJson),
    Route("POST", _SEGMENT + "/isr", "Change its ISR by compare-and-set", _isr, bodies.IsrBody, codec.SegmentJson),
    Route("PUT", _SEGMENT + "/fence", "Raise its fence", _fence, bodies.FenceBody, codec.SegmentJson),
    Route(
        "PUT",
        _SEGMENT + "/remote",
        "Its remote copy is complete",
        _complete,
        bodies.CompleteRemoteBody,
        codec.SegmentJson,
    ),
    Route("POST", "/v1/parts/commit", "Commit parts", _commit_parts, bodies.CommitPartsBody, PartOutcomeList),
    Route("POST", "/v1/parts/replace", "Replace parts", _replace_parts, bodies.ReplacePartsBody, PartOutcomeList),
    Route("GET", "/v1/deleted-segments", "Segments that wait for their purge", _deleted, None, bodies.SegmentList),
    Route("GET", "/v1/purged-topics", "Topics of which nothing is left", _purged_topics, None, bodies.TopicIds),
    Route("POST", "/v1/deleted-segments/purge", "Forget deleted segments", _purge, bodies.SegmentKeysBody, Done),
    Route(
        "POST", "/v1/locks/acquire", "Take or renew a write lock", _acquire_lock, bodies.AcquireLockBody, codec.LockJson
    ),
    Route("POST", "/v1/locks/release", "Give a write lock back", _release_lock, bodies.ReleaseLockBody, Done),
    Route(
        "POST",
        "/v1/producer-ids",
        "A block of producer ids",
        _producer_ids,
        bodies.ProducerIdsBody,
        bodies.ProducerIdBlock,
    ),
)
