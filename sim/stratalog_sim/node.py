"""A node: the machine with its disk, and the process that lives there now.

`NodeLife` is the stand-in for the product's shell: registers, reads the metadata, restarts its shards, then serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stratalog.machines.leader_events import OfferedBatch, RollPolicy
from stratalog.machines.retention import RetentionLimits, expired, local_copies_to_free
from stratalog.machines.shard_life import Life as ShardLife
from stratalog.machines.upload_duty import uploader_of
from stratalog.model import commands
from stratalog.model.append import AppendFailure
from stratalog.model.errors import NotFound, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.segment import Segment, SegmentState
from stratalog_sim.disk import Batch, Disk
from stratalog_sim.judge import Judge
from stratalog_sim.meta import Deleted, Perform, Watch
from stratalog_sim.process import Answer, Ask, Process, Request, Sleep, Task
from stratalog_sim.restart import ShardStart
from stratalog_sim.shard import Offer, ShardShell
from stratalog_sim.store import Delete, Get, StoredManifest
from stratalog_sim.uploads import Uploads
from stratalog_sim.view import View

_META_TIMEOUT_MS = 300
_RETRY_MS = 100
_BACKGROUND_MS = 700
_WATCH_MS = 900
POLICY = RollPolicy(segment_bytes=120, segment_ms=4_000)


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
        self._clock_ms = clock_ms
        self._restart = restart
        self._dirty: dict[SegmentKey, ShardShell] = {}
        self._freeing: dict[SegmentKey, None] = {}

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
                registration = yield self.ask_meta(commands.RegisterNode(info, self._start_id))
                self.life = Life(self.node_id, registration.node_epoch)
                news = yield Ask("meta", Watch(-1), _META_TIMEOUT_MS)
                self.view.take(news)
                if self.view.version >= 0:
                    break
            except StratalogError:
                yield Sleep(_RETRY_MS)
        clean, self.disk.clean = self.disk.clean, None
        doubted = clean[1] if clean is not None and clean[0] == self.life.epoch - 1 else None
        self.tell(f"begins life {self.life.epoch}{'' if doubted is None else ', after a clean stop'}")
        self._attach()
        for key, shard in self.shards.items():
            ShardStart(shard, None if doubted is None else doubted.get(key, -1)).begin()
        self.is_serving = True
        if self._has_store:
            self.uploads.begin()
        self.spawn(self._follow_watch())
        self.spawn(self._work_beside())

    def _attach(self) -> None:
        for key in self.view.shards:
            if key not in self.shards and any(self.node_id in one.replicas for one in self.view.segments(key)):
                topic = self.view.topics[key.topic_id]
                is_fsync = topic.settings.get("flush.policy") == "fsync"
                self.shards[key] = ShardShell(self, key, POLICY, is_fsync=is_fsync)

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
            for segment in changed:
                self._changed(segment)

    def _changed(self, key: SegmentKey) -> None:
        if self._has_store:
            self.uploads.look_at(key)

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
        if not segments or segments[-1].leader != self.node_id:
            return
        active_bytes = sum(leader.size_bytes for leader in [*shard.chain.ended, *filter(None, [shard.chain.active])])
        move = expired(segments, active_bytes, self._retention, self.now_ms)
        if move is not None and move.offset > self.view.log_start(shard.key):
            try:
                yield self.ask_meta(commands.AdvanceLogStart(shard.key, move.offset))
            except StratalogError:
                return
        freed = local_copies_to_free(
            self.view.segments(shard.key),
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
        high, start = shard.chain.high_watermark, self.view.log_start(fetch.shard)
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
