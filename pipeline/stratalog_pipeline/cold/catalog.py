"""Finds out what is committed, from a bucket alone or with the help of a meta service, and which parts hold it.

Source of what is committed, best first: the meta service, if one is named; the newest whole snapshot of the metadata in
the bucket, and the manifests that were put since; manifests alone. Storage nodes are never asked.
Cost: with a meta service one answer; else one listing of the asked topics. Then one small object, a manifest, for each
complete segment that holds something wanted. One event loop; the caller closes it.
Raises: what the store raises, NotFound for a cluster, a topic or a snapshot that is not there, Corrupt, GapInLog.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from stratalog.connect.http_login import HttpLogin, http_login
from stratalog.formats.bucket.cut import check_cut_name, decode_cut
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import CutName, ObjectNames, SegmentObject, SegmentObjectName
from stratalog.machines.table.records import PurgedTopic, StoredRecord
from stratalog.model.cut import Cut
from stratalog.model.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from stratalog.model.segment import RemotePart, SealRecord, Segment
from stratalog.model.topic import Topic
from stratalog.objects import ObjectStore
from stratalog.stored.key_lookup import LookupCost, entries_of
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.snapshots import list_snapshots, read_snapshot
from stratalog_pipeline.cold.committed import (
    CommittedSegment,
    CommittedShard,
    FoundManifest,
    by_shard,
    shard_of_cut,
    shard_of_segments,
    shards_of_manifests,
    shards_of_records,
    with_replaced,
    with_sealed_since,
    without_expired,
)
from stratalog_pipeline.cold.cutting import Asked, OffsetRange, PartRange, range_of, ranges_within, segments_within

if TYPE_CHECKING:
    from stratalog.meta_api.http_client import HttpMetaClient

_AT_A_TIME: Final = 32
T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class Catalog:
    """What there is to read. Remembers manifests: they never change."""

    store: ObjectStore
    names: ObjectNames
    meta_url: str | None = None
    snapshot_name: str | None = None
    meta_login: HttpLogin = field(default_factory=HttpLogin)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    lookup_cost: LookupCost = field(default_factory=LookupCost)
    """What keys that were asked for have cost so far."""
    _with_internal: bool = False

    @staticmethod
    async def open(
        store: ObjectStore,
        *,
        cluster_id: str | None,
        meta_url: str | None = None,
        snapshot_name: str | None = None,
        meta_login: HttpLogin | None = None,
    ) -> Catalog:
        """`meta_login`: how the meta service is asked; without it, as the environment says.

        Raises: NotFound, and InvalidRequest where several clusters share the bucket and none is named; what the meta
        service raises."""
        login = http_login(os.environ) if meta_login is None else meta_login
        if meta_url is not None:
            cluster = await _ask_cluster(meta_url, login)
            if cluster_id not in (None, cluster):
                raise InvalidRequest(f"{meta_url} serves cluster {cluster}, not {cluster_id}: name one of the two")
            cluster_id = cluster
        names = ObjectNames("", cluster_id or await _find_cluster(store))
        return Catalog(store, names, meta_url, snapshot_name, login)

    # Which offsets --------------------------------------------------------------------------------------------------
    async def shards(self, topics: Collection[str] | None, *, with_internal: bool = False) -> list[CommittedShard]:
        """Of these topics (None: of all, internal ones only when asked for), as far as they are committed now."""
        self._with_internal = with_internal
        if self.snapshot_name is not None:
            found = await self._of_cut(await self.cut(), topics)
        elif self.meta_url is not None:
            found = await self._of_service(self.meta_url, topics)
        else:
            found = await self._of_bucket(topics)
        missing = set(topics or ()) - {shard.topic for shard in found}
        if missing:
            raise NotFound(
                f"{self.store.url} holds no topic {', '.join(sorted(missing))} of cluster {self.names.cluster_id}: is "
                "the name right, does the topic go to the bucket, and is anything of it sealed?"
            )
        return found

    async def cut(self) -> Cut:
        """The snapshot that was named. Raises: NotFound."""
        name = check_cut_name(self.snapshot_name or "")
        key = self.names.build(CutName(name))
        try:
            return decode_cut(await self.store.get(key), source=key)
        except NotFound:
            raise NotFound(
                f"there is no snapshot {name!r} of cluster {self.names.cluster_id} in {self.store.url}; "
                "`stratalog snapshot list` shows all"
            ) from None

    async def _of_cut(self, cut: Cut, topics: Collection[str] | None) -> list[CommittedShard]:
        chosen = {one.topic_id: one.name for one in cut.topics if self._is_wanted(one.name, one.is_internal, topics)}
        found = by_shard(await self._list_manifests(chosen))
        source = self.names.build(CutName(cut.name))
        return [
            shard_of_cut(chosen[shard.key.topic_id], shard, found.get(shard.key, ()), source)
            for shard in cut.shards
            if shard.key.topic_id in chosen
        ]

    async def _of_service(self, meta_url: str, topics: Collection[str] | None) -> list[CommittedShard]:
        client = meta_client(meta_url, self.meta_login)
        try:
            view = await client.snapshot()
        finally:
            await client.close()
        chosen = {one.topic_id: one.name for one in view.topics if self._is_wanted(one.name, one.is_internal, topics)}
        return [
            shard_of_segments(chosen[one.key.topic_id], one.key, one.log_start_offset, one.segments)
            for one in view.shards
            if one.key.topic_id in chosen
        ]

    async def _of_bucket(self, topics: Collection[str] | None) -> list[CommittedShard]:
        """What the newest snapshot of the metadata tells, and manifests that were put since."""
        for found in reversed(await list_snapshots(self.store, self.names)):
            if not found.is_headed:
                continue
            try:
                _, records = await read_snapshot(self.store, self.names, found)
            except (Corrupt, NotFound):  # one that is just being replaced, or was damaged: an older one is as true
                continue
            return await self._of_records(records, topics)
        return await self._of_manifests(topics)

    async def _of_records(
        self, records: Sequence[StoredRecord], topics: Collection[str] | None
    ) -> list[CommittedShard]:
        """Manifests add the topics and shards that were created after the records were read."""
        all_topics = {one.topic_id: one for one in records if isinstance(one, Topic)}
        known = [
            shard
            for shard in shards_of_records(records)
            if self._is_wanted(shard.topic, all_topics[shard.key.topic_id].is_internal, topics)
        ]
        is_told_of = topics is not None and set(topics) <= {shard.topic for shard in known}
        listed = await self._list_manifests({shard.key.topic_id for shard in known} if is_told_of else None)
        manifests = by_shard(listed)
        found = [await self._as_it_lies(shard, manifests.pop(shard.key, [])) for shard in known]
        names = {shard.key.topic_id: shard.topic for shard in known}
        added = [one for key, those in manifests.items() if key.topic_id in names for one in those]
        found += [replace(one, topic=names[one.key.topic_id]) for one in shards_of_manifests(added, self.store.url)]
        if is_told_of:
            return found
        heard_of = {one.topic_id for one in records if isinstance(one, PurgedTopic)} | all_topics.keys()
        heard_of |= {one.key.topic_id for one in records if isinstance(one, Segment)}
        later = await self._named([one for one in listed if one.segment.topic_id not in heard_of], topics)
        again = {shard.topic for shard in later}  # a topic of that name was deleted since
        return [shard for shard in found if shard.topic not in again] + later

    async def _as_it_lies(self, shard: CommittedShard, manifests: Sequence[FoundManifest]) -> CommittedShard:
        """Raises: Unavailable where a listing lacks what is there: data would be reported as expired, and passed."""
        known = with_replaced(shard, manifests)
        present = without_expired(known, {one.key for one in manifests})
        expired = known.segments[: len(known.segments) - len(present.segments)]
        if expired and (newest := expired[-1].manifest_key) is not None:
            await self._require_gone(newest)
        return with_sealed_since(present, manifests)

    async def _require_gone(self, key: str) -> None:
        try:
            await self.store.head(key)
        except NotFound:
            return
        raise Unavailable(f"{self.store.url} does not list {key}, which is there: ask again")

    async def _of_manifests(self, topics: Collection[str] | None) -> list[CommittedShard]:
        return await self._named(await self._list_manifests(None), topics)

    async def _named(self, found: Iterable[FoundManifest], topics: Collection[str] | None) -> list[CommittedShard]:
        """Topics are named by what their manifests say."""
        shards = shards_of_manifests(found, self.store.url)
        firsts = {shard.key.topic_id: shard.segments[0] for shard in shards}
        manifests = await each(firsts.values(), self.manifest_of)
        names = {topic_id: one.identity.topic for topic_id, one in zip(firsts, manifests, strict=True)}
        named = [replace(shard, topic=names[shard.key.topic_id]) for shard in shards]
        return [shard for shard in named if self._is_wanted(shard.topic, shard.topic.startswith("__"), topics)]

    def _is_wanted(self, topic: str, is_internal: bool, topics: Collection[str] | None) -> bool:
        return self._with_internal or not is_internal if topics is None else topic in topics

    async def _list_manifests(self, topic_ids: Iterable[UUID] | None) -> list[FoundManifest]:
        prefixes = (
            [self.names.data_prefix] if topic_ids is None else [self.names.topic_prefix(one) for one in topic_ids]
        )
        found = await each(prefixes, self._list_below)
        return [one for those in found for one in those]

    async def _list_below(self, prefix: str) -> list[FoundManifest]:
        found = []
        async for info in self.store.list(prefix):
            if not info.key.endswith(".manifest"):
                continue
            name = self.names.parse(info.key)
            if isinstance(name, SegmentObjectName) and name.kind is SegmentObject.MANIFEST:
                written = (name.node_id, name.lock_epoch, name.attempt)
                found.append(FoundManifest(info.key, name.segment, name.to_offset, *written))
        return found

    # Which objects --------------------------------------------------------------------------------------------------
    async def ranges(self, shards: Iterable[CommittedShard], asked: Asked) -> list[PartRange]:
        """The parts that hold what is asked for, shard by shard, offsets rising."""
        wanted: list[tuple[CommittedShard, CommittedSegment, OffsetRange]] = []
        for shard in shards:
            offsets = range_of(shard, asked)
            if offsets is not None:
                found = segments_within(shard, offsets, asked.from_ms)
                wanted += [(shard, segment, offsets) for segment in found]

        async def parts(one: tuple[CommittedShard, CommittedSegment, OffsetRange]) -> list[PartRange]:
            shard, segment, offsets = one
            placed, seal = await self.parts_of(segment)
            if asked.from_ms is not None and seal is not None and seal.is_older_than(asked.from_ms):
                return []
            if asked.keys is not None and segment.manifest_key is not None:
                placed = await self._parts_with(await self.manifest_of(segment), asked.keys)
            return ranges_within(shard.topic, segment, placed, seal, offsets)

        return [one for some in await each(wanted, parts) for one in some]

    async def _parts_with(self, manifest: Manifest, keys: Collection[bytes]) -> Sequence[RemotePart]:
        """The parts that may hold one of these keys: all, where no key index tells."""
        if not manifest.key_runs:
            return manifest.parts
        found = {entry.part for key in keys for entry in await entries_of(self.store, manifest, key, self.lookup_cost)}
        return [manifest.parts[number] for number in sorted(found)]

    async def parts_of(self, segment: CommittedSegment) -> tuple[Sequence[RemotePart], SealRecord | None]:
        """Where a segment's records lie; its seal, if that is known."""
        if segment.manifest_key is None:
            return segment.parts, segment.seal
        manifest = await self.manifest_of(segment)
        return manifest.parts, manifest.seal

    async def manifest_of(self, segment: CommittedSegment) -> Manifest:
        """Of a complete segment. Raises: Corrupt when it is another one than the metadata name."""
        key = segment.manifest_key
        assert key is not None, "only complete segments have one"
        known = self.manifests.get(key)
        if known is not None:
            return known
        manifest = await read_manifest(self.store, manifest_expected(self.names.cluster_id, segment))
        self.manifests[key] = manifest
        return manifest


