"""A node: the machine with its disk, and the process that lives there now.

`NodeLife` is the stand-in for the product's shell: registers, reads the metadata, restarts its shards, then serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stratalog.machines.chain_events import SegmentHeard
from stratalog.machines.follower_events import CopyFilled, FlushLost, Refusal
from stratalog.machines.leader_events import (
    FollowerFetched,
    NodeHeard,
    OfferedBatch,
    RecordHeard,
    RollPolicy,
    SegmentRecord,
)
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.restart_events import Producers
from stratalog.machines.retention import RetentionLimits, expired, local_copies_to_free
from stratalog.machines.shard_life import Life as ShardLife
from stratalog.machines.upload_duty import uploader_of
from stratalog.model import commands
from stratalog.model.append import AppendFailure
from stratalog.model.errors import Fenced, NotFound, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.segment import RemoteState, SealRecord, Segment, SegmentState
from stratalog_sim.disk import Batch, Disk
from stratalog_sim.judge import Judge
from stratalog_sim.meta import LEASE_MS, Deleted, Heartbeat, Perform, Watch
from stratalog_sim.process import Answer, Ask, Process, Request, Sleep, Task
from stratalog_sim.replica import ReplicaFetch, ReplicaFetched, ReplicaShell
from stratalog_sim.restart import ShardStart, header_of
from stratalog_sim.shard import Offer, ShardShell
from stratalog_sim.store import Delete, Get, StoredManifest
from stratalog_sim.uploads import Uploads
from stratalog_sim.view import View

_META_TIMEOUT_MS = 300
_RETRY_MS = 100
_BACKGROUND_MS = 700
_WATCH_MS = 900


@dataclass(frozen=True, slots=True)
class Produce:
    shard: ShardKey
    batches: tuple[tuple[str, int, int, int, int, int, int], ...]
    """Value, records, bytes, producer, its epoch, sequence, acks."""

    def __str__(self) -> str:
        return f"produce {' '.join(batch[0] for batch in self.batches)} to shard {self.shard.shard}"


@dataclass(frozen=True, slots=True)
class Fetch:
    """Of a consumer."""

    shard: ShardKey
    offset: int
    epoch: int = -1
    """Of the newest batch that it knows: who knows of none so new is no leader."""

    def __str__(self) -> str:
        return f"fetch shard {self.shard.shard} from {self.offset}"


@dataclass(frozen=True, slots=True)
class Fetched:
    batches: tuple[Batch, ...]
    high_watermark: int
    log_start_offset: int
    error: str = ""
    """`not leader`, `out of range`, `again`."""

    def __str__(self) -> str:
        return f"{self.error or ' '.join(map(str, self.batches)) or 'nothing'} hw {self.high_watermark}"


class NodeLife(Process):
    """One process. It ends by `is_alive`; whatever it asked for may still happen."""

    def __init__(
        self,
        node_id: int,
        disk: Disk,
        judge: Judge,
        *,
        start_id: str,
        has_store: bool,
        retention: RetentionLimits,
        policy: RollPolicy,
        clock_ms: Callable[[], int],
        tell: Callable[..., None],
        restart: Callable[[], None],
        **place: Any,
    ) -> None:
        super().__init__(f"node-{node_id}", **place)
        self.node_id = node_id
        self.disk = disk
        self.judge = judge
        self.tell = tell
        self.view = View()
        self.life = Life(node_id, 0)
        self.shards: dict[ShardKey, ShardShell] = {}
        self.uploads = Uploads(self)
        self.is_serving = False
        self._start_id = start_id
        self._has_store = has_store
        self._retention = retention
        self.policy = policy
        self._clock_ms = clock_ms
        self._restart = restart
        self._dirty: dict[SegmentKey, ShardShell] = {}
        self.led: dict[SegmentKey, None] = {}
        """In this life: it never begins to lead one of them anew."""
        self.replicas: dict[SegmentKey, ReplicaShell] = {}
        """Segments that this node follows."""
        self.token = 0
        self._is_tail_kept = False
        self._heard_service_ms = -1_000_000
        self._lives: dict[int, tuple[int, bool]] = {}
        """Of other nodes, as last heard."""

    @property
    def now_ms(self) -> int:
        return self._clock_ms()

    def begin(self) -> None:
        self.spawn(self._start())

    def ask_meta(self, command: commands.Command[Any]) -> Ask:
        if isinstance(command, commands.NodeCommand):
            command = replace(command, caller=self.life)
        return Ask("meta", Perform(command), _META_TIMEOUT_MS)

    # Start and stop ---------------------------------------------------------------------------------------------------
    def _start(self) -> Task:
        info = NodeInfo(self.node_id, f"storage-{self.node_id}-{self.disk.storage}", f"node-{self.node_id}", 9092)
        while True:
            try:
                was_stopped = self.disk.clean is not None
                boot_id = f"boot-{self.disk.storage}-{self.disk.boot}"
                register = commands.RegisterNode(info, self._start_id, boot_id, was_stopped)
                registration = yield self.ask_meta(register)
                self.life = Life(self.node_id, registration.node_epoch)
                self.token = registration.token
                news = yield Ask("meta", Watch(-1), _META_TIMEOUT_MS)
                self.view.take(news)
                if self.view.version >= 0:
                    break
            except StratalogError:
                yield Sleep(_RETRY_MS)
        clean, self.disk.clean = self.disk.clean, None
        doubted = clean[1] if clean is not None and clean[0] == self.life.epoch - 1 else None
        self.tell(f"begins life {self.life.epoch}{'' if doubted is None else ', after a clean stop'}")
        is_same_boot = self.disk.booted in ((0, 0), (self.disk.storage, self.disk.boot))
        self._is_tail_kept = doubted is not None or is_same_boot
        self.disk.booted = (self.disk.storage, self.disk.boot)
        self._attach()
        for segment_key in [key for key in self.disk.files if self.is_shared(key) and self.view.segment(key) is None]:
            self.disk.remove(segment_key)  # a roll that nobody confirmed, or deleted: nothing of it was acknowledged
        for key, shard in self.shards.items():
            ShardStart(shard, None if doubted is None else doubted.get(key, -1)).begin()
        self.is_serving = True
        for key in self.shards:
            for segment in self.view.segments(key):
                self._follow(segment.key)
        self.spawn(self._send_heartbeats())
        if self._has_store:
            self.uploads.begin()
        self.spawn(self._follow_watch())
        self.spawn(self._work_beside())

    def _attach(self) -> None:
        for key in self.view.shards:
            if key not in self.shards and any(self.node_id in one.replicas for one in self.view.segments(key)):
                topic = self.view.topics[key.topic_id]
                is_fsync = topic.settings.get("flush.policy") == "fsync"
                self.shards[key] = ShardShell(self, key, self.policy, is_fsync=is_fsync)

    def stop_in_order(self) -> None:
        """Everything flushed, noted, and gone."""
        is_whole = self.is_serving and all(shard.chain.life is not ShardLife.HEALING for shard in self.shards.values())
        for key in list(self.disk.files):
            is_whole = self.disk.flush(key) and is_whole
        if is_whole:
            for key in list(self._dirty):
                self._dirty[key].checkpoint(key)
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
            shard.step(SegmentHeard(key.epoch, RecordHeard(SegmentRecord.of(segment))))
        self._follow(key)
        if segment is None and key in self.disk.files and self.is_shared(key):
            self.judge.freed(self.node_id, key)
            self.disk.remove(key)
        if self._has_store:
            self.uploads.look_at(key)

    # Replicas -------------------------------------------------------------------------------------------------------
    @property
    def has_service(self) -> bool:
        """The meta service answered within the last lease."""
        return self.scheduler.now_ms - self._heard_service_ms < 2 * LEASE_MS

    def is_shared(self, key: SegmentKey) -> bool:
        """Whether others have a say in it. One of a single replica, by intention or because nobody else lived when it
        was opened, goes on as on a node alone, and so does what was rolled into behind it."""
        segment = self.view.segment(key)
        if segment is None:
            before = [one for one in self.view.segments(key.shard_key) if one.epoch < key.epoch]
            segment = before[-1] if before else None
        if segment is not None:
            return len(segment.replicas) > 1
        topic = self.view.topics.get(key.topic_id)
        return topic is not None and topic.replication_factor > 1

    def _send_heartbeats(self) -> Task:
        while True:
            try:
                yield Ask("meta", Heartbeat(self.life), LEASE_MS // 4)
                self._heard_service_ms = self.scheduler.now_ms
            except Fenced:
                self.tell("hears that another life of it began: it ends")
                self._restart()
                return
            except StratalogError:
                continue
            yield Sleep(LEASE_MS // 4)

    def _look_at_lives(self) -> None:
        for node_id, node in self.view.nodes.items():
            if self._lives.get(node_id) != (node.epoch, node.is_alive):
                self._lives[node_id] = (node.epoch, node.is_alive)
                for shard in self.shards.values():
                    shard.step(NodeHeard(node_id, node.epoch, node.is_alive))

    def leads(self, key: SegmentKey) -> bool:
        """Its chain does, as far as it knows."""
        shard = self.shards.get(key.shard_key)
        if shard is None:
            return False
        return any(one.key == key for one in [*shard.chain.ended, *filter(None, [shard.chain.active])])

    def _follow(self, key: SegmentKey) -> None:
        """Follow it, go on following it, or end that, as its record says."""
        segment, replica = self.view.segment(key), self.replicas.get(key)
        if not self.is_shared(key):
            return
        if replica is None:
            if segment is None or self.node_id not in segment.replicas or self.leads(key):
                return
            is_over = segment.seal is not None and self.node_id in segment.local_nodes
            is_mine = segment.leader == self.node_id
            if is_over or (is_mine and segment.state is SegmentState.ACTIVE):
                return
            if segment.seal is not None and segment.remote.state is RemoteState.COMPLETE:
                return
            topic = self.view.topics[key.topic_id]
            is_fsync = topic.settings.get("flush.policy") == "fsync"
            replica = ReplicaShell(self, key, is_fsync=is_fsync, is_tail_whole=self._is_tail_kept)
            self.replicas[key] = replica
        replica.heard(segment)
        if segment is None or replica.is_gone:
            self.replicas.pop(key, None)
            return

    def fill(self, replica: ReplicaShell, end: int) -> Task:
        """Of the source of a recovery: what it lacks below the end comes from the object store, and what is not there
        was given up: a batch without records stands for it."""
        key = replica.key
        segment = self.view.segment(key)
        if segment is None:
            return
        file = self.disk.files.get(key)
        whole = file.whole(key) if file is not None else []
        at = whole[-1].end_offset if whole else key.base_offset
        found: list[Batch] = []
        for part in segment.remote.parts:
            while part.end_offset > at:
                try:
                    body = yield Ask("store", Get(part.object_key))
                    break
                except StratalogError:
                    yield Sleep(_RETRY_MS)
            else:
                continue
            more = [one for stored in body if stored.key == key for one in stored.batches if one.base_offset >= at]
            found += more
            at = more[-1].end_offset if more else at
        if at < end:
            found.append(Batch(at, end - at, key.epoch, f"~{key.epoch}.{at}", 10))
        while self.disk.is_full:
            yield Sleep(_RETRY_MS)
        now = self.view.segment(key)
        if now is None or self.replicas.get(key) is not replica:
            return
        if now.handed.source != self.node_id or now.seal is not None:
            replica.step(CopyFilled(replica.machine.end_offset))
            return
        if key not in self.disk.files:
            self.disk.make(key)
        self.disk.append(key, found)
        if not self.disk.flush(key):
            replica.step(FlushLost("the disk lost a page"))
            return
        self.tell("fills", key, f"up to {end}")
        replica.step(CopyFilled(end))

    def deposed(self, key: ShardKey) -> None:
        """What the shard's chain led others seal: this node is one of the replicas now; what it opened and nobody knows
        goes."""
        shard = self.shards[key]
        for one in [*shard.chain.ended, *filter(None, [shard.chain.active])]:
            listed = self.view.segment(one.key)
            if (not one.is_confirmed and self.is_shared(one.key) and one.key in self.disk.files) or (
                listed is None and self.is_shared(one.key) and one.key in self.disk.files
            ):
                self.disk.remove(one.key)
        if self.view.topics[key.topic_id].replication_factor == 1:
            return
        self.shards[key] = ShardShell(self, key, self.policy, is_fsync=shard.is_fsync)
        for segment in self.view.segments(key):
            self._follow(segment.key)

    def producers_before(self, segment: Segment) -> Producers | None:
        """At the segment's base: what the seal record before it says. None: it is not sealed yet, so nobody knows, and
        what it holds is not safe to be acknowledged again."""
        before = [one for one in self.view.segments(segment.key.shard_key) if one.epoch < segment.epoch]
        if not before:
            return ()
        if any(one.fence and one.seal is None for one in before):
            return None
        return before[-1].seal.producers if before[-1].seal is not None else None

    def _producers_told(self, segment: Segment) -> Producers | None:
        """The same for a report, from copies where there is no seal yet: they are compared before they count."""
        known: Producers = ()
        for before in self.view.segments(segment.key.shard_key):
            if before.epoch >= segment.epoch:
                break
            if before.seal is not None:
                known = before.seal.producers
                continue
            file = self.disk.files.get(before.key)
            whole = file.whole(before.key) if file is not None else []
            end = whole[-1].end_offset if whole else before.base_offset
            if before.end_offset is None or end < before.end_offset:
                return None
            table = ProducerTable(known)
            for batch in whole:
                if batch.end_offset <= before.end_offset:
                    table.replay(header_of(batch), self.now_ms)
            known = table.snapshot()
        return known

    def proof_of(self, key: SegmentKey, end_offset: int, size_bytes: int, digest: bytes) -> SealRecord | None:
        """A report on a copy. None: what producers wrote before it is not known yet."""
        segment = self.view.segment(key)
        if segment is None:
            return None
        before = self._producers_told(segment)
        if before is None:
            return None
        table = ProducerTable(before)
        file = self.disk.files.get(key)
        for batch in file.whole(key) if file is not None else []:
            table.replay(header_of(batch), self.now_ms)
        times = self.now_ms if size_bytes else -1
        return SealRecord(
            key.epoch,
            key.base_offset,
            end_offset,
            times,
            times,
            size_bytes,
            digest,
            table.snapshot(),
            (self.node_id,),
            self.now_ms,
        )

    def committed_grew_of(self, key: SegmentKey) -> None:
        if self._has_store:
            self.uploads.grew(key)

    def _answer_replica(self, sender: str, request: Request, fetch: ReplicaFetch) -> None:
        """Of a leader to its followers, and of who holds a segment that ended to those that lack some of it."""
        known, shard = self.view.nodes.get(fetch.node_id), self.shards.get(fetch.key.shard_key)
        segment = self.view.segment(fetch.key)
        file = self.disk.files.get(fetch.key)
        if known is None or known.epoch != fetch.life_epoch or known.token != fetch.token or shard is None:
            self.reply(sender, request, ReplicaFetched((), 0, Refusal.NOT_NOW))
            return
        leaders = [*shard.chain.ended, *filter(None, [shard.chain.active])]
        leader = next((one for one in leaders if one.key == fetch.key), None)
        if leader is not None and (shard.chain.stop is None or not shard.chain.stop.ends_leading):
            if fetch.offset > leader.end_offset:
                self.reply(sender, request, ReplicaFetched((), leader.high_watermark, Refusal.ENDS_BEFORE))
                return
            shard.step(SegmentHeard(fetch.key.epoch, FollowerFetched(fetch.node_id, fetch.offset, fetch.life_epoch)))
            end, high = leader.end_offset, leader.high_watermark
        elif segment is not None and segment.end_offset is not None:
            end, high = segment.end_offset, fetch.key.base_offset
        else:
            self.reply(sender, request, ReplicaFetched((), 0, Refusal.NOT_NOW))
            return
        whole = file.whole(fetch.key) if file is not None else []
        batches = [b for b in whole if b.base_offset >= fetch.offset and b.end_offset <= end]
        if not batches and leader is None and fetch.offset < end:
            self.reply(sender, request, ReplicaFetched((), 0, Refusal.NOT_NOW))
            return
        most = 1 + self.scheduler.rng.randrange(3)
        self.reply(sender, request, ReplicaFetched(tuple(batches[:most]), high))

    # Background ---------------------------------------------------------------------------------------------------
    def note_dirty(self, shard: ShardShell, key: SegmentKey) -> None:
        self._dirty[key] = shard

    def committed_grew(self, shard: ShardShell, epoch: int) -> None:
        if not self._has_store:
            return
        for segment in self.view.segments(shard.key):
            if segment.epoch == epoch:
                self.uploads.grew(segment.key)

    def _work_beside(self) -> Task:
        """Flushes, checkpoints, ages, retention."""
        while True:
            yield Sleep(_BACKGROUND_MS + self.scheduler.rng.randrange(200))
            dirty, self._dirty = self._dirty, {}
            for key, shard in dirty.items():
                shard.checkpoint(key)
            for shard in list(self.shards.values()):
                shard.look_at_age()
                if self._has_store:
                    yield from self._retain(shard)
            if self._has_store:
                yield from self._delete()

    def _retain(self, shard: ShardShell) -> Task:
        segments = self.view.segments(shard.key)
        active_bytes = sum(leader.size_bytes for leader in [*shard.chain.ended, *filter(None, [shard.chain.active])])
        move = expired(segments, active_bytes, self._retention, self.now_ms)
        is_leader = bool(segments) and segments[-1].leader == self.node_id
        if is_leader and move is not None and move.offset > self.view.log_start(shard.key):
            try:
                yield self.ask_meta(commands.AdvanceLogStart(shard.key, move.offset))
            except StratalogError:
                return
        freed = local_copies_to_free(
            [one for one in self.view.segments(shard.key) if self.node_id in one.local_nodes],
            lambda key: key in self.disk.files,
            active_bytes,
            self._retention,
            self.now_ms,
        )
        for one in freed:
            try:
                yield self.ask_meta(commands.ForgetLocal((one.key,), self.node_id))
            except StratalogError:
                continue
            if one.key in self.disk.files:
                self.judge.freed(self.node_id, one.key)
                self.tell(f"frees its copy of epoch {one.key.epoch}: {one.reason}")
                self.disk.remove(one.key)

    def _delete(self) -> Task:
        """Files and objects of DELETED segments, then their metadata."""
        try:
            deleted = yield Ask("meta", Deleted(), _META_TIMEOUT_MS)
        except StratalogError:
            return
        for segment in deleted:
            if not self.uploads_segment(segment) or self.scheduler.rng.random() < 0.5:
                continue
            keys = [part.object_key for part in segment.remote.parts if not part.object_key.startswith("bundle")]
            try:
                if segment.remote.manifest_key is not None:
                    manifest = yield Ask("store", Get(segment.remote.manifest_key))
                    if isinstance(manifest, StoredManifest):
                        keys += [segment.remote.manifest_key, *manifest.parts]
                for key in keys:
                    self.judge.deleted_object(key)
                    yield Ask("store", Delete(key))
                if segment.key in self.disk.files:
                    self.judge.freed(self.node_id, segment.key)
                    self.disk.remove(segment.key)
                yield self.ask_meta(commands.PurgeSegments((segment.key,)))
            except NotFound:
                continue
            except StratalogError:
                return

    def uploads_segment(self, segment: Segment) -> bool:
        def is_alive(node_id: int) -> bool:
            known = self.view.nodes.get(node_id)
            return known is not None and known.is_alive

        return uploader_of(segment, is_alive) == self.node_id

    # Clients --------------------------------------------------------------------------------------------------------
    def asked(self, sender: str, request: Request) -> None:
        if not self.is_serving:
            return
        match request.what:
            case Produce():
                self._take_batches(sender, request, request.what)
            case ReplicaFetch():
                self._answer_replica(sender, request, request.what)
            case Fetch():
                self._serve(sender, request, request.what)
            case _:
                raise AssertionError(f"{request.what} is nothing for a node")

    def reply(self, sender: str, request: Request, what: Any) -> None:
        self.network.send(self.name, sender, Answer(request.number, what))

    def _take_batches(self, sender: str, request: Request, produce: Produce) -> None:
        shard = self.shards.get(produce.shard)
        if shard is None:
            self.reply(sender, request, tuple(AppendFailure.NOT_LEADER for _ in produce.batches))
            return
        offer = Offer(sender, request, [None] * len(produce.batches))
        shard.offer(
            [
                OfferedBatch(value, size, count, self.now_ms, producer, epoch, sequence, acks, offer, slot)
                for slot, (value, count, size, producer, epoch, sequence, acks) in enumerate(produce.batches)
            ]
        )

    def _serve(self, sender: str, request: Request, fetch: Fetch) -> None:
        shard = self.shards.get(fetch.shard)
        if shard is None:
            self.reply(sender, request, Fetched((), -1, 0, "not leader"))
            return
        start, active = self.view.log_start(fetch.shard), self.view.active(fetch.shard)
        is_leader = active is not None and active.leader == self.node_id
        if not is_leader:
            self._serve_copy(sender, request, fetch, start)
            return
        high = shard.chain.high_watermark
        if active is not None and is_leader:
            # What a recovery found counts once it is sealed.
            open_ends = [one.base_offset for one in self.view.segments(fetch.shard) if one.fence and one.seal is None]
            high = max(high, min([active.base_offset, *open_ends]))
        listed = active.epoch if active is not None else -1
        is_stale = shard.chain.compare_epoch(fetch.epoch, listed) > 0 or shard.chain.active is None
        if fetch.offset > high and is_stale:
            self.reply(sender, request, Fetched((), high, start, "again"))
            return
        if fetch.offset < start or (fetch.offset > high and shard.chain.is_end_known):
            self.reply(sender, request, Fetched((), high, start, "out of range"))
            return
        if fetch.offset >= high:
            self.reply(sender, request, Fetched((), high, start, "" if shard.chain.is_end_known else "again"))
            return
        key = self._holds(shard, fetch.offset)
        if key is not None:
            batches = shard.committed_batches(key, fetch.offset)
            if batches and batches[0].base_offset <= fetch.offset:
                self.reply(sender, request, Fetched(tuple(batches[:4]), high, start))
                return
        self.spawn(self._serve_cold(sender, request, fetch, high, start))

    def _serve_copy(self, sender: str, request: Request, fetch: Fetch, start: int) -> None:
        """What this node holds of what others lead."""
        for segment in self.view.segments(fetch.shard):
            if segment.base_offset <= fetch.offset and (
                segment.end_offset is None or fetch.offset < segment.end_offset
            ):
                batches = self.shards[fetch.shard].committed_batches(segment.key, fetch.offset - 2)
                found = [one for one in batches if one.end_offset > fetch.offset]
                if found and found[0].base_offset <= fetch.offset:
                    self.reply(sender, request, Fetched(tuple(found[:4]), -1, start))
                    return
        self.reply(sender, request, Fetched((), -1, start, "not leader"))

    def _holds(self, shard: ShardShell, offset: int) -> SegmentKey | None:
        """The local segment with that offset."""
        for leader in [*shard.chain.ended, *filter(None, [shard.chain.active])]:
            if leader.key.base_offset <= offset < leader.end_offset:
                return leader.key
        for segment in self.view.segments(shard.key):
            is_here = segment.state is SegmentState.SEALED and segment.key in self.disk.files
            if is_here and segment.base_offset <= offset < (segment.end_offset or 0):
                return segment.key
        return None

    def _serve_cold(self, sender: str, request: Request, fetch: Fetch, high: int, start: int) -> Task:
        """From the object store."""
        again = Fetched((), high, start, "again")
        for segment in self.view.segments(fetch.shard):
            if not segment.base_offset <= fetch.offset < segment.remote.commit_offset:
                continue
            keys = [part.object_key for part in segment.remote.parts]
            try:
                if segment.remote.manifest_key is not None:
                    manifest = yield Ask("store", Get(segment.remote.manifest_key))
                    keys = list(manifest.parts)
                for key in keys:
                    body = yield Ask("store", Get(key))
                    for part in body:
                        if part.key == segment.key and part.batches[0].base_offset <= fetch.offset:
                            found = [b for b in part.batches if b.end_offset > fetch.offset]
                            if found:
                                self.reply(sender, request, Fetched(tuple(found[:4]), high, start))
                                return
            except StratalogError:
                break
        self.reply(sender, request, again)
