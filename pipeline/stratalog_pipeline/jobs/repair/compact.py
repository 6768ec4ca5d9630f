"""Merges the chunks of complete segments into few large objects, packed on request, and has the meta service name them
instead.

A piece of the work is a segment (`merge_segment`). Its new objects count once the metadata name its manifest, through
one compare-and-set on the manifest that was read. So a job that is killed anywhere, run twice or beside a deletion, or
that gets no answer leaves each segment either as it was or merged. Nodes sweep useless objects like other orphans; they
sweep the old objects once `remote.orphan.grace.ms` have passed since the change, so that readers can continue. A write
lock, whose epoch is in every name, allows one job at a time. Merging what was merged changes nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from stratalog.connect.http_login import HttpLogin, http_login
from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK
from stratalog.machines.tiering.retention import NO_LIMIT, is_to_archive
from stratalog.model.commands.table_commands import ReplaceManifest
from stratalog.model.counting import did_you_mean
from stratalog.model.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown
from stratalog.model.metadata import Snapshot
from stratalog.model.segment import RemoteState, SegmentState
from stratalog.model.topic import Topic
from stratalog.objects import ObjectStore, open_classes, open_store
from stratalog.settings.choices import RemoteCompression, StorageClass
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_pipeline.cold.catalog import each, meta_client
from stratalog_pipeline.jobs.repair.held_lock import LEASE_MS, HeldLock
from stratalog_pipeline.jobs.repair.merge_segment import Merged, MergeWork, merge_segment
from stratalog_pipeline.jobs.runners import OnProgress, Runner

TARGET_BYTES: Final = 64 << 20
MIN_TARGET_BYTES: Final = 64 << 10
MAX_TARGET_BYTES: Final = 512 << 20
"""A merged part is held in memory, twice."""
_LOOKED_FOR: Final = 64


@dataclass(frozen=True, slots=True)
class CompactOptions:
    bucket: str
    meta_url: str
    topics: tuple[str, ...] = ()
    """All but the internal ones when it is empty."""
    target_bytes: int = TARGET_BYTES
    is_dry_run: bool = False
    is_packing: bool = False
    """Also the topics that do not ask for it (`remote.compression`)."""
    meta_login: HttpLogin | None = None
    """How the meta service is asked; None: as the environment says."""
    lease_ms: int = LEASE_MS
    now_ms: int = 0
    """By which data is old enough to be archived; 0: by the clock."""


@dataclass(frozen=True, slots=True)
class NotCompacted:
    segment: str
    why: str


@dataclass(slots=True)
class Compacted:
    """What came of it. Of the `merged` segments: chunk objects before and after, and bytes that were put; in a dry run,
    what they would be, about."""

    cluster_id: str = ""
    segments: int = 0
    merged: int = 0
    objects_before: int = 0
    objects_after: int = 0
    bytes_put: int = 0
    packed: int = 0
    """Objects that were packed, of `unpacked_bytes` into `packed_bytes`."""
    unpacked_bytes: int = 0
    packed_bytes: int = 0
    archived: int = 0
    """Of the `merged` segments, those whose chunks were put in an archive class."""
    left_archived: int = 0
    """Segments that stay as they are, because their chunks are archived."""
    key_runs_before: int = 0
    key_runs_after: int = 0
    """Objects of key indexes. A key costs a range read for each of its segment's."""
    not_merged: list[NotCompacted] = field(default_factory=list)
    """Those that stay as they were though they could be merged."""


def compact(options: CompactOptions, run: Runner, on_progress: OnProgress = lambda *_: None) -> Compacted:
    """Raises: InvalidRequest; NotFound for a topic or a bucket that is not the cluster's; Conflict while another job
    merges; Fenced when another one took its place; what the meta service raises."""
    if not MIN_TARGET_BYTES <= options.target_bytes <= MAX_TARGET_BYTES:
        raise InvalidRequest(
            f"an object of {options.target_bytes} bytes: it has from {MIN_TARGET_BYTES} to {MAX_TARGET_BYTES}"
        )
    name = None if options.is_dry_run else COMPACTION_LOCK
    login = http_login(os.environ) if options.meta_login is None else options.meta_login
    with HeldLock(lambda: meta_client(options.meta_url, login), name, options.lease_ms) as held:
        result = Compacted(held.ask(lambda client: client.read_cluster_id()))
        works = list(_works(options, result.cluster_id, held))
        for number, merged in enumerate(run(merge_segment, works), 1):
            _add_result(held, merged, result)
            on_progress("compacted", number, len(works))
        return result