def manifest_expected(cluster_id: str, segment: CommittedSegment) -> ExpectedManifest:
    """Requires: the segment is complete."""
    assert segment.manifest_key is not None, "only complete segments have one"
    digest, seal = segment.manifest_digest, segment.seal
    return ExpectedManifest(cluster_id, segment.key, segment.manifest_key, segment.end_offset, digest, seal)


async def each(items: Iterable[T], do: Callable[[T], Awaitable[R]]) -> list[R]:
    """All of them, some at a time; results in order. The first failure ends the others, and is raised."""
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def one(item: T) -> R:
        async with gate:
            return await do(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def meta_client(meta_url: str, login: HttpLogin) -> HttpMetaClient:
    """The caller closes it. Raises: InvalidRequest for a URL, and for files of the login that cannot be used."""
    from stratalog.meta_api.http_client import HttpMetaClient  # half of what all imports of a task cost together

    return HttpMetaClient(meta_url, token=login.token, tls=login.tls)


async def _ask_cluster(meta_url: str, login: HttpLogin) -> str:
    client = meta_client(meta_url, login)
    try:
        return await client.read_cluster_id()
    finally:
        await client.close()


async def _find_cluster(store: ObjectStore) -> str:
    """The only one in the bucket. Cost: a listing of all of it, for stores have no listing of folders alone."""
    found = set()
    async for info in store.list(""):
        cluster, _, below = info.key.partition("/")
        if below.startswith(("data/", "bundles/", "meta/")):
            found.add(cluster)
    if not found:
        raise NotFound(f"{store.url} holds nothing of any cluster: is it the right bucket, and the right prefix?")
    if len(found) > 1:
        raise InvalidRequest(f"{store.url} holds several clusters: name one ({', '.join(sorted(found))})")
    return found.pop()
