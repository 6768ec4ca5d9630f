"""Rebuilds the metadata of a lost cluster from its bucket alone: `stratalog meta rebuild`.

Reads the newest whole snapshot, looks through the bucket, completes in the bucket what was still being uploaded, and
writes the records into an empty store, the header last, so an interrupted rebuild leaves no valid store. An interrupted
rebuild is simply started again, into an empty store, and finds what it put into the bucket before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from uuid import UUID

from stratalog.formats.bucket.meta_snapshot import MetaSnapshotHead
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.segments.producers import decode_table
from stratalog.machines.leading.sealed_producers import Producers
from stratalog.machines.rebuild.meta_backups import FoundSnapshot
from stratalog.machines.rebuild.shard import LostRange, PlannedSegment, ShardPlan
from stratalog.machines.rebuild.table import Published, RebuildPlan, plan_rebuild, records_of
from stratalog.machines.table.dump import writes_of
from stratalog.machines.table.records import NodeEntry, PutHeader, StoredRecord, TableWrite
from stratalog.machines.tiering.retention import may_have_expired
from stratalog.model.errors import AlreadyExists, Corrupt, InvalidRequest, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, SealRecord, Segment
from stratalog.model.topic import Topic
from stratalog.objects.store import ObjectStore
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog.stored.remote.indexes import read_index
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.snapshots import list_snapshots, read_snapshot
from stratalog_meta.bucket.publish import DamagedPart, SegmentPublisher, Writer
from stratalog_meta.bucket.scan import BucketScan, Hole, each, scan_bucket
from stratalog_meta.stores.meta_store import MetaStore

_WRITES_AT_A_TIME: Final = 2_000
OnProgress = Callable[[str, int, int | None], None]
"""What is being done, how much of it is done, of how many (None: not known)."""
_Key = tuple[SegmentKey, int, tuple[RemotePart, ...]]


@dataclass(slots=True)
class Rebuilt:
    """What came of it."""

    cluster_id: str
    head: MetaSnapshotHead
    plan: RebuildPlan
    objects: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)
    """Of segments that are complete by their manifests: what of them cannot be read."""
    earlier_nodes: tuple[NodeEntry, ...] = ()
    segments_published: int = 0
    bytes_put: int = 0

    @property
    def segments(self) -> int:
        return sum(len(shard.segments) for shard in self.plan.shards)

    @property
    def lost(self) -> list[LostRange]:
        return [one for shard in self.plan.shards for one in shard.lost]

    @property
    def gone(self) -> list[SegmentKey]:
        return [key for shard in self.plan.shards for key in shard.gone]

    @property
    def in_volumes(self) -> list[PlannedSegment]:
        return [one for shard in self.plan.shards for one in shard.in_volumes]

    @property
    def unused(self) -> list[SegmentKey]:
        return [key for shard in self.plan.shards for key in shard.unused]

    def topic_name(self, topic_id: UUID) -> str:
        named = (topic.name for topic in (*self.plan.topics, *self.plan.taken_in) if topic.topic_id == topic_id)
        return next(named, str(topic_id))


class Rebuild:
    def __init__(
        self,
        store: ObjectStore,
        nodes: Sequence[int],
        clock_ms: Callable[[], int],
        on_progress: OnProgress,
        without_volumes: Sequence[int] = (),
    ) -> None:
        """`nodes` will serve the cluster, each with an empty disk. `without_volumes`: whose retired directories a
        person gives up."""
        if not nodes or len(set(nodes)) < len(nodes):
            raise InvalidRequest(f"name each of the nodes that will serve once, and at least one, not {list(nodes)}")
        self._store = store
        self._nodes = tuple(nodes)
        self._without = tuple(without_volumes)
        self._clock_ms = clock_ms
        self._on_progress = on_progress
        self._published: dict[_Key, Published] = {}
        self._producers: dict[_Key, Producers] = {}

    async def find_cluster(self) -> str:
        """The one whose metadata lie in the bucket. Raises NotFound, and InvalidRequest where there are several."""
        clusters = set()
        async for info in self._store.list(""):
            cluster, _, rest = info.key.partition("/")
            if rest.startswith("meta/"):
                clusters.add(cluster)
        if not clusters:
            raise NotFound(
                f"{self._store.url} holds no snapshot of any metadata: is it the right bucket, and was --bucket given "
                "to the meta service?"
            )
        if len(clusters) > 1:
            names = ", ".join(sorted(clusters))
            raise InvalidRequest(
                f"{self._store.url} holds the metadata of several clusters: name one by --cluster ({names})"
            )
        return clusters.pop()

    async def plan(self, cluster_id: str) -> tuple[Rebuilt, BucketScan, list[FoundSnapshot], list[StoredRecord]]:
        """What would come of it; nothing is changed. Raises NotFound without a whole snapshot."""
        names = ObjectNames("", cluster_id)
        snapshots = await list_snapshots(self._store, names)
        head, records, damaged = await self._newest(names, snapshots)
        segments = [record for record in records if isinstance(record, Segment)]
        done = 0

        def step(what: str) -> None:
            nonlocal done
            done += 1
            self._on_progress(f"looking: {what}", done, None)

        scan = await scan_bucket(self._store, names, segments, step)
        scan.damaged.update(damaged)
        plan = self._plan(records, scan, snapshots)
        nodes = tuple(record for record in records if isinstance(record, NodeEntry))
        rebuilt = Rebuilt(cluster_id, head, plan, scan.object_count, scan.damaged, _in_use(plan, scan), nodes)
        return rebuilt, scan, snapshots, records

    async def run(self, cluster_id: str, target: MetaStore) -> Rebuilt:
        """Raises AlreadyExists for a store that holds something, NotFound without a whole snapshot."""
        if await target.load():
            raise AlreadyExists(
                f"{target.source} already holds metadata, and a rebuild needs an empty store: name another one, or "
                "remove this one if nothing in it is needed"
            )
        rebuilt, scan, snapshots, records = await self.plan(cluster_id)
        names = ObjectNames("", cluster_id)
        now_ms = self._clock_ms()
        writer = Writer(self._nodes[0], rebuilt.plan.writer_epoch())
        publisher = SegmentPublisher(self._store, names, writer, now_ms, cluster_id)
        while not await self._publish_all(publisher, rebuilt, scan):
            rebuilt.plan = self._plan(records, scan, snapshots)
        published = {planned.key: self._published[_key(planned)] for planned in rebuilt.plan.to_publish}
        rebuilt.segments_published, rebuilt.bytes_put = len(published), publisher.bytes_put
        await write_records(target, records_of(rebuilt.plan, published, now_ms), self._on_progress)
        return rebuilt

    def _plan(
        self, records: Sequence[StoredRecord], scan: BucketScan, snapshots: Sequence[FoundSnapshot]
    ) -> RebuildPlan:
        expires = _Expiry(self._clock_ms()).may_have_expired
        return plan_rebuild(records, scan.as_found(snapshots), self._nodes, self._without, expires)

    async def _newest(
        self, names: ObjectNames, snapshots: Sequence[FoundSnapshot]
    ) -> tuple[MetaSnapshotHead, list[StoredRecord], dict[str, str]]:
        damaged: dict[str, str] = {}
        for found in sorted((one for one in snapshots if one.is_headed), reverse=True):
            try:
                head, records = await read_snapshot(self._store, names, found)
            except (Corrupt, NotFound) as error:
                damaged[found.keys[0]] = str(error)
                continue
            return head, records, damaged
        raise NotFound(
            f"{self._store.url} holds no whole snapshot of the metadata of cluster {names.cluster_id}"
            + "".join(f"; {why}" for why in damaged.values())
        )

    async def _publish_all(self, publisher: SegmentPublisher, rebuilt: Rebuilt, scan: BucketScan) -> bool:
        """False when a part turned out to be damaged: then the plan is another one."""
        plan, cluster_id = rebuilt.plan, rebuilt.cluster_id
        waiting = [shard for shard in plan.shards if shard.to_publish]
        total = sum(len(shard.to_publish) for shard in waiting)
        topics = {topic.topic_id: topic.name for topic in (*plan.topics, *plan.taken_in)}
        is_whole, done = True, 0

        async def publish(shard: ShardPlan) -> None:
            nonlocal is_whole, done
            for at, planned in enumerate(shard.segments):
                if planned.manifest is not None or planned.volumes:
                    continue
                if _key(planned) not in self._published:
                    before = await self._producers_before(cluster_id, shard.segments[at - 1] if at else None, scan)
                    try:
                        made, producers = await publisher.publish(planned, topics[shard.key.topic_id], before)
                    except DamagedPart as damaged:
                        scan.drop(planned.key, damaged.part, damaged.reason)
                        is_whole = False
                        return
                    self._published[_key(planned)] = made
                    self._producers[_key(planned)] = producers
                done += 1
                self._on_progress("completing segments", done, total)

        await each(waiting, publish)
        return is_whole

    async def _producers_before(self, cluster_id: str, before: PlannedSegment | None, scan: BucketScan) -> Producers:
        """The producers at the base of a segment: from a segment that was completed now, or from the index block that
        the manifest names. None if that cannot be read, or is only in a retired directory: the earlier producers are
        then forgotten, and the cluster is rebuilt anyway."""
        if before is None or before.volumes:
            return ()
        if before.manifest is None:
            return self._producers[_key(before)]
        seal = before.known.seal if before.known is not None else before.manifest.seal
        if seal is not None and not seal.producers.count:
            return ()
        source = before.manifest.key
        try:
            digest = before.manifest.digest or None
            expected = ExpectedManifest(cluster_id, before.key, source, before.end_offset, digest, seal)
            manifest = await read_manifest(self._store, expected)
            source = manifest.index_key
            return decode_table((await read_index(self._store, manifest)).table, source=source)
        except (Corrupt, NotFound) as error:
            scan.damaged[source] = str(error)
            return ()


class _Expiry:
    """Which segments retention may have deleted since the snapshot: by their topics' settings, and the built-in
    defaults, for those of the lost nodes are not known."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._defaults = ProcessSettings()
        self._settings: dict[UUID, TopicSettings] = {}

    def may_have_expired(self, topic: Topic, seal: SealRecord) -> bool:
        if topic.is_internal:
            return True  # the service trims its own log, whatever its age
        settings = self._settings.get(topic.topic_id)
        if settings is None:
            settings = self._settings[topic.topic_id] = TopicSettings.resolve(self._defaults, topic.settings)
        return may_have_expired(seal, settings.retention_ms, settings.retention_bytes, self._now_ms)


def _in_use(plan: RebuildPlan, scan: BucketScan) -> list[Hole]:
    """Holes of segments that are taken by the manifest which has them, at or above the log start."""
    starts = {one.key: shard.log_start_offset for shard in plan.shards for one in shard.segments if one.manifest}
    return [hole for hole in scan.holes if starts.get(hole.segment, hole.end_offset) < hole.end_offset]


async def write_records(target: MetaStore, records: Iterator[StoredRecord], on_progress: OnProgress) -> None:
    """Into an empty store; the header comes last, so that a store which was not written to its end is none."""
    header: TableWrite | None = None
    done = 0
    every = writes_of(records)
    while some := list(islice(every, _WRITES_AT_A_TIME)):
        writes = []
        for write in some:
            if isinstance(write, PutHeader):
                header = write
            else:
                writes.append(write)
        await target.write([writes])
        done += len(writes)
        on_progress("writing records", done, None)
    assert header is not None, "there is a header"
    await target.write([[header]])


def _key(planned: PlannedSegment) -> _Key:
    return planned.key, planned.end_offset, tuple(found.part for found in planned.chain)