def _works(options: CompactOptions, cluster_id: str, held: HeldLock) -> Iterator[MergeWork]:
    view = _view_of_its_bucket(options, held)
    wanted = _topics(view, options.topics)
    classes = {topic.topic_id: _storage_class(topic) for topic in view.topics}
    archives = _archive_rules(options.bucket, view.topics)
    packed = {topic.topic_id for topic in view.topics if options.is_packing or _asks_for_packing(topic)}
    epoch = 0 if options.is_dry_run else held.lock.epoch
    open_bucket: Callable[[], ObjectStore] = partial(open_store, options.bucket)
    for shard in view.shards:
        topic = wanted.get(shard.key.topic_id)
        for segment in shard.segments if topic is not None else ():
            remote = segment.remote
            if segment.state is not SegmentState.SEALED or remote.state is not RemoteState.COMPLETE:
                continue
            assert segment.seal is not None and topic is not None, "it is sealed"
            assert remote.manifest_key is not None and remote.manifest_digest is not None, "it is complete"
            after_ms, archive_class = archives.get(segment.key.topic_id, (NO_LIMIT, ""))
            is_archiving = is_to_archive(segment.seal, after_ms, options.now_ms or time.time_ns() // 1_000_000)
            yield MergeWork(
                cluster_id,
                topic,
                segment.key,
                segment.seal,
                remote.manifest_key,
                remote.manifest_digest,
                epoch,
                options.target_bytes,
                options.is_dry_run,
                segment.key.topic_id in packed,
                open_bucket,
                archive_class if is_archiving else classes.get(segment.key.topic_id, ""),
                partial(open_classes, options.bucket) if is_archiving else None,
            )


def _view_of_its_bucket(options: CompactOptions, held: HeldLock) -> Snapshot:
    """The metadata. A copy of the cluster's bucket would be merged as well as the bucket itself, and what the metadata
    would name then is nowhere but in the copy. So what was put last must be there. Raises: NotFound."""
    view: Snapshot = held.ask(lambda client: client.snapshot())
    absent = asyncio.run(_absent(options.bucket, _put_last(view)))
    if not absent:
        return view
    view = held.ask(lambda client: client.snapshot())  # it may have been deleted, or moved, since
    still = sorted(absent.intersection(_put_last(view)))
    if still:
        raise NotFound(
            f"{options.bucket} has no {still[0]}, which the metadata name: is it the cluster's bucket, and not a copy "
            "of it? `stratalog status` shows a node's object store. If it is, put the object back first: `stratalog "
            "pipeline verify --repair`"
        )
    return view


def _put_last(view: Snapshot) -> set[str]:
    """For each of the youngest segments with data in the bucket, the last object that the metadata name."""
    last: list[tuple[int, str]] = []
    for shard in view.shards:
        for segment in shard.segments:
            remote = segment.remote
            key = remote.parts[-1].object_key if remote.parts else remote.manifest_key
            if key is not None and segment.state is not SegmentState.DELETED:
                last.append((segment.opened_ms, key))
    return {key for _, key in heapq.nlargest(_LOOKED_FOR, last)}


async def _absent(bucket: str, keys: Collection[str]) -> set[str]:
    store = open_store(bucket)

    async def missing_key(key: str) -> str | None:
        try:
            await store.head(key)
        except NotFound:
            return key
        return None

    try:
        return {key for key in await each(keys, missing_key) if key is not None}
    finally:
        await store.close()


def _storage_class(topic: Topic) -> str:
    """As the topic itself says; the nodes' default is not known here."""
    given = topic.settings.get("remote.storage.class", "")
    return StorageClass(given).asked_for if given in StorageClass.__members__ else ""


def _archive_rules(bucket: str, topics: Iterable[Topic]) -> dict[UUID, tuple[int, str]]:
    """Of topics that have one: after how long, and the class. A directory has no classes, so no rule holds there."""
    settings = {topic.topic_id: TopicSettings.resolve(ProcessSettings(), topic.settings) for topic in topics}
    rules = {
        topic_id: (one.archive_after_ms, one.archive_storage_class.value)
        for topic_id, one in settings.items()
        if one.archive_after_ms != NO_LIMIT
    }
    classes = open_classes(bucket) if rules else None
    if classes is None:
        return {}
    classes.close()
    return rules


def _asks_for_packing(topic: Topic) -> bool:
    """As the topic itself says: its nodes pack what they upload."""
    return topic.settings.get("remote.compression") == RemoteCompression.ZSTD


def _topics(view: Snapshot, names: Collection[str]) -> dict[UUID, str]:
    known = {topic.name for topic in view.topics}
    missing = sorted(set(names) - known)
    if missing:
        missing_names = ", ".join(f"{one}{did_you_mean(one, known)}" for one in missing)
        raise NotFound(f"there is no topic {missing_names}: `stratalog topics list` shows all")
    return {
        topic.topic_id: topic.name for topic in view.topics if (topic.name in names if names else not topic.is_internal)
    }


def _add_result(held: HeldLock, merged: Merged, result: Compacted) -> None:
    work = merged.work
    result.segments += 1
    fault = merged.fault
    if not fault and merged.manifest_key is not None:
        fault = _swap(held, merged)
    if fault:
        where = f"{work.key.base_offset}-{work.key.epoch} of shard {work.key.shard} of topic {work.topic}"
        result.not_merged.append(NotCompacted(f"segment {where}", fault))
    elif merged.is_left_archived:
        result.left_archived += 1
    elif (
        merged.is_archived
        or merged.parts_after < merged.parts_before
        or merged.packed
        or merged.runs_after < merged.runs_before
    ):
        result.merged += 1
        result.objects_before += merged.parts_before
        result.objects_after += merged.parts_after
        result.bytes_put += merged.bytes_put
        result.archived += merged.is_archived
        result.packed += merged.packed
        result.unpacked_bytes += merged.unpacked_bytes
        result.packed_bytes += merged.packed_bytes
        result.key_runs_before += merged.runs_before
        result.key_runs_after += merged.runs_after


def _swap(held: HeldLock, merged: Merged) -> str:
    """The compare-and-set. Returns why it did not come about, or nothing. Raises: Fenced."""
    work, manifest_key = merged.work, merged.manifest_key
    assert manifest_key is not None, "something was put"
    command = ReplaceManifest(
        held.lock,
        work.key,
        old_digest=work.manifest_digest,
        manifest_key=manifest_key,
        manifest_digest=merged.manifest_digest,
        size_bytes=merged.size_bytes,
    )
    try:
        held.ask(lambda client: client.perform(command))
    except (Conflict, NotFound) as refusal:
        return str(refusal)
    except OutcomeUnknown as unknown:
        return f"{unknown}: the next run finds out whether it was merged"
    return ""
