"""A node's cold tier on a bench: real formats, a real meta service and store in memory, shards made of lists of
batches, a clock that the test moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stratalog.formats.batches.record_batch import check_batch
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.manifest import Manifest, decode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.bucket.part import check_part
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest
from stratalog.machines.tiering.upload_events import UploadLimits
from stratalog.model.batch import BatchHeader
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode, RollSegment, SealSegment
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Change, NodeInfo, SegmentChanged, ShardChanged, TopicDeleted
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import RemotePart, RemoteState, SealRecord, Segment, SegmentState, TimesKnown
from stratalog.model.topic import Topic
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog.objects.unpacking import UnpackingStore
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.events import ShardEvents
from stratalog_node.shards.copies.shard_view import LogRange, TakeBuffer
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.sweep.janitor import Janitor, JanitorSchedule
from stratalog_node.tier.sweep.retention import RetentionSchedule, RetentionWorker
from stratalog_node.tier.uploads.uploader import NodeUploader
from support.faulty_store import FaultyStore

NODE_ID = 1
START_MS = 1_700_000_000_000
RIG_LIMITS = UploadLimits(
    chunk_bytes=64 << 10,
    bundle_bytes=256 << 10,
    in_flight_bytes=512 << 10,
    interval_ms=1_000,
    max_requests=4,
    put_timeout_ms=2_000,
    call_timeout_ms=2_000,
    backoff_ms=10,
    backoff_cap_ms=1_000,
)


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class RigCopy:
    """A local copy: whole batches, in order."""

    key: SegmentKey
    batches: list[bytes] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)
    is_damaged: bool = False

    @property
    def end_offset(self) -> int:
        return self.headers[-1].end_offset if self.headers else self.key.base_offset

    def digest(self) -> bytes:
        return extend_digest(EMPTY_DIGEST, self.batches)


class RigShard:
    """A ShardView."""

    def __init__(self, rig: TierRig, key: ShardKey, topic: Topic) -> None:
        self.rig = rig
        self.key = key
        self.topic = topic
        self.copies: dict[SegmentKey, RigCopy] = {}
        self.missing: set[SegmentKey] = set()
        self.high_watermark = 0
        self.open_transaction: int | None = None
        """First offset of an open transaction: the last stable offset stays there."""

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.open_transaction is None else self.open_transaction

    @property
    def log_start_offset(self) -> int:
        return self.rig.catalog.log_start_offset(self.key)

    @property
    def segments(self) -> Sequence[Segment]:
        return self.rig.catalog.segments(self.key)

    def has_local(self, segment: SegmentKey) -> bool:
        return segment in self.copies

    def upload_limit(self, segment: SegmentKey) -> int:
        return min(self.high_watermark, self.last_stable_offset)

    def size_below_high_watermark(self, segment: SegmentKey, from_offset: int) -> int:
        copy = self.copies.get(segment)
        if copy is None:
            return 0
        return sum(h.size_bytes for h in copy.headers if from_offset <= h.base_offset < self.high_watermark)

    async def read_committed_range(
        self,
        segment: SegmentKey,
        from_offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
        take_buffer: TakeBuffer | None = None,
    ) -> LogRange:
        await asyncio.sleep(0)
        copy = self.copies.get(segment)
        if copy is None:
            raise NotFound(f"no local copy of {segment}")
        if copy.is_damaged:
            raise Corrupt("bad CRC", source=str(segment), position=0)
        limit = min(self.high_watermark, self.last_stable_offset)
        data, headers, size = [], [], 0
        for batch, header in zip(copy.batches, copy.headers, strict=True):
            if header.base_offset < from_offset:
                continue
            if header.end_offset > limit or (headers and size + header.size_bytes > max_bytes):
                break
            if header.size_bytes > max_bytes and not at_least_one:
                return LogRange(from_offset, from_offset, b"", (), header.size_bytes)
            data.append(batch)
            headers.append(header)
            size += header.size_bytes
        if not headers:
            return LogRange(from_offset, from_offset, b"", ())
        return LogRange(headers[0].base_offset, headers[-1].end_offset, b"".join(data), tuple(headers))

    def may_active_be_before(self, timestamp_ms: int) -> bool:
        return False

    async def append(self, batches: Sequence[bytes]) -> int:
        raise NotImplementedError

    async def read(self, offset: int, max_bytes: int) -> list[bytes | memoryview]:
        raise NotImplementedError


class RigShards:
    """A `Shards`: keeps step with the catalog as the node's own does."""

    def __init__(self, rig: TierRig) -> None:
        self._rig = rig
        self._shards: dict[ShardKey, RigShard] = {}
        self.events = ShardEvents()
        self.freed: list[SegmentKey] = []

    def get(self, key: ShardKey) -> RigShard | None:
        return self._shards.get(key)

    def all(self) -> Iterable[RigShard]:
        return self._shards.values()

    async def local_bytes(self) -> int:
        copies = (copy for shard in self._shards.values() for copy in shard.copies.values())
        return sum(header.size_bytes for copy in copies for header in copy.headers)

    async def look_for_missing(self, key: ShardKey) -> None:
        """They do not come back by themselves."""

    async def free_local(self, shard: RigShard | None, segment: SegmentKey) -> None:
        self.freed.append(segment)
        for view in [shard] if shard is not None else self._rig.graveyard:
            view.copies.pop(segment, None)

    def announce(self, shard: RigShard) -> None:
        self.events.committed(shard)  # type: ignore[arg-type]  # has what the tier asks of it

    def change(self, shard: RigShard, segment: Segment) -> None:
        self.events.segment_changed(shard, segment)  # type: ignore[arg-type]  # as above

    def detach_listeners(self) -> None:
        """The process has died: nothing listens any more."""
        self.events = ShardEvents()

    def attach(self, key: ShardKey, topic: Topic) -> RigShard:
        return self._shards.setdefault(key, RigShard(self._rig, key, topic))

    def follow(self, change: Change) -> None:
        match change:
            case TopicDeleted(topic):
                for key in [key for key in self._shards if key.topic_id == topic.topic_id]:
                    self._rig.graveyard.append(self._shards.pop(key))
            case ShardChanged(shard):
                topic = self._rig.catalog.topic_by_id(shard.key.topic_id)
                if topic is not None:
                    self.attach(shard.key, topic)
            case SegmentChanged(segment):
                view = self._shards.get(segment.key.shard_key)
                if view is not None:
                    self.change(view, segment)
            case _:
                pass


