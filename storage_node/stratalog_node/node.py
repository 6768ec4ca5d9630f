"""A storage node, put together: disk, shards, groups, tier, listeners. Order of start and stop, and nothing else.

Start: own the directory, register, load metadata, replay the journal, recover shards, then open the listener; the
object store may be away (F51). Stop: listeners first, then what writes, then a last flush, so that the next start scans
nothing. A start that fails stops what it had started.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.event_loop.task_set import TaskSet
from stratalog.event_loop.tls_sessions import ServerContext
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.meta_api.client import MetaForNodes
from stratalog.meta_api.node_client import NodeMetaClient
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.listeners import INTERNAL, SecurityProtocol
from stratalog.model.metadata import Life, Vitals
from stratalog.model.rights import parse_principals
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore
from stratalog.settings.choices import PortProtocol, ReadPolicy
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog.telemetry.audit_log import AuditLog
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.activity import ActivityReporter
from stratalog_node.age_clock import NodeAgeClock
from stratalog_node.buffers import BufferPool
from stratalog_node.damage import damage_lines
from stratalog_node.disk.boot_id import read_boot_id
from stratalog_node.disk.ends_in_memory import EndsInMemory
from stratalog_node.disk.further_directories import (
    NodeMark,
    OpenedDirectory,
    close_directories,
    open_directories,
)
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.groups.coordinator import GroupCoordinator
from stratalog_node.heartbeats import HeartbeatClient, Heartbeats
from stratalog_node.identity_file import NodeIdentity, load_or_create, lock_directory
from stratalog_node.leaving.assembly import leaving_tasks, vitals_of
from stratalog_node.leaving.roll_away import roll_elsewhere
from stratalog_node.measures import NodeMeasures
from stratalog_node.mounts.holding import MountHolding
from stratalog_node.mounts.probe import DataSetProbe
from stratalog_node.open_files import OpenFiles
from stratalog_node.registration import BegunLife, begin_life
from stratalog_node.replication.faulty_copies import FaultyCopies
from stratalog_node.replication.following import Following
from stratalog_node.replication.lag import add_lag_metrics
from stratalog_node.replication.lost_copy_reports import LostCopyReports
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.peer_reads import NodePeerReads
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.connections.consumer_codec import CONSUMER_CODEC
from stratalog_node.serve.connections.context import NodeServices
from stratalog_node.serve.connections.control_state import ControlState
from stratalog_node.serve.connections.listeners import NodeListeners, bind_listeners
from stratalog_node.serve.connections.registry import Registry
from stratalog_node.serve.server import KafkaServer, data_apis
from stratalog_node.shards.assembly import LocalShards, open_shards
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.following import follow
from stratalog_node.shards.catalog.lost_segments import LostSegments
from stratalog_node.shards.catalog.rights import CatalogRights
from stratalog_node.shards.copies.missing_files import take_sealed
from stratalog_node.shards.log.ages import run_timed_checks
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.moves.copy_mover import MovePolicy
from stratalog_node.shards.read.replica_reads import unsealed_of_epoch
from stratalog_node.tier.assembly import NodeTier
from stratalog_node.tier.cold.remote_reads import RemoteReads
from stratalog_node.topic_changes import TopicChanges
from stratalog_node.turn import Turn

if TYPE_CHECKING:
    from stratalog.tls.identity import TlsIdentity

log = logger(__name__)

_HOT_ANSWER_BYTES = 32 << 20
"""What fetch answers may hold until they are sent, all connections together; above it each gets a small share."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _internal_tls_of(settings: ProcessSettings, tls: TlsIdentity | None) -> Callable[[], ServerContext] | None:
    if settings.security_inter_broker_protocol is PortProtocol.PLAINTEXT:
        return None
    assert tls is not None, "the settings name a certificate"
    from stratalog.tls.identity import internal_rules  # with a library that plain text does not need

    rules = internal_rules(settings)
    assert rules is not None
    return lambda: tls.serving(rules)


