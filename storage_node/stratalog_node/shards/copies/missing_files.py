"""Sealed segments whose file should be on this disk and is missing: dropped when noticed, taken back when it returns.

`machines.restart.shard_restart` decides which are missing, `machines.restart.missing_copy` what that means for a
segment. A copy whose file vanishes is treated at once as it would be after a restart: reads use
the object store, and the uploader holds the segment and says why.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.machines.restart.missing_copy import judge_missing
from stratalog.machines.restart.restart_events import NoteMissing, TakeSealed
from stratalog.machines.restart.shard_restart import judge_sealed
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.disk.directory_calls import background_at
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import NodeLayout, segment_path
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.sealed import SealedCopy

log = logger(__name__)


def take_sealed(shard: LocalShard, segment: Segment, points: IndexPoints | None = None) -> None:
    """Its file is there: it is a sealed copy of this shard. `points`: held in memory from now on, if they are known."""
    assert segment.seal is not None
    known = shard.copies.get(segment.epoch)
    if known is not None and known.key == segment.key:
        return
    context = shard.context
    size_bytes = SEGMENT_HEADER_BYTES + segment.seal.size_bytes
    file = SegmentFile(context.layout.segment(segment.key), context.descriptors, size_bytes)
    copy = SealedCopy(segment.key, file, context.layout.index(segment.key), segment.seal)
    shard.copies[segment.epoch] = copy
    shard.missing.discard(segment.key)
    if points is not None:
        context.sealed_points.hold(copy, points)


def note_missing(shard: LocalShard, segment: Segment) -> None:
    """Told and counted once, until it is back."""
    if segment.key in shard.missing:
        return
    shard.missing.add(segment.key)
    absent = shard.context.layout.absent
    if absent:
        shard.context.stats.away_copies += 1
        # The directory has its own line; it may have thousands of copies.
        log.debug("local copy is away or missing: a data directory is absent", segment=str(segment.key))
        return
    shard.context.stats.missing_copies += 1
    may_read = shard.context.catalog.reads_bucket(segment.key.topic_id)
    verdict = judge_missing(segment, shard.context.node_id, has_store=True, may_read=may_read)
    log.error("local copy is missing", segment=str(segment.key), what=verdict.what, next=verdict.next_step)


def copy_gone(shard: LocalShard, copy: LocalCopy) -> None:
    """A read found no file. A copy that is not sealed stays: its shard stops with the next write."""
    if shard.copies.get(copy.key.epoch) is not copy:
        return  # freed, or noticed before
    segment = shard.context.catalog.segment(copy.key)
    shard.take_out(copy.key)
    shard.context.layout.moved.pop(copy.key, None)  # another copy of it begins in the first directory
    copy.file.close_when_unused()
    shard.context.sealed_points.forget(copy)
    if segment is not None:
        if isinstance(judge_sealed(segment, shard.context.node_id, has_file=False), NoteMissing):
            note_missing(shard, segment)
        shard.context.events.segment_changed(shard, segment)


def has_sealed_size(layout: NodeLayout, segment: Segment) -> bool:
    """Whether the segment's file is there, and as long as its seal says if it is sealed. Blocking, for a moment."""
    try:
        size_bytes = layout.segment(segment.key).stat().st_size
    except OSError:
        return False
    return size_bytes >= SEGMENT_HEADER_BYTES + (segment.seal.size_bytes if segment.seal is not None else 0)


async def _root_with(shard: LocalShard, segment: Segment) -> Path | None:
    """The first directory that has all of the sealed segment."""
    assert segment.seal is not None
    context, whole_bytes = shard.context, SEGMENT_HEADER_BYTES + segment.seal.size_bytes
    for root in context.layout.roots:
        path = segment_path(root, segment.key)
        with suppress(OSError, Unavailable):
            size_of = partial(_size_of, path)
            if root == context.layout.root:
                size_bytes = await context.threads.read(size_of)
            else:
                size_bytes = await background_at(context.layout, context.threads, path, size_of)
            if size_bytes >= whole_bytes:
                return root
    return None


def _size_of(path: Path) -> int:
    """Blocking. Raises: OSError."""
    return path.stat().st_size


async def look_for(shard: LocalShard, key: SegmentKey) -> bool:
    """Whether a missing file is there again (a volume was mounted, a file put back); then it is a copy as before."""
    layout, known = shard.context.layout, shard.context.catalog.segment(key)
    if known is None or known.seal is None:
        return False
    root = await _root_with(shard, known)
    if root is None or root not in layout.roots:  # it failed meanwhile
        return False
    segment = shard.context.catalog.segment(key)
    if segment is None or segment.seal is None:
        return False
    if not isinstance(judge_sealed(segment, shard.context.node_id, has_file=True), TakeSealed):
        return False
    if key in shard.missing:
        if root != layout.root:
            layout.moved[key] = root
        take_sealed(shard, segment)
        log.info("local copy is back", segment=str(key))
        shard.context.events.segment_changed(shard, segment)
    return True
