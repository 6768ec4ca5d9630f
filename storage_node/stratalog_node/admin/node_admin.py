"""What a node's admin API answers. No HTTP here: requests and answers are the models of `stratalog.admin_api`.

Lives on the event loop. Questions read memory; `locate`, `verify` and `status` also read files and objects, in threads.
"""

from __future__ import annotations

import asyncio
import heapq
import importlib.metadata
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

from stratalog.admin_api.models import (
    AlterTopic,
    CreateTopic,
    GivenUpGroups,
    KnownNode,
    Location,
    NodeStatus,
    SealedShard,
    SealRequest,
    SegmentInfo,
    StoppedShard,
    TierBytes,
    TopicDetail,
    TopicInfo,
    VerifyDone,
    VerifyRequest,
    VerifySegment,
    VerifyStart,
)
from stratalog.admin_api.next_steps import GIVE_BUCKET
from stratalog.admin_api.rolls import RollElsewhereRequest, RollingElsewhere, SegmentName
from stratalog.admin_api.wording import human_duration
from stratalog.event_loop.fair_turns import FairTurns
from stratalog.machines.leading.shard_life import Stop
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.table_commands import DeleteTopic
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog.settings.kafka_names import under_our_names, without
from stratalog.settings.topic import TopicSettings
from stratalog.telemetry.process_stats import resident_bytes
from stratalog_node.admin.cuts import CutAdmin
from stratalog_node.admin.describe import (
    MAX_PLACES,
    cold_bytes,
    is_out_of_reach,
    local_bytes,
    segment_info,
    settings_in_force,
    shard_info,
    topic_info,
    unsent_bytes,
)
from stratalog_node.admin.find import Finder
from stratalog_node.admin.locate import locate
from stratalog_node.admin.mounts import MountAdmin
from stratalog_node.admin.services import AdminServices
from stratalog_node.admin.verify import verify
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.shards.log.disk_usage import usage_of
from stratalog_node.slices import Slices

SEAL_WAIT_S = 10.0
"""How long `seal` waits for the seal records before it answers that sealing continues."""
_POLL_S = 0.02
_CHECKS_AT_ONCE = 2
"""Segments that are verified at a time: each takes a thread of the few that decode large requests, too."""
_MAX_STOPPED = 20
"""Stopped shards that status names; when a disk fails there are thousands with the same reason."""