def _clients_tls_of(
    settings: ProcessSettings, tls: TlsIdentity | None, protocol: SecurityProtocol
) -> Callable[[], ServerContext] | None:
    if not protocol.is_tls:
        return None
    assert tls is not None, "the settings name a certificate"
    from stratalog.tls.identity import login_rules, tls_rules  # with a library that plain text does not need

    rules = login_rules(settings) if protocol.is_sasl else tls_rules(settings)
    return lambda: tls.serving(rules)


@dataclass(frozen=True, slots=True)
class Listen:
    host: str
    port: int


class StorageNode:
    def __init__(
        self,
        settings: ProcessSettings,
        directory: Path,
        listen: Listen,
        meta: MetaForNodes,
        store: ObjectStore | None,
        *,
        clock_ms: Callable[[], int] = wall_ms,
        why_short: Callable[[], str | None] = lambda: None,
        heartbeat_client: Callable[[], HeartbeatClient] | None = None,
        memory: Path | None = None,
        tls: TlsIdentity | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`clock_ms` is the wall clock, for times that are kept or told; what waits goes by the monotonic one.
        `why_short`: why metadata on the same disk need what is free of it, if so. `heartbeat_client`: see `Heartbeats`.
        `memory`: a folder that outlives this process and not the machine's boot (`disk/ends_in_memory.py`). `tls`:
        the certificate that listeners with TLS show; its owner keeps it up to date. `audit` is
        started and closed by the caller."""
        self.settings = settings
        self.audit = audit or AuditLog(None, "")
        self.layout = NodeLayout(directory)
        self.meta = NodeMetaClient(meta)
        self.store = store
        self.topic_changes = TopicChanges(self.meta, settings)
        self.catalog = Catalog(
            lambda overrides: TopicSettings.resolve(settings, overrides),
            CatalogRights(
                super_users=parse_principals(settings.super_users),
                is_open_without_rules=settings.allow_everyone_if_no_acl_found,
            ),
        )
        self.metrics = MetricRegistry()
        self.open_files = OpenFiles.of_process()
        self.listening: Mapping[str, tuple[str, int]] = {INTERNAL: ("", 0)}
        """Host and port of each listener, from the start on."""
        self.is_over = asyncio.Event()
        """Another life of this node has begun, so this process must stop; `why_over` says so in words."""
        self.why_over = ""
        self.cluster_id = ""
        self.page_url = ""
        """The address of this node's page; set by the listener that serves it."""
        self._listen = listen
        self._clock_ms = clock_ms
        self._why_short = why_short
        self._heartbeat_client = heartbeat_client
        self._memory = memory
        self._taken = AsyncExitStack()
        """What must be given back, in the order in which it was taken."""
        self._tasks = TaskSet()
        self.turn: Turn
        self._asker: Asker
        self._begun: BegunLife
        self.measures: NodeMeasures
        self.local: LocalShards
        self._is_disk_watched = self._is_running = False
        self.shards: ShardDirectory
        self.remote_reads: RemoteReads
        self.peer_reads: NodePeerReads
        self.server: KafkaServer
        self.groups: GroupCoordinator
        self.tier: NodeTier
        self._reporter: ActivityReporter
        self.following: Following
        self.lost_copies: LostCopyReports
        self.faulty_copies: FaultyCopies
        self.mounts: MountHolding
        self.tls = tls
        self._internal_tls: Callable[[], ServerContext] | None = None
        """What the next connection of another node speaks TLS with; None: plain text."""

    @property
    def address(self) -> tuple[str, int]:
        """The address of the internal listener."""
        return self.listening[INTERNAL]

    # Start ----------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """All of it, or nothing: a start that fails gives back what it took, newest first, as `close` does.

        Raises: Unavailable (directory or address in use, meta away), Corrupt, InvalidRequest.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings, taken = self.settings, self._taken
        self._internal_tls = _internal_tls_of(settings, self.tls)
        lock = lock_directory(self.layout.root)
        taken.callback(os.close, lock)
        # Before anything is written into the metadata: they may be another cluster's.
        self.cluster_id = self.audit.cluster_id = await self.meta.read_cluster_id()
        identity = load_or_create(self.layout.node_file, settings.node_id, self.cluster_id)
        opened = await self._open_directories(identity)
        listeners = bind_listeners(self._listen.host, self._listen.port, settings)
        taken.callback(listeners.close)
        self.listening = listeners.listening()
        life = await self._register(listeners, identity, lock)
        self.catalog.load(await self.meta.snapshot())
        pool = BufferPool()
        await self._open_shards(identity, life.epoch, pool, opened)
        age_clock = NodeAgeClock(self.layout.clock_file, self._clock_ms, monotonic_ms)
        taken.push_async_callback(age_clock.close)
        self._build_groups(age_clock)
        self._build_server(pool)
        self.tier = NodeTier(
            node_id=identity.node_id,
            node_epoch=life.epoch,
            storage_id=identity.storage_id,
            cluster_id=self.cluster_id,
            settings=settings,
            meta=self.meta,
            catalog=self.catalog,
            shards=self.shards,
            events=self.local.context.events,
            copies=self.local.copies,
            local_bytes=self.local.disk.local_bytes,
            store=self.store,
            clock_ms=self._clock_ms,
            monotonic_ms=monotonic_ms,
            age_clock=age_clock,
            on_pressure=self.local.space.set_pressure,
            table_of=self.local.context.tables.find,
            peers=self.peer_reads,
            direct_room=self.local.context.direct_room,
        )
        taken.push_async_callback(self._tasks.cancel)
        taken.push_async_callback(self.tier.close)
        taken.push_async_callback(self.server.close)
        taken.push_async_callback(self.groups.stop)
        await self.tier.start()
        self.local.healing.start()
        self._begin_tasks(age_clock)
        await self.groups.start()
        self._add_metrics()
        self._open_listeners(listeners)

    def _build_server(self, pool: BufferPool) -> None:
        registry = Registry([*data_apis(), *control_apis()])
        services = NodeServices(
            self.settings.node_id,
            self.cluster_id,
            self.settings,
            self.meta,
            self.catalog,
            self.shards,
            self.local.disk,
            self.groups,
            self.topic_changes,
            ControlState(registry.advertised()),
            self.audit,
        )
        self.server = KafkaServer(
            services,
            self.shards,
            registry,
            self.turn,
            pool,
            self.local.reader,
            most_connections=self.open_files.kafka_connections,
            member=None if self._internal_tls is None or self.tls is None else self.tls.member,
            metadata_age_ms=self._metadata_age_ms,
        )

    def _metadata_age_ms(self) -> int:
        """How old the metadata may be that this node has; 0 where the service is in its process."""
        beats = self._heartbeats
        return 0 if beats.takeover_delay_ms == 0 else monotonic_ms() - beats.sure_ms

    def _open_listeners(self, listeners: NodeListeners) -> None:
        internal = self._internal_tls
        for one in listeners.further:
            protocol = self.settings.security_protocols.get(one.listening.name, SecurityProtocol.PLAINTEXT)
            tls = _clients_tls_of(self.settings, self.tls, protocol)
            self.server.open(one.socket, one.announced, protocol, tls)
        inside = listeners.internal
        protocol = SecurityProtocol.PLAINTEXT if internal is None else SecurityProtocol.SSL
        self.server.open(inside.socket, inside.announced, protocol, internal)

    def damage(self) -> list[str]:
        """See `damage_lines`; data directories that cannot be used come first."""
        lines = damage_lines(self.catalog, self.local.sealing, self.remote_reads.cold)
        return [*self.local.several.watch.lines, *lines]

    def _begin_tasks(self, age_ms: Callable[[], int]) -> None:
        self._hold_mounts()
        self._help_leave()
        self._reporter = ActivityReporter(
            self.shards,
            self.local.context.stats,
            self.remote_reads,
            self.tier,
            self.readiness,
            time.monotonic_ns,
            lambda: self.page_url,
            self.damage,
        )
        self._is_running = True
        self._tasks.start(follow(self.meta, self.catalog, self._end_life))
        if self.server.logins.tokens is not None:
            self._tasks.start(self.server.logins.tokens.watch())
        expiration_ms = self.settings.producer_id_expiration_ms
        self._tasks.start(run_timed_checks(self.shards, self.turn, age_ms, expiration_ms))

    async def _register(self, listeners: NodeListeners, identity: NodeIdentity, lock: int) -> Life:
        """From now on every command names this life. `lock`: the descriptor that holds the directory's."""
        reads_bucket = self.settings.remote_read_policy is not ReadPolicy.DISABLE
        own = (identity.node_id, identity.storage_id, self.settings.broker_rack)
        info = listeners.of_node(*own, reads_bucket=reads_bucket)
        begun = self._begun = await begin_life(
            self.meta, info, self.layout, lock, boot_id=read_boot_id(), flush_policy=self.settings.flush_policy
        )
        life = self.meta.life = begun.life
        self._heartbeats = Heartbeats(
            self.meta,
            life,
            monotonic_ms,
            self._end_life,
            self._has_room,
            self._vitals,
            self._heartbeat_client,
            self.catalog,
            self._can_write,
        )
        self._taken.push_async_callback(self._heartbeats.close)
        self._heartbeats.start()
        return life

    def _has_room(self) -> bool:
        """For more segments. It lives before its disk has been looked at."""
        return not self._is_disk_watched or self.local.space.has_room

    def _can_write(self) -> bool:
        return not self._is_disk_watched or self.local.watch.trouble is None

    def _vitals(self) -> Vitals | None:
        """What each heartbeat reports besides, once the node has started."""
        if not self._is_running:
            return None
        return vitals_of(
            self.settings, self.catalog, self.local, self.store, self.tier.uploader, self._reporter.report()
        )

    def _end_life(self, why: str) -> None:
        if not self.is_over.is_set():
            log.error("this process must stop", why=why)
        self.why_over = self.why_over or why
        self.is_over.set()

    async def _open_directories(self, identity: NodeIdentity) -> list[OpenedDirectory]:
        """The further ones. Before the registration: a directory of another node must stop the start."""
        mark = NodeMark(identity.node_id, identity.storage_id, identity.cluster_id)
        self._taken.callback(close_directories, self.layout)
        opened = await asyncio.to_thread(open_directories, self.layout, self.settings.further_directories, mark)
        for one in opened:
            one.directory.is_draining = str(one.directory.root) in self.settings.drained_directories
        return opened

    async def _open_shards(
        self, identity: NodeIdentity, node_epoch: int, pool: BufferPool, opened: list[OpenedDirectory]
    ) -> None:
        """What the object store has, the disk with what runs over it, and every shard as the last life left it."""
        self.turn = Turn(pool, self._clock_ms, monotonic_ms)
        self._taken.callback(self.turn.close)
        remote = self.remote_reads = RemoteReads.over(
            self.store, cluster_id=self.cluster_id, settings=self.settings, catalog=self.catalog
        )
        self._taken.push_async_callback(remote.close)
        node_id = identity.node_id
        node = self.catalog.node(node_id)
        to_node = None if self._internal_tls is None or self.tls is None else self.tls.to_node
        asker = self._asker = Asker(node_id, node.token if node is not None else 0, to_node)
        self.peer_reads = NodePeerReads(
            asker, self.catalog, lambda: self.local.context.threads, self.settings, monotonic_ms
        )
        self._taken.push_async_callback(self.peer_reads.close)
        self.local = await open_shards(
            node_id=node_id,
            node_epoch=node_epoch,
            cluster_id=self.cluster_id,
            settings=self.settings,
            layout=self.layout,
            catalog=self.catalog,
            meta=self.meta,
            turn=self.turn,
            pool=pool,
            clock_ms=self._clock_ms,
            descriptor_limit=self.open_files.segment_files,
            answer_bytes=_HOT_ANSWER_BYTES,
            cold=remote.cold,
            remote=remote.committed,
            peers=self.peer_reads,
            service_heard_ms=lambda: self._heartbeats.heard_ms,
            why_short=self._why_short,
            origin=self._begun.origin,
            note_examined=self._begun.note_examined,
            ends=EndsInMemory(self._memory, identity.storage_id),
            opened=opened,
            moves=MovePolicy(
                lambda topic_id: self.catalog.topic_settings(topic_id).data_move_after_ms,
                self.settings.data_move_free_bytes,
                self.settings.data_move_bytes_per_second,
            ),
        )
        self._taken.push_async_callback(self.local.close)
        self.shards = self.local.directory
        self.local.start()
        self._follow_others(asker)
        self._is_disk_watched = True

    def _build_groups(self, age_clock: NodeAgeClock) -> None:
        self.groups = GroupCoordinator(
            node_id=self.settings.node_id,
            settings=self.settings,
            topics=self.catalog,
            meta=self.meta,
            led_shard=self._led_shard,
            wall_ms=self._clock_ms,
            age_ms=age_clock,
            monotonic_ms=monotonic_ms,
            heard_ms=lambda: self._heartbeats.sure_ms,
            lease_ms=lambda: self._heartbeats.takeover_delay_ms,
            new_member_id=lambda client: f"{client}-{secrets.token_hex(16)}",
            words=CONSUMER_CODEC,
            is_lost=LostSegments(self.catalog, self.catalog.is_lost_for_good, monotonic_ms),
        )
        self.catalog.on_change(self.groups.on_change)

    def _follow_others(self, asker: Asker) -> None:
        """What they lead and this one is a replica of."""
        self.following = Following(
            self.local.context,
            asker,
            self.local.checkpoints,
            is_continued=self._begun.origin.is_continued,
            steady_ms=monotonic_ms,
            is_led=lambda key: (
                (shard := self.shards.get(key.shard_key)) is not None
                and unsealed_of_epoch(shard, key.epoch) is not None
            ),
            ended=lambda key: shard.ended if (shard := self.shards.get(key)) is not None else (),
            remote=self.remote_reads.committed,
            cold=self.remote_reads.cold,
            sealed=self._take_sealed,
            let_go_of=self._free_surplus,
            clear=self._clear,
            doubt_stop=self.local.flusher.doubt_stop,
        )
        self._taken.push_async_callback(self.following.close)
        self.following.begin()
        self.lost_copies = LostCopyReports(asker.node_id, self.catalog, self.shards, self.meta, self.following.stats)
        self._tasks.start(self.lost_copies.run())
        self.faulty_copies = FaultyCopies(
            asker.node_id,
            self.catalog,
            self.shards,
            self.meta,
            self.following.faulty,
            unsealable=lambda: self.local.sealing.damaged,
            unwritable=self.local.watch.unwritable,
            damaged=self.following.damaged,
        )
        self._tasks.start(self.faulty_copies.run())

    def _hold_mounts(self) -> None:
        """What the meta service gives to this node of those that were retired."""
        probe = DataSetProbe(self.catalog, self.store, self.remote_reads.cold, self.peer_reads, self.cluster_id)
        self._taken.push_async_callback(probe.close)
        self.mounts = MountHolding(self.meta, self.catalog, probe, self.settings.remote_upload_timeout_ms)
        self._tasks.start(self.mounts.run())

    def _help_leave(self) -> None:
        """Nodes that leave, this one among them."""
        for task in leaving_tasks(
            settings=self.settings,
            catalog=self.catalog,
            meta=self.meta,
            local=self.local,
            layout=self.layout,
            store=self.store,
            peers=self.peer_reads,
            cluster_id=self.cluster_id,
            led_shard=self._led_shard,
            steady_ms=monotonic_ms,
        ):
            self._tasks.start(task)

    def _take_sealed(self, segment: Segment, points: IndexPoints | None) -> None:
        shard = self.shards.get(segment.key.shard_key)
        if shard is not None:
            take_sealed(shard, segment, points)

    def _free_surplus(self, segment: Segment) -> None:
        """Others have proved as many copies as are asked for, and this one took the place of one of theirs."""
        shard = self.shards.get(segment.key.shard_key)
        copy = shard.copies.get(segment.epoch) if shard is not None else None
        if shard is not None and copy is not None and copy.key == segment.key:
            self._tasks.start(self.local.copies.free_local(shard, segment.key))

    async def _clear(self, key: SegmentKey) -> None:
        """What this node had of the segment and is to go, is gone then; also a damaged copy of what others have
        whole, once the service lists it here no more."""
        await self.local.context.removal.settle(key)
        shard = self.shards.get(key.shard_key)
        copy = shard.copies.get(key.epoch) if shard is not None else None
        if shard is not None and copy is not None and copy.key == key and copy.damage is not None:
            await self.local.copies.free_local(shard, key)

    def _led_shard(self, key: ShardKey) -> ShardLog | None:
        shard = self.shards.get(key)
        return shard if shard is not None and shard.is_leader and shard.stop is None else None

    # Running --------------------------------------------------------------------------------------------------------
    def ask_roll(self, key: ShardKey) -> bool:
        """End a shard's active segment; False when it is empty or not here."""
        shard = self.shards.get(key)
        return shard.ask_roll(self._clock_ms()) if shard is not None else False

    def roll_elsewhere(self, key: SegmentKey) -> bool:
        """End a segment with a successor chosen again; False when it is not the active one, or not led here."""
        shard, active = self._led_shard(key.shard_key), self.catalog.active_segment(key.shard_key)
        if shard is None or active is None or active.key != key:
            return False
        return roll_elsewhere(shard, active)

    def readiness(self) -> dict[str, str]:
        """What keeps this node from being ready, by name."""
        reasons = {"life": self.why_over} if self.why_over else {}
        disk = self.local.watch.trouble or self.local.context.gate.no_room
        if disk is not None:
            reasons["disk"] = disk
        return reasons

    # Stop -----------------------------------------------------------------------------------------------------------
    async def close(self) -> None:
        """Also of a node whose start failed. A step that fails keeps none of the others from being done."""
        await self._taken.aclose()

    def _add_metrics(self) -> None:
        metrics = self.metrics
        metrics.add("stratalog_loop", self.turn.stats)
        metrics.add("stratalog_kafka", self.server.stats)
        metrics.add("stratalog_quota", self.server.quotas.stats)
        metrics.add("stratalog_audit", self.audit.stats)
        if self.tls is not None:
            metrics.add("stratalog_tls", self.tls.stats)
        if any(one.is_sasl for one in self.settings.security_protocols.values()):
            metrics.add("stratalog_login", self.server.logins.stats)
            if self.server.logins.tokens is not None:
                metrics.add("stratalog_token", self.server.logins.tokens.stats)
        self.local.add_metrics(metrics)
        metrics.add("stratalog_catalog", self.catalog.stats)
        metrics.add("stratalog_groups", self.groups.stats)
        metrics.add("stratalog_replication", self.following.stats)
        add_lag_metrics(metrics, self.following, self.catalog)
        metrics.add("stratalog_peer_read", self.peer_reads.stats)
        metrics.add("stratalog_mounts", self.mounts.stats)
        self.tier.add_metrics(metrics)
        if self.remote_reads.cold is not None:
            metrics.add("stratalog_cold_read", self.remote_reads.cold.stats)
        measures = self.measures = NodeMeasures(
            metrics,
            most_series=self.settings.metrics_max_series,
            catalog=self.catalog,
            local=self.local,
            following=self.following,
            tier=self.tier,
            groups=self.groups,
            asker=self._asker,
            wall_ms=self._clock_ms,
        )
        self._taken.callback(measures.close)
        self._tasks.start(measures.history.run(), name="history")
