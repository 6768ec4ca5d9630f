"""The meta service over HTTP: `MetaClient` for parts that live in another process.

The caller closes it. Lives on the event loop that first uses it; any number of tasks may use it at once.
Importing it costs 0.3 s (aiohttp, schemas).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, ValidationError

from stratalog.meta_api import bodies, codec
from stratalog.meta_api.attempts import Patience, Repeat
from stratalog.meta_api.problems import from_problem
from stratalog.meta_api.streams import SnapshotReader
from stratalog.meta_api.transport import Transport
from stratalog.meta_api.watch_lines import WatchReader
from stratalog.model import commands
from stratalog.model.commands import Command
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    ChangeSet,
    Lock,
    NodeInfo,
    PartCommit,
    PartReplacement,
    Registration,
    Snapshot,
)
from stratalog.model.segment import SealRecord, Segment
from stratalog.model.topic import Shard, Topic

A = TypeVar("A", bound=BaseModel)
R = TypeVar("R")


class HttpMetaClient:
    """Implements `MetaClient`."""

    def __init__(self, url: str, patience: Patience | None = None) -> None:
        self._transport = Transport(url, patience or Patience())

    async def close(self) -> None:
        await self._transport.close()

    async def _ask(self, method: str, path: str, body: BaseModel | None, answer: type[A], repeat: Repeat) -> A:
        raw = None if body is None else body.model_dump_json().encode()
        told = await self._transport.request(method, path, raw, repeat)
        try:
            return answer.model_validate_json(told)
        except ValidationError as error:
            kind = Unavailable if repeat is Repeat.READ else OutcomeUnknown
            raise kind(
                f"{method} {path}: the answer cannot be read ({error.errors()[0]['msg']}): read again"
            ) from error

    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        return cast("R", await self._perform(command, validate_only))

    async def _perform(self, command: Command[Any], validate_only: bool) -> object:
        match command:
            case commands.RegisterNode(node):
                return await self.register_node(node)
            case commands.ForgetLocal(segments, node_id):
                await self.forget_local(segments, node_id)
                return None
            case commands.CreateTopic():
                return await self.create_topic(
                    command.name,
                    shard_count=command.shard_count,
                    replication_factor=command.replication_factor,
                    settings=command.settings,
                    is_internal=command.is_internal,
                    validate_only=validate_only,
                )
            case commands.DeleteTopic(topic_id):
                await self.delete_topic(topic_id)
                return None
            case commands.AddShards(topic_id, shard_count):
                return await self.add_shards(topic_id, shard_count)
            case commands.AlterTopic(topic_id, settings, expected, more):
                return await self.alter_topic(topic_id, settings, expected=expected, shard_count=more)
            case commands.AdvanceLogStart(shard, offset):
                return await self.advance_log_start(shard, offset)
            case commands.RollSegment(segment, end_offset):
                return await self.roll_segment(segment, end_offset)
            case commands.SealSegment(segment, record):
                return await self.seal_segment(segment, record)
            case commands.ProposeIsr(segment, isr, version):
                return await self.propose_isr(segment, isr, version)
            case commands.RaiseFence(segment, fence):
                return await self.raise_fence(segment, fence)
            case commands.PurgeSegments(segments):
                await self.purge_segments(segments)
                return None
            case commands.CommitParts(lock, commits):
                return tuple(await self.commit_parts(lock, commits))
            case commands.ReplaceParts(lock, replacements):
                return tuple(await self.replace_parts(lock, replacements))
            case commands.CompleteRemote(lock, segment, key, digest, size):
                return await self.complete_remote(
                    lock, segment, manifest_key=key, manifest_digest=digest, size_bytes=size
                )
            case commands.AcquireLock(name, holder, ttl_ms, lasting):
                return await self.acquire_lock(name, holder, ttl_ms, lasting)
            case commands.ReleaseLock(lock):
                await self.release_lock(lock)
                return None
            case commands.AllocateProducerIds(count):
                ids = await self.allocate_producer_ids(count)
                return commands.ProducerIdBlock(ids.start, ids.stop)
        raise AssertionError(f"no such command: {command}")

    # Nodes and reading ------------------------------------------------------------------------------------------
    async def read_cluster_id(self) -> str:
        return (await self._ask("GET", "/v1/cluster", None, bodies.ClusterJson, Repeat.READ)).cluster_id

    async def read_version(self) -> int:
        return (await self._ask("GET", "/v1/cluster", None, bodies.ClusterJson, Repeat.READ)).version

    async def register_node(self, node: NodeInfo) -> Registration:
        body = bodies.RegisterNodeBody(storage_id=node.storage_id, host=node.host, port=node.port, rack=node.rack)
        path = f"/v1/nodes/{node.node_id}"
        return (await self._ask("PUT", path, body, codec.RegistrationJson, Repeat.HARMLESS)).to_record()

    async def snapshot(self) -> Snapshot:
        attempt = 0
        while True:
            try:
                return await self._snapshot()
            except Unavailable:
                attempt += 1
                if attempt >= self._transport.patience.attempts:
                    raise
            await self._transport.pause(attempt)

    async def _snapshot(self) -> Snapshot:
        reader = SnapshotReader()
        async with self._transport.lines("/v1/snapshot", self._transport.patience.attempt_s) as lines:
            count = 0
            async for line in lines:
                reader.add(line)
                count += 1
                if count % 256 == 0:
                    await asyncio.sleep(0)  # a large cluster's snapshot must not hold the loop
        return reader.finish()

    async def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        """Connects again after the last version it gave, for as long as its patience says."""
        patience = self._transport.patience
        loop = asyncio.get_running_loop()
        heard_at, attempt = loop.time(), 0
        while True:
            reader = WatchReader()
            trouble: StratalogError = Unavailable("the stream of changes ended")
            try:
                async with self._transport.lines(f"/v1/watch?after={after_version}", patience.silence_s) as lines:
                    async for line in lines:
                        change_set = reader.read(line) if line else None
                        heard_at, attempt = loop.time(), 0
                        if change_set is not None and change_set.version > after_version:
                            after_version = change_set.version
                            yield change_set
            except (Unavailable, OutcomeUnknown) as error:
                trouble = error
            if loop.time() - heard_at > patience.watch_gap_s:
                raise Unavailable(f"the watch broke off and could not be taken up again: {trouble}") from trouble
            await self._transport.pause(attempt)
            attempt += 1

    async def topic(self, topic_id: UUID) -> Topic:
        """One topic. Raises NotFound."""
        return (await self._ask("GET", f"/v1/topics/{topic_id}", None, codec.TopicJson, Repeat.READ)).to_record()

    async def shard(self, key: ShardKey) -> Shard:
        """One shard. Raises NotFound."""
        return (await self._ask("GET", _shard_path(key), None, codec.ShardJson, Repeat.READ)).to_record()

    async def segment(self, key: SegmentKey) -> Segment:
        """One segment, living or DELETED. Raises NotFound."""
        return (await self._ask("GET", _segment_path(key), None, codec.SegmentJson, Repeat.READ)).to_record()

    # Topics -----------------------------------------------------------------------------------------------------
    async def create_topic(
        self,
        name: str,
        *,
        shard_count: int,
        replication_factor: int,
        settings: Mapping[str, str],
        is_internal: bool = False,
        validate_only: bool = False,
    ) -> Topic:
        body = bodies.CreateTopicBody(
            name=name,
            shard_count=shard_count,
            replication_factor=replication_factor,
            settings=dict(settings),
            is_internal=is_internal,
            validate_only=validate_only,
        )
        repeat = Repeat.READ if validate_only else Repeat.NEVER
        return (await self._ask("POST", "/v1/topics", body, codec.TopicJson, repeat)).to_record()

    async def delete_topic(self, topic_id: UUID) -> None:
        await self._ask("POST", f"/v1/topics/{topic_id}/delete", None, bodies.Done, Repeat.NEVER)

    async def add_shards(self, topic_id: UUID, shard_count: int) -> Topic:
        body = bodies.AddShardsBody(shard_count=shard_count)
        path = f"/v1/topics/{topic_id}/shard-count"
        return (await self._ask("POST", path, body, codec.TopicJson, Repeat.NEVER)).to_record()

    async def alter_topic(
        self,
        topic_id: UUID,
        settings: Mapping[str, str],
        *,
        expected: Mapping[str, str] | None = None,
        shard_count: int | None = None,
    ) -> Topic:
        body = bodies.AlterTopicBody(
            settings=dict(settings),
            expected=None if expected is None else dict(expected),
            shard_count=shard_count,
        )
        path = f"/v1/topics/{topic_id}/settings"
        return (await self._ask("POST", path, body, codec.TopicJson, Repeat.NEVER)).to_record()

    # Life of a segment ------------------------------------------------------------------------------------------
    async def _change(self, method: str, key: SegmentKey, deed: str, body: BaseModel, repeat: Repeat) -> Segment:
        return (await self._ask(method, _segment_path(key) + deed, body, codec.SegmentJson, repeat)).to_record()

    async def roll_segment(self, segment: SegmentKey, end_offset: int) -> Segment:
        return await self._change("POST", segment, "/roll", bodies.RollBody(end_offset=end_offset), Repeat.HARMLESS)

    async def seal_segment(self, segment: SegmentKey, record: SealRecord) -> Segment:
        body = bodies.SealBody(record=codec.SealRecordJson.model_validate(record))
        return await self._change("PUT", segment, "/seal", body, Repeat.HARMLESS)

    async def propose_isr(self, segment: SegmentKey, isr: Sequence[int], expected_version: int) -> Segment:
        body = bodies.IsrBody(isr=tuple(isr), expected_version=expected_version)
        return await self._change("POST", segment, "/isr", body, Repeat.NEVER)

    async def raise_fence(self, segment: SegmentKey, fence: int) -> Segment:
        return await self._change("PUT", segment, "/fence", bodies.FenceBody(fence=fence), Repeat.HARMLESS)

    async def advance_log_start(self, shard: ShardKey, offset: int) -> Shard:
        path = _shard_path(shard) + "/log-start"
        body = bodies.LogStartBody(offset=offset)
        return (await self._ask("PUT", path, body, codec.ShardJson, Repeat.HARMLESS)).to_record()

    async def forget_local(self, segments: Sequence[SegmentKey], node_id: int) -> None:
        path = f"/v1/nodes/{node_id}/forget-local"
        await self._ask("POST", path, _keys_body(segments), bodies.Done, Repeat.HARMLESS)

    # Remote copies ----------------------------------------------------------------------------------------------
    async def commit_parts(self, lock: Lock, commits: Sequence[PartCommit]) -> list[Segment | StratalogError]:
        body = bodies.CommitPartsBody(
            lock=codec.LockJson.model_validate(lock),
            commits=tuple(codec.PartCommitJson.model_validate(commit) for commit in commits),
        )
        return await self._outcomes("/v1/parts/commit", body)

    async def complete_remote(
        self, lock: Lock, segment: SegmentKey, *, manifest_key: str, manifest_digest: bytes, size_bytes: int
    ) -> Segment:
        body = bodies.CompleteRemoteBody(
            lock=codec.LockJson.model_validate(lock),
            manifest_key=manifest_key,
            manifest_digest=manifest_digest,
            size_bytes=size_bytes,
        )
        return await self._change("PUT", segment, "/remote", body, Repeat.HARMLESS)

    async def replace_parts(
        self, lock: Lock, replacements: Sequence[PartReplacement]
    ) -> list[Segment | StratalogError]:
        body = bodies.ReplacePartsBody(
            lock=codec.LockJson.model_validate(lock),
            replacements=tuple(codec.PartReplacementJson.model_validate(one) for one in replacements),
        )
        return await self._outcomes("/v1/parts/replace", body)

    async def _outcomes(self, path: str, body: BaseModel) -> list[Segment | StratalogError]:
        told = await self._ask("POST", path, body, bodies.PartOutcomeList, Repeat.HARMLESS)
        outcomes: list[Segment | StratalogError] = []
        for item in told.items:
            if item.segment is not None:
                outcomes.append(item.segment.to_record())
            elif item.problem is not None:
                outcomes.append(from_problem(item.problem))
            else:
                raise OutcomeUnknown(f"POST {path}: an outcome says nothing: read before acting again")
        return outcomes

    async def deleted_segments(self) -> list[Segment]:
        told = await self._ask("GET", "/v1/deleted-segments", None, bodies.SegmentList, Repeat.READ)
        return [segment.to_record() for segment in told.items]

    async def purged_topics(self) -> frozenset[UUID]:
        told = await self._ask("GET", "/v1/purged-topics", None, bodies.TopicIds, Repeat.READ)
        return frozenset(told.items)

    async def purge_segments(self, segments: Sequence[SegmentKey]) -> None:
        path = "/v1/deleted-segments/purge"
        await self._ask("POST", path, _keys_body(segments), bodies.Done, Repeat.HARMLESS)

    # Locks and numbers ------------------------------------------------------------------------------------------
    async def acquire_lock(self, name: str, holder: str, ttl_ms: int, lasting: Sequence[str] = ()) -> Lock:
        body = bodies.AcquireLockBody(name=name, holder=holder, ttl_ms=ttl_ms, lasting=tuple(lasting))
        return (await self._ask("POST", "/v1/locks/acquire", body, codec.LockJson, Repeat.HARMLESS)).to_record()

    async def release_lock(self, lock: Lock) -> None:
        body = bodies.ReleaseLockBody(lock=codec.LockJson.model_validate(lock))
        await self._ask("POST", "/v1/locks/release", body, bodies.Done, Repeat.HARMLESS)

    async def allocate_producer_ids(self, count: int) -> range:
        body = bodies.ProducerIdsBody(count=count)
        # A block whose answer was lost is never used: there are enough of them.
        block = await self._ask("POST", "/v1/producer-ids", body, bodies.ProducerIdBlock, Repeat.HARMLESS)
        return range(block.first, block.end)


def _shard_path(key: ShardKey) -> str:
    return f"/v1/topics/{key.topic_id}/shards/{key.shard}"


def _segment_path(key: SegmentKey) -> str:
    return f"{_shard_path(key.shard_key)}/segments/{key.epoch}/{key.base_offset}"


def _keys_body(segments: Sequence[SegmentKey]) -> bodies.SegmentKeysBody:
    return bodies.SegmentKeysBody(segments=tuple(codec.SegmentKeyJson.model_validate(key) for key in segments))