class TierRig:
    """Use as an async context manager; `start_uploader` begins a process life."""

    def __init__(
        self, limits: UploadLimits = RIG_LIMITS, seed: int = 1, *, meta_store: MemoryStore | None = None,
        bucket_of: TierRig | None = None,
    ) -> None:  # fmt: skip
        """With `bucket_of` the bucket and the clock are another rig's: a copy of its disk, or its later life."""
        self.limits = limits
        self.clock = bucket_of.clock if bucket_of is not None else ManualClock()
        self.rng = random.Random(seed)
        self.settings = ProcessSettings(
            remote_upload_chunk_bytes=limits.chunk_bytes, remote_upload_interval_ms=limits.interval_ms
        )
        self.meta_store = meta_store or MemoryStore()
        self.meta = MetaService(self.meta_store, self.clock)
        memory = UnpackingStore(open_memory(StoreSettings(backoff_ms=1, backoff_cap_ms=2)))
        self.store = bucket_of.store if bucket_of is not None else FaultyStore(memory, self.clock)
        self._owns_store = bucket_of is None
        self.catalog = Catalog(lambda overrides: TopicSettings.resolve(self.settings, overrides))
        self.graveyard: list[RigShard] = []
        self.shards = RigShards(self)
        self.stats = TierStats()
        self.uploader: NodeUploader
        self._follower: asyncio.Task[None] | None = None
        self._lives = 0
        self._stepped_back_ms = 0

    async def __aenter__(self) -> TierRig:
        await self.meta.start()
        self.cluster_id = self.meta.cluster_id
        self.names = ObjectNames("", self.cluster_id)
        await self.meta.perform(RegisterNode(NodeInfo(NODE_ID, "disk-1", "localhost", 9092)))
        snapshot = await self.meta.snapshot()
        self.catalog.load(snapshot)
        for shard in snapshot.shards:
            topic = self.catalog.topic_by_id(shard.key.topic_id)
            assert topic is not None
            self.shards.attach(shard.key, topic)
        self.catalog.on_change(self.shards.follow)
        self._follower = asyncio.create_task(self._follow(snapshot.version))
        return self

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "uploader"):
            self.store.gate.set()
            await self.uploader.close()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self.meta.close()
        if self._owns_store:
            await self.store.close()

    async def _follow(self, version: int) -> None:
        async for change_set in self.meta.watch(version):
            self.catalog.apply(change_set)

    # The node's life ------------------------------------------------------------------------------------------------
    def make_uploader(self, **changes: Any) -> NodeUploader:
        self._lives += 1
        wiring: dict[str, Any] = {
            "node_id": NODE_ID,
            "cluster_id": self.cluster_id,
            "meta": self.meta,
            "shards": self.shards,
            "events": self.shards.events,
            "catalog": self.catalog,
            "store": self.store,
            "limits": self.limits,
            "clock_ms": self.monotonic,
            "rng": self.rng,
            "holder": f"{NODE_ID}/{self._lives}",
            "stats": self.stats,
            "lock_ttl_ms": 60,
            "doubt_ms": 600_000,
            "gather_ms": 0,
            "table_of": no_table,
        }
        return NodeUploader(**(wiring | changes))

    async def start_uploader(self, **changes: Any) -> NodeUploader:
        self.uploader = self.make_uploader(**changes)
        await self.uploader.start()
        return self.uploader

    async def crash_uploader(self) -> None:
        """The process dies without releasing or reporting anything. Its lease runs out."""
        uploader = self.uploader
        running = [*uploader._tasks, *uploader._uploads.values()]
        self.shards.detach_listeners()
        self.catalog._listeners = [self.shards.follow]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        uploader._encoder.close()
        self.clock.now_ms += 100

    def monotonic(self) -> int:
        return self.clock.now_ms + self._stepped_back_ms

    def step_back(self, ms: int) -> None:
        """The wall clock is set back; real time continues."""
        self.clock.now_ms -= ms
        self._stepped_back_ms += ms

    def advance(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.uploader.poke()

    async def until(self, is_true: Callable[[], object], what: str = "", timeout: float = 10.0) -> None:
        """Wait for something, moving the clock a little, so that back-offs and leases end."""
        deadline = asyncio.get_running_loop().time() + timeout
        while not is_true():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not true within {timeout} s: {what or is_true}; {self.uploader.status()}")
            await asyncio.sleep(0.001)
            self.advance(10)

    async def settle(self) -> None:
        """Until all that may go has gone and metadata says so."""
        flushing = asyncio.create_task(self.uploader.flush_now(10_000))
        while not flushing.done():
            await asyncio.sleep(0.001)
            self.advance(5)
        await flushing

    # Data -----------------------------------------------------------------------------------------------------------
    async def create_topic(self, name: str = "flights", shards: int = 1, **settings: str) -> Topic:
        overrides = {key.replace("_", "."): value for key, value in settings.items()}
        topic = await self.meta.perform(CreateTopic(name, shard_count=shards, replication_factor=1, settings=overrides))
        last = ShardKey(topic.topic_id, shards - 1)
        while self.shards.get(last) is None:
            await asyncio.sleep(0)
        return topic

    def shard(self, topic: Topic, index: int = 0) -> RigShard:
        shard = self.shards.get(ShardKey(topic.topic_id, index))
        assert shard is not None
        return shard

    def append(
        self,
        shard: RigShard,
        size: int = 100,
        *,
        records: int = 1,
        timestamp_ms: int | None = None,
        commit: bool = True,
        is_text: bool = False,
    ) -> int:
        """One batch of about `size` bytes, which a codec makes less of if they are text; returns its base offset."""
        active = shard.segments[-1]
        copy = shard.copies.setdefault(active.key, RigCopy(active.key))
        base = copy.end_offset
        at = self.clock.now_ms if timestamp_ms is None else timestamp_ms
        value_bytes = max(1, (size - 80) // records)
        value = (b"%08d" % base * value_bytes)[:value_bytes] if is_text else self.rng.randbytes(value_bytes)
        batch = encode_batch(
            [Record(base + i, at, None, value) for i in range(records)], base_offset=base, epoch=active.epoch
        )
        copy.batches.append(batch)
        copy.headers.append(check_batch(batch, source="rig"))
        if commit:
            self.commit(shard)
        return base

    def commit(self, shard: RigShard) -> None:
        """The high watermark reaches the end."""
        shard.high_watermark = shard.copies[shard.segments[-1].key].end_offset
        self.shards.announce(shard)

    async def roll(self, shard: RigShard) -> Segment:
        """The active segment ends and the next opens; returns the one that ended, not sealed yet."""
        active = shard.segments[-1]
        copy = shard.copies.setdefault(active.key, RigCopy(active.key))
        opened = await self.meta.perform(RollSegment(active.key, copy.end_offset))
        shard.copies[opened.key] = RigCopy(opened.key)
        while self.catalog.segment(opened.key) is None:
            await asyncio.sleep(0)
        return active

    async def seal(self, shard: RigShard, ended: Segment | None = None, **changes: Any) -> Segment:
        """Roll, unless it was rolled, and seal."""
        segment = ended or await self.roll(shard)
        copy = shard.copies[segment.key]
        times = [header.max_timestamp_ms for header in copy.headers]
        record = SealRecord(
            epoch=segment.epoch,
            base_offset=segment.base_offset,
            end_offset=copy.end_offset,
            first_timestamp_ms=copy.headers[0].base_timestamp_ms if copy.headers else -1,
            max_timestamp_ms=max(times, default=-1),
            size_bytes=sum(header.size_bytes for header in copy.headers),
            digest=copy.digest(),
            producers=NO_PRODUCERS,
            replicas=(NODE_ID,),
            sealed_ms=self.clock.now_ms,
            times_known=TimesKnown.ALL,
        )
        sealed = await self.meta.perform(SealSegment(segment.key, replace(record, **changes)))
        while (known := self.catalog.segment(segment.key)) is not None and known.seal is None:
            await asyncio.sleep(0)
        return sealed

    # Looking --------------------------------------------------------------------------------------------------------
    def remote(self, segment: Segment | SegmentKey) -> Segment:
        key = segment.key if isinstance(segment, Segment) else segment
        found = self.catalog.segment(key)
        assert found is not None, f"{key} is gone"
        return found

    def commit_offset(self, shard: RigShard) -> int:
        """Of the shard's oldest unfinished segment, or of its last."""
        for segment in shard.segments:
            if segment.remote.state is not RemoteState.COMPLETE:
                return max(segment.remote.commit_offset, segment.base_offset)
        return shard.segments[-1].base_offset

    def is_committed(self, *shards: RigShard) -> bool:
        return all(self.commit_offset(shard) >= shard.high_watermark for shard in shards)

    def is_complete(self, *segments: Segment | SegmentKey) -> bool:
        return all(self.remote(segment).remote.state is RemoteState.COMPLETE for segment in segments)

    async def manifest(self, segment: Segment) -> Manifest:
        remote = self.remote(segment).remote
        assert remote.manifest_key is not None
        data = await self.store.inner.get(remote.manifest_key)
        assert manifest_digest(data) == remote.manifest_digest
        return decode_manifest(data, source=remote.manifest_key)

    async def check(self, shards: Iterable[RigShard] | None = None) -> set[str]:
        """Every remote copy is what was written: contiguous, whole, each object there, digests chained and right.

        Returns the keys of all objects that metadata refers to.
        """
        referenced: set[str] = set()
        for shard in shards if shards is not None else list(self.shards.all()):
            for segment in shard.segments:
                referenced |= await self._check_segment(shard, segment)
        present = set(await self.store.keys())
        assert referenced <= present, f"referenced but missing: {referenced - present}"
        return referenced

    async def _check_segment(self, shard: RigShard, segment: Segment) -> set[str]:
        remote = segment.remote
        parts: Sequence[RemotePart] = remote.parts
        referenced: set[str] = set()
        if remote.state is RemoteState.COMPLETE:
            manifest = await self.manifest(segment)
            assert segment.seal is not None and manifest.seal == segment.seal
            parts = manifest.parts
            assert remote.manifest_key is not None
            referenced |= {remote.manifest_key, manifest.index_key}
            folder = self.names.segment_prefix(segment.key)
            assert all(part.object_key.startswith(folder) for part in parts), "a complete copy lies in its own folder"
        assert remote.commit_offset <= shard.high_watermark
        offset, digest = segment.base_offset, EMPTY_DIGEST
        copy = shard.copies.get(segment.key)
        for part in parts:
            referenced.add(part.object_key)
            data = await self.store.inner.get_range(part.object_key, part.position, part.position + part.size_bytes)
            index = check_part(data, source=part.object_key, position=part.position, expected_digest_before=digest)
            assert index.header.identity.key == segment.key
            assert (part.base_offset, part.end_offset) == (index.header.base_offset, index.header.end_offset)
            assert part.base_offset == offset, "parts follow one another without a gap"
            offset, digest = part.end_offset, index.header.digest_after
            if copy is not None:
                batches = data[512 : index.header.index_position]
                local = b"".join(
                    batch
                    for batch, header in zip(copy.batches, copy.headers, strict=True)
                    if part.base_offset <= header.base_offset < part.end_offset
                )
                assert bytes(batches) == local
        assert offset == max(remote.commit_offset, segment.base_offset)
        if remote.state is RemoteState.COMPLETE:
            assert segment.seal is not None
            assert (offset, digest) == (segment.seal.end_offset, segment.seal.digest)
        return referenced

    # Keeping house --------------------------------------------------------------------------------------------------
    def retention(self, **changes: Any) -> RetentionWorker:
        schedule = RetentionSchedule(
            **{"interval_ms": 3_600_000, "pressure_interval_ms": 3_600_000} | _of(changes, RetentionSchedule)
        )
        return RetentionWorker(
            node_id=NODE_ID,
            meta=self.meta,
            shards=self.shards,
            copies=self.shards,
            catalog=self.catalog,
            store=changes.pop("store", self.store),
            names=self.names,
            schedule=schedule,
            clock_ms=self.clock,
            stats=self.stats,
            local_bytes=self.shards.local_bytes,
            **changes,
        )

    def janitor(self, **changes: Any) -> Janitor:
        schedule = JanitorSchedule(
            **{"delete_delay_ms": 60_000, "orphan_grace_ms": 600_000} | _of(changes, JanitorSchedule)
        )
        return Janitor(
            node_id=NODE_ID,
            meta=self.meta,
            shards=self.shards,
            copies=self.shards,
            catalog=self.catalog,
            store=changes.pop("store", self.store),
            uploader=changes.pop("uploader", self.uploader if hasattr(self, "uploader") else None),
            names=self.names,
            schedule=schedule,
            clock_ms=self.clock,
            monotonic_ms=self.monotonic,
            stats=self.stats,
            **changes,
        )

    async def deleted(self) -> list[Segment]:
        return await self.meta.deleted_segments()


def _of(changes: dict[str, Any], kind: Any) -> Mapping[str, Any]:
    """Take the fields of a dataclass out of keyword arguments."""
    return {name: changes.pop(name) for name in kind.__dataclass_fields__ if name in changes}


__all__ = ["NODE_ID", "RIG_LIMITS", "ManualClock", "RigCopy", "RigShard", "RigShards", "SegmentState", "TierRig"]


async def no_table(segment: Segment) -> bytes:
    """No batch has a producer id."""
    return b""