class NodeAdmin:
    def __init__(self, services: AdminServices, admin_address: str = "") -> None:
        self._services = services
        self.admin_address = admin_address
        self._turns = FairTurns()
        self.mounts = MountAdmin(services, self._turns)
        self.cuts = CutAdmin(services)
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self.finder = Finder(services, self._turns)

    async def status(self) -> NodeStatus:
        services = self._services
        states: Counter[str] = Counter()
        local = cold = lag = lagging = shards = out_of_reach = 0
        slices = Slices(self._turns)
        for view in list(services.shards.all()):
            shards += 1
            behind, uploads = 0, self._uploads(view)
            for segment in tuple(view.segments):
                states[segment.state.value] += 1
                local += local_bytes(view, segment)
                cold += cold_bytes(segment)
                out_of_reach += is_out_of_reach(services, view, segment)
                behind += unsent_bytes(view, segment) if uploads else 0
                await slices.did()
            lag += behind
            lagging += behind > 0
            await slices.did()
        disk = await asyncio.to_thread(usage_of, services.data_dir)
        waiting_for = dict(services.readiness())
        stopped = services.shards.stopped()
        return NodeStatus(
            node_id=services.node_id,
            cluster_id=services.cluster_id,
            version=importlib.metadata.version("stratalog"),
            started_ms=services.started_ms,
            now_ms=services.now_ms(),
            kafka_address=services.kafka_address,
            admin_address=self.admin_address,
            data_dir=str(services.data_dir),
            bucket=services.store.url if services.store else None,
            bucket_trouble=self._bucket_trouble(out_of_reach),
            is_ready=not waiting_for,
            waiting_for=waiting_for,
            topics=sum(1 for _ in services.catalog.topics()),
            shards=shards,
            stopped_shards=len(stopped),
            stopped=_first_stopped(stopped),
            damaged=list(services.damage()[:_MAX_STOPPED]),
            groups_given_up=[
                GivenUpGroups(shard=shard, base_offset=one.base_offset, end_offset=one.end_offset)
                for shard, ranges in sorted(services.groups_given_up().items())
                for one in ranges
            ],
            segments=dict(states),
            bytes=TierBytes(local=local, cold=cold),
            upload_lag_bytes=lag,
            upload_lag_shards=lagging,
            replication=services.replication(),
            cold_reads=services.cold_reads(),
            disk_total_bytes=disk.total_bytes,
            disk_free_bytes=disk.usable_bytes,
            disk_reserve_bytes=services.settings.disk_reserve_bytes,
            resident_bytes=resident_bytes(),
            loop_blocks=services.loop_blocks(),
            nodes=[
                KnownNode(
                    node_id=node.node_id,
                    kafka_address=f"{node.host}:{node.port}",
                    rack=node.rack,
                    is_alive=node.is_alive or node.node_id == services.node_id,
                    is_retired=node.is_retired,
                )
                for node in sorted(services.catalog.nodes(), key=lambda node: node.node_id)
            ],
        )

    def _bucket_trouble(self, out_of_reach: int) -> str | None:
        if out_of_reach:
            verb = "is" if out_of_reach == 1 else "are"
            return f"{counted(out_of_reach, 'segment')} {verb} only in an object store: {GIVE_BUCKET}"
        away_ms = self._services.store_away_ms()
        trouble = self._services.tier_trouble()
        if not away_ms:
            return trouble
        why = f": {trouble}" if trouble is not None else "; the node's log says why"
        return f"has taken no uploads for {human_duration(away_ms // 1000)}, and is tried again{why}"

    def _uploads(self, view: ShardView) -> bool:
        services = self._services
        if services.store is None or services.catalog.topic_by_id(view.key.topic_id) is None:
            return False
        return services.catalog.topic_settings(view.key.topic_id).remote_storage_enable

    # Topics -----------------------------------------------------------------------------------------------------
    async def topics(self) -> AsyncIterator[TopicInfo]:
        """By name."""
        slices = Slices(self._turns)
        topics = sorted(self._services.catalog.topics(), key=lambda topic: topic.name)
        for topic in topics:
            yield await topic_info(self._services, topic, slices)

    async def topic(self, name: str) -> TopicDetail:
        services, slices = self._services, Slices(self._turns)
        topic = services.topic(name)
        return TopicDetail(
            topic=await topic_info(services, topic, slices),
            shards=[await shard_info(view, services.node_id, slices) for view in services.views(topic)],
            settings=settings_in_force(services.settings, topic),
            node_id=services.node_id,
        )

    async def create_topic(self, request: CreateTopic) -> TopicInfo:
        """Raises: InvalidRequest, AlreadyExists, Unavailable, OutcomeUnknown."""
        services = self._services
        settings = under_our_names(request.settings)
        TopicSettings.validate_overrides(settings, services.settings)
        topic = await services.meta.perform(
            commands.CreateTopic(
                request.name,
                shard_count=request.shards or services.settings.num_partitions,
                replication_factor=request.replication_factor or services.settings.default_replication_factor,
                settings=settings,
            ),
            validate_only=request.validate_only,
        )
        return await topic_info(services, topic, Slices(self._turns))

    async def alter_topic(self, name: str, request: AlterTopic) -> TopicInfo:
        """Change settings and the shard count, all of it or nothing; keys that are not named stay as they are, or as
        others make them meanwhile. An unset key falls back to the process's value."""
        services = self._services

        def change(present: Mapping[str, str]) -> Mapping[str, str]:
            if unknown := [key for key in request.unset if without(key, present) == present]:
                raise InvalidRequest(f"topic {name} does not set {', '.join(unknown)}: nothing to unset")
            left = dict(present)
            for key in request.unset:
                left = without(key, left)
            return left | request.set

        topic_id = services.topic(name).topic_id
        topic = await services.topic_changes.alter(topic_id, change, shard_count=request.shards)
        return await topic_info(services, topic, Slices(self._turns))

    async def delete_topic(self, name: str) -> None:
        await self._services.meta.perform(DeleteTopic(self._services.topic(name).topic_id))

    # Segments ---------------------------------------------------------------------------------------------------
    async def segments(self, topic_name: str | None, shard: int | None) -> AsyncIterator[SegmentInfo]:
        """By topic and shard, oldest first; with `shard` alone that one of each topic. Raises: NotFound, before the
        first."""
        services, slices = self._services, Slices(self._turns)
        if topic_name is None:
            topics = sorted(services.catalog.topics(), key=lambda topic: topic.name)
        else:
            topics = [services.topic(topic_name)]
            if shard is not None:
                services.shard(topics[0], shard)
        for topic in topics:
            for view in services.views(topic):
                if shard is not None and view.key.shard != shard:
                    continue
                for segment in tuple(view.segments):
                    yield segment_info(services, view, segment)
                    await slices.did(1 + min(len(segment.remote.parts), MAX_PLACES))
                await slices.did()

    async def locate(self, topic: str, shard: int, offset: int) -> Location:
        return await locate(self._services, topic, shard, offset)

    async def seal(self, request: SealRequest) -> list[SealedShard]:
        """End the active segments that this node leads, and wait a while for their seal records."""
        services = self._services
        topic = services.topic(request.topic)
        views = services.views(topic) if request.shard is None else [services.shard(topic, request.shard)]
        if not views:
            raise NotFound(f"no shard of topic {topic.name} is on this node")
        asked: list[tuple[ShardView, Segment, bool]] = []
        for view in views:
            await asyncio.sleep(0)  # each makes a file
            active = services.catalog.active_segment(view.key)
            if active is not None:
                asked.append((view, active, services.ask_roll(view.key)))
        await self._until_sealed([segment for _, segment, was_asked in asked if was_asked])
        return [self._sealed(view, segment, was_asked) for view, segment, was_asked in asked]

    async def roll_elsewhere(self, request: RollElsewhereRequest) -> RollingElsewhere:
        """End those of the named segments that this node leads, with newly chosen successors."""
        services, asked = self._services, list[SegmentName]()
        for name in request.segments:
            await asyncio.sleep(0)  # each may make a file
            active = services.catalog.active_segment(ShardKey(name.topic_id, name.shard))
            if active is not None and active.epoch == name.epoch and services.roll_elsewhere(active.key):
                asked.append(name)
        return RollingElsewhere(node_id=services.node_id, asked=asked)

    async def _until_sealed(self, segments: list[Segment]) -> None:
        """Poll metadata: the seal record is what makes it true, and it comes through the meta service's watch."""
        catalog = self._services.catalog
        deadline = asyncio.get_running_loop().time() + SEAL_WAIT_S
        slices = Slices(self._turns)
        while segments and asyncio.get_running_loop().time() < deadline:
            left = []
            for segment in segments:
                known = catalog.segment(segment.key)
                if known is not None and known.seal is None:
                    left.append(segment)
                await slices.did()
            segments = left
            await asyncio.sleep(_POLL_S)

    def _sealed(self, view: ShardView, asked: Segment, was_asked: bool) -> SealedShard:
        segment = self._services.catalog.segment(asked.key) or asked
        end = segment.end_offset if segment.end_offset is not None else max(view.high_watermark, segment.base_offset)
        outcome = "empty" if not was_asked else "sealed" if segment.seal is not None else "sealing"
        if asked.leader != self._services.node_id:
            outcome = "elsewhere"
        return SealedShard.model_validate(
            {
                "shard": view.key.shard,
                "epoch": segment.epoch,
                "base_offset": segment.base_offset,
                "end_offset": end,
                "outcome": outcome,
                "leader": asked.leader,
            }
        )

    def verify(self, request: VerifyRequest) -> AsyncIterator[VerifyStart | VerifySegment | VerifyDone]:
        return verify(self._services, request, self._turns, self._checks)


def _first_stopped(stopped: Sequence[tuple[ShardView, Stop]]) -> list[StoppedShard]:
    """The first by topic and shard: when a disk fails there are thousands, all with the same reason."""
    first = heapq.nsmallest(_MAX_STOPPED, stopped, key=lambda one: (one[0].topic.name, one[0].key.shard))
    return [
        StoppedShard(
            topic=view.topic.name,
            shard=view.key.shard,
            cause=stop.cause.value,
            reason=stop.reason,
            next_step=stop.next_step,
        )
        for view, stop in first
    ]
