"""Looks a key up in what is in the bucket, by the key indexes of complete segments. Nodes serve no byte of it.

Cost: what finding out about the segments costs (`stratalog_pipeline.cold.catalog`), then a range read for each segment,
and one for each batch, or batches side by side, that has the key. Memory: the records of 32 segments, at most `limit`
of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from stratalog.formats.batches.records import Record
from stratalog.model.errors import NotFound
from stratalog.model.ids import ShardKey
from stratalog.objects import open_store
from stratalog.stored.key_lookup import LookupCost, records_of
from stratalog_pipeline.cold.catalog import Catalog, each
from stratalog_pipeline.cold.committed import CommittedSegment, CommittedShard

_AT_A_TIME: Final = 32
_LOOKS: Final = 2


@dataclass(slots=True)
class ColdShardFound:
    """What the bucket says of one shard."""

    key: ShardKey
    log_start_offset: int
    records: list[Record] = field(default_factory=list)
    """Offsets rising."""
    searched: list[tuple[int, int]] = field(default_factory=list)
    """Offsets `[from, to)` in which there is no other record of the key."""
    unindexed: list[tuple[int, int]] = field(default_factory=list)
    """Offsets of complete segments without a key index."""


@dataclass(slots=True)
class ColdFound:
    cluster_id: str
    shards: list[ColdShardFound] = field(default_factory=list)
    cost: LookupCost = field(default_factory=LookupCost)
    segments: int = 0
    is_cut: bool = False
    """There may be more records: the limit was reached."""


async def find_cold(
    bucket: str,
    topic: str,
    key: bytes,
    *,
    shards: frozenset[int] | None,
    limit: int,
    cluster_id: str | None,
    meta_url: str | None,
) -> ColdFound:
    """Raises: Corrupt, NotFound for a missing bucket or cluster, Unavailable. A topic without data in the bucket is not
    an error: the answer has no shards."""
    store = open_store(bucket)
    try:
        for looks_left in reversed(range(_LOOKS)):
            catalog = await Catalog.open(store, cluster_id=cluster_id, meta_url=meta_url)
            found = ColdFound(catalog.names.cluster_id)
            try:
                there = await catalog.shards([topic])
            except NotFound:  # there is no such topic, or what it had was deleted since it was listed
                continue
            try:
                await _find_in_topic(catalog, there, key, shards, limit, found)
                break
            except NotFound:  # since it was listed: deleted, compacted, or expired
                if not looks_left:
                    raise
        return found
    finally:
        await store.close()


async def _find_in_topic(
    catalog: Catalog,
    there: Iterable[CommittedShard],
    key: bytes,
    only: frozenset[int] | None,
    limit: int,
    found: ColdFound,
) -> None:
    left = limit
    for shard in sorted(there, key=lambda one: one.key.shard):
        if only is not None and shard.key.shard not in only:
            continue
        of_shard = ColdShardFound(shard.key, shard.log_start_offset)
        found.shards.append(of_shard)
        for start in range(0, len(shard.segments), _AT_A_TIME):
            if left <= 0:
                found.is_cut = True
                break
            some = shard.segments[start : start + _AT_A_TIME]
            left -= await _find_in_shard(catalog, some, key, of_shard, found, left)


async def _find_in_shard(
    catalog: Catalog,
    segments: tuple[CommittedSegment, ...],
    key: bytes,
    shard: ColdShardFound,
    found: ColdFound,
    limit: int,
) -> int:
    """Returns how many records were found."""

    async def one(segment: CommittedSegment) -> list[Record] | None:
        if segment.manifest_key is None:
            return None
        manifest = await catalog.manifest_of(segment)
        if not manifest.key_runs and manifest.parts:
            shard.unindexed.append((segment.base_offset, segment.end_offset))
            return None
        of_key = records_of(catalog.store, manifest, key, found.cost, from_offset=shard.log_start_offset, limit=limit)
        return [record async for record in of_key]

    count = 0
    for segment, records in zip(segments, await each(segments, one), strict=True):
        if records is None:
            continue
        found.segments += 1
        kept = records[: limit - count]
        shard.records += kept
        count += len(kept)
        shard.searched.append((segment.base_offset, segment.end_offset))
        found.is_cut = found.is_cut or len(kept) < len(records) or len(records) == limit
    shard.unindexed.sort()
    return count
