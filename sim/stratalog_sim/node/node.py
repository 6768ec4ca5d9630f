"""A node: the machine with its disk, and the process that lives there now.

`NodeLife` is the stand-in for the product's shell: registers, reads the metadata, restarts its shards, then serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.leading.chain_events import SegmentEventReceived
from stratalog.machines.leading.disk_health import CallInProgress, DiskCall, DiskHealth
from stratalog.machines.leading.leader_events import NodeUpdated, RecordReceived, RollPolicy, SegmentRecord
from stratalog.machines.leading.resigning import must_resign
from stratalog.machines.leading.shard_life import Life as ShardLife
from stratalog.machines.tiering.retention import RetentionLimits
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import Fenced, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, NodeInfo, Vitals
from stratalog.model.mounts import Mount
from stratalog_sim.environment.disk import Disk
from stratalog_sim.environment.process import Ask, Request, Sleep, Task
from stratalog_sim.judging.judge import Judge
from stratalog_sim.node.following import Following
from stratalog_sim.node.reporting import Reporting
from stratalog_sim.node.restart import ShardStart
from stratalog_sim.node.retention import Retaining
from stratalog_sim.node.rounds import ReplicaRound
from stratalog_sim.node.serving import Fetch, PeerRead, Produce, Serving
from stratalog_sim.node.shard import LeadingNode, ShardShell
from stratalog_sim.node.shell import META_TIMEOUT_MS
from stratalog_sim.node.sweeping import Sweeping
from stratalog_sim.node.uploads import Uploads
from stratalog_sim.service.meta import LEASE_MS, STALL_MS, Heartbeat, Watch

_RETRY_MS = 100
_BACKGROUND_MS = 700
_WATCH_MS = 900


class NodeLife(LeadingNode):
    """One process. It ends by `is_alive`; whatever it asked for may still happen."""

    following: Following

    def __init__(
        self,
        node_id: int,
        disk: Disk,
        judge: Judge,
        *,
        start_id: str,
        retention: RetentionLimits,
        policy: RollPolicy,
        restart: Callable[[], None],
        refused: Callable[[], object],
        rack: str | None = None,
        **place: Any,
    ) -> None:
        super().__init__(node_id, disk, judge, **place)
        self.shards = {}
        self.uploads = Uploads(self)
        self.is_serving = False
        self._start_id = start_id
        self._rack = rack
        self._refused = refused
        self._retaining = Retaining(self, retention)
        self._policy = policy
        self._health = DiskHealth(STALL_MS)
        self._restart = restart
        self._dirty: dict[SegmentKey, ShardKey] = {}
        self.following = Following(self)
        self._serving = Serving(self)
        self._lives: dict[int, tuple[int, bool, bool]] = {}
        """Of other nodes, as last heard."""
        self._mounts: dict[str, Mount] = {}

    def begin(self) -> None:
        self.spawn(self._start())

    # Start and stop ---------------------------------------------------------------------------------------------------
    def _start(self) -> Task:
        storage_id = f"storage-{self.node_id}-{self.disk.storage}"
        info = NodeInfo(self.node_id, storage_id, f"node-{self.node_id}", 9092, self._rack)
        past = self.disk.note_start(self._start_id)
        while True:
            try:
                registration = yield self.ask_meta(self._registration(info, past))
                self.disk.note_life(self._start_id)
                self.following.is_continued = registration.is_continued
                self.life = Life(self.node_id, registration.node_epoch)
                self.token = registration.token
                news = yield Ask("meta", Watch(-1), META_TIMEOUT_MS)
                self.view.take(news)
                if self.view.version >= 0:
                    break
            except Fenced as refusal:
                self.tell("is refused:", refusal)
                self._refused()
                return
            except StratalogError:
                yield Sleep(_RETRY_MS)
        clean, self.disk.clean = self.disk.clean, None
        doubted = clean[1] if clean is not None and clean[0] == self.life.epoch - 1 else None
        self.tell(f"begins life {self.life.epoch}{'' if doubted is None else ', after a clean stop'}")
        is_same_boot = self.disk.booted in ((0, 0), (self.disk.storage, self.disk.boot))
        self.following.is_tail_kept = doubted is not None or is_same_boot
        self.disk.booted = (self.disk.storage, self.disk.boot)
        self._attach()
        for segment_key, file in list(self.disk.files.items()):
            if file.is_ahead or (self.view.segment(segment_key) is None and self.is_shared(segment_key)):
                # A roll that was not confirmed, or a deleted segment: nothing of it was acknowledged. By now another
                # node may have opened the segment: what was written ahead here is not a prefix of that one.
                self.disk.remove(segment_key)
        for key, shard in self.shards.items():
            ShardStart(shard, None if doubted is None else doubted.get(key, -1)).begin()
        self.is_serving = True
        for key in self.shards:
            for segment in self.view.segments(key):
                self.following.look_at(segment.key)
        self.spawn(self._send_heartbeats())
        if self.has_store:
            self.uploads.begin()
            self.spawn(Sweeping(self, self.uploads).run())
        self.spawn(self._follow_watch())
        self.spawn(self._work_beside())
        self.spawn(Reporting(self).run())

    def _registration(self, info: NodeInfo, past: tuple[str, ...]) -> commands.RegisterNode:
        disk = self.disk
        boot_id = f"boot-{disk.storage}-{disk.boot}"
        stopped = disk.clean[0] if disk.clean is not None else 0
        seat = f"{boot_id}/{disk.place}"
        return commands.RegisterNode(
            info, self._start_id, boot_id, stopped_epoch=stopped, earlier_starts=past, seat=seat
        )

    def _attach(self) -> None:
        for key in self.view.shards:
            if key not in self.shards and any(self.node_id in one.replicas for one in self.view.segments(key)):
                policy = self._policy_of(key.topic_id)
                self.shards[key] = ShardShell(self, key, policy, is_fsync=self.is_fsync(key.topic_id))

    def _policy_of(self, topic_id: UUID) -> RollPolicy:
        if self.view.topics[topic_id].is_internal:
            return replace(self._policy, min_insync_replicas=2, spares_one=True)
        if not is_quorum(self.view.topics[topic_id].settings):
            return self._policy
        return replace(self._policy, min_insync_replicas=1, is_quorum=True)

    def stop_in_order(self) -> None:
        """Everything flushed, noted, and gone."""
        is_whole = self.is_serving and all(shard.chain.life is not ShardLife.HEALING for shard in self.shards.values())
        for key in list(self.disk.files):
            is_whole = self.disk.flush(key) and is_whole
        if is_whole:
            for key in list(self._dirty):
                self.shards[self._dirty[key]].checkpoint(key)
            doubted = {key: shard.chain.doubted_epoch for key, shard in self.shards.items()}
            self.disk.touch()
            self.disk.clean = (self.life.epoch, doubted)
        self.is_alive = False

    def _follow_watch(self) -> Task:
        while True:
            try:
                news = yield Ask("meta", Watch(self.view.version), _WATCH_MS)
            except StratalogError:
                continue
            self._heard_service_ms = self.scheduler.now_ms
            changed = self.view.take(news)
            known = self.view.nodes.get(self.node_id)
            if known is not None and known.life.epoch > self.life.epoch:
                self.tell("hears that another life of it began: it ends")
                self._restart()
                return
            before = set(self.shards)
            self._attach()
            for key, shard in self.shards.items():
                if key not in before:
                    ShardStart(shard, -1).begin()
            self._look_at_lives()
            for segment in changed:
                self._changed(segment)

    def _changed(self, key: SegmentKey) -> None:
        shard, segment = self.shards.get(key.shard_key), self.view.segment(key)
        if shard is not None and segment is not None:
            shard.step(SegmentEventReceived(key.epoch, RecordReceived(SegmentRecord.of(segment))))
            if must_resign(shard.chain, segment, self.view.active(key.shard_key)):
                self.following.resign(key.shard_key)
            shard.chain.learn_committed(self.view.segments(key.shard_key)[-1])
        self.following.look_at(key)
        self.following.moved(key)
        if segment is None and key in self.disk.files and self.is_shared(key):
            self.judge.freed(self.node_id, key)
            self.disk.remove(key)
        if self.has_store:
            self.uploads.look_at(key)

    # Replicas -------------------------------------------------------------------------------------------------------
    def _send_heartbeats(self) -> Task:
        while True:
            begun_ms = self.scheduler.now_ms
            try:
                yield Ask("meta", Heartbeat(self.life, self._vitals(), self._can_write()), LEASE_MS // 4)
                self._heard_service_ms = self.scheduler.now_ms
                self.heard_by_service_ms = max(self.heard_by_service_ms, begun_ms)
            except Fenced:
                self.tell("hears that another life of it began: it ends")
                self._restart()
                return
            except StratalogError:
                continue
            yield Sleep(LEASE_MS // 4)

    def _can_write(self) -> bool:
        """By what its flushes and probes show: they are under way all the time."""
        disk, now_ms = self.disk, self.scheduler.now_ms
        hung = CallInProgress(DiskCall.FLUSH, "a file", disk.hung_since_ms) if disk.hangs_until_ms > now_ms else None
        if hung is None and not disk.is_full:
            self._health.succeeded(DiskCall.WRITE, now_ms)
            self._health.succeeded(DiskCall.FLUSH, now_ms)
            self._health.succeeded(DiskCall.READ, now_ms)
        self._health.check(hung, "full" if disk.is_full else None, now_ms)
        return self._health.trouble is None

    def _vitals(self) -> Vitals:
        """A disk with room: how full it is nothing here depends on."""
        away_ms = self.uploads.store_away_ms if any(one.is_leaving for one in self.view.nodes.values()) else 0
        return Vitals(1 << 40, 1 << 40, self.has_store, away_ms)

    def _look_at_lives(self) -> None:
        """Duties pass on with the change that tells of a death, and of a return."""
        is_other = self._mounts != self.view.mounts
        self._mounts = dict(self.view.mounts)
        for node_id, node in self.view.nodes.items():
            heard = node.epoch, node.is_alive, node.can_write
            if self._lives.get(node_id) != heard:
                self._lives[node_id] = heard
                is_other = True
                for shard in self.shards.values():
                    shard.step(NodeUpdated(node_id, *heard))
        if is_other and self.has_store:
            self.uploads.look_at_all()

    # Background ---------------------------------------------------------------------------------------------------
    def note_dirty(self, shard_key: ShardKey, key: SegmentKey) -> None:
        self._dirty[key] = shard_key

    def committed_grew(self, key: ShardKey, epoch: int) -> None:
        shard = self.view.shards.get(key) if self.has_store else None
        segment = shard.segments.get(epoch) if shard is not None else None
        if segment is not None:
            self.uploads.grew(segment.key)

    def _work_beside(self) -> Task:
        """Flushes, checkpoints, ages, retention."""
        while True:
            yield self.disk_work(_BACKGROUND_MS + self.scheduler.rng.randrange(200))
            dirty, self._dirty = self._dirty, {}
            for key, shard_key in dirty.items():
                self.shards[shard_key].checkpoint(key)
            for shard in list(self.shards.values()):
                shard.look_at_age()
                if self.has_store:
                    yield from self._retaining.retain(shard)
            if self.has_store:
                yield from self._retaining.delete()

    # Clients --------------------------------------------------------------------------------------------------------
    def asked(self, sender: str, request: Request) -> None:
        if not self.is_serving:
            return
        match request.what:
            case Produce():
                self._serving.take_batches(sender, request, request.what)
            case ReplicaRound():
                self.following.sessions.asked(sender, request, request.what)
            case Fetch():
                self._serving.read(sender, request, request.what)
            case PeerRead():
                self._serving.read_for_peer(sender, request, request.what)
            case _:
                raise AssertionError(f"{request.what} is nothing for a node")
