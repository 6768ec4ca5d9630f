"""Stores the committed records of a topic in a target: each exactly once, by topic, shard and offset.

The target remembers how far each shard has come. What is committed behind that is cut into ranges of one shard, about
`piece_bytes` each. The ranges of a shard are stored one after another, those of several shards at the same time. What a
committed offset holds never changes, so a range is the same in each read. Each target's module says how it stores a
range once. Order of steps: the target's table is made, with where each shard begins; gaps are looked for; ranges are
stored. After a kill in between, the next run continues.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

from stratalog.connect.http_login import HttpLogin
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.machines.backoff import pause_after
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.objects import ObjectStore, open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedShard, topic_id_of
from stratalog_pipeline.cold.cutting import Asked, PartRange, Work, cut
from stratalog_pipeline.cold.part_records import PartFetcher, tables_of
from stratalog_pipeline.cold.progress import Position, beginning, between, gap_refusal, gaps
from stratalog_pipeline.decode.columns import UnreadBatch, Wanted
from stratalog_pipeline.jobs.runners import OnProgress, OpenStore, Runner, in_rounds
from stratalog_pipeline.jobs.sinks.target import (
    DELETED,
    Lack,
    ShardRange,
    SinkFacts,
    Stored,
    Target,
    TargetAddress,
    TargetKind,
    TargetState,
)

PIECE_BYTES: Final = 32 << 20
_TRIES: Final = 6
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0
_COLUMNS: Final = ("topic", "shard", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    bucket: str = field(repr=False)
    target: TargetAddress
    topic: str
    cluster_id: str | None = None
    meta_url: str | None = None
    meta_login: HttpLogin | None = None
    """How the meta service is asked; None: as the environment says."""
    piece_bytes: int = PIECE_BYTES
    is_dry_run: bool = False
    is_gap_allowed: bool = False
    """Else records that were deleted before they were stored are an error."""


@dataclass(frozen=True, slots=True)
class SinkWork:
    """A range of one shard."""

    facts: SinkFacts
    ranges: Sequence[PartRange]
    target: TargetAddress
    open_bucket: OpenStore = field(repr=False)

    @property
    def shard_key(self) -> ShardKey:
        return self.ranges[0].segment.shard_key

    @property
    def wanted(self) -> ShardRange:
        return ShardRange(self.shard_key.shard, self.ranges[0].from_offset, self.ranges[-1].to_offset)


@dataclass(slots=True)
class Sunk:
    """What came of it. `pieces_there` were stored meanwhile by another job, or by a try whose answer was lost."""

    topic: str
    target: str
    cluster_id: str = ""
    pieces: int = 0
    pieces_there: int = 0
    records: int = 0
    bytes_read: int = 0
    retries: int = 0
    """Pieces that were tried again, because the target or the bucket did not answer."""
    is_dry_run: bool = False
    lacks: list[Lack] = field(default_factory=list)
    """All that the target lacks below its progress: offsets that retention deleted first, and batches that cannot be
    read."""
    unread: list[str] = field(default_factory=list)
    """Batches of this run that cannot be read, as words."""


def sink(options: SinkOptions, run: Runner, on_progress: OnProgress = lambda *_: None) -> Sunk:
    """All that is committed and not stored yet.

    Raises: Conflict for a target that holds something else, GapInLog, InvalidRequest, what bucket and target raise."""
    facts, shards = asyncio.run(_committed(options))
    sunk = Sunk(options.topic, options.target.kind.value, facts.cluster_id, is_dry_run=options.is_dry_run)
    position, state = _prepared(options, facts, shards)
    sunk.lacks = list(state.lacks)
    works = asyncio.run(_works(options, facts, shards, position, state.fixed))
    sunk.pieces = len(works)
    sunk.bytes_read = sum(one.part.size_bytes for work in works for one in work.ranges)
    if options.is_dry_run:
        return sunk
    number = 0
    for those in in_rounds(works, _shard_of):
        for done in run(sink_piece, those):
            number += 1
            sunk.records += done.stored.records
            sunk.pieces_there += done.stored.was_there
            sunk.retries += done.retries
            for batch in done.stored.unread:
                sunk.lacks.append(Lack(done.shard, batch.base_offset, batch.end_offset, batch.why))
                sunk.unread.append(f"topic {options.topic}, shard {done.shard}, {batch}")
            on_progress("stored", number, len(works))
    sunk.lacks.sort(key=lambda one: (one.shard, one.from_offset))
    return sunk


def _prepared(options: SinkOptions, facts: SinkFacts, shards: Sequence[CommittedShard]) -> tuple[Position, TargetState]:
    """Where each shard is read next, and what the target has. Raises: Conflict, GapInLog."""
    begins = {key.shard: offset for key, offset in beginning(shards, {}).offsets.items()}
    with open_target(options.target) as target:
        state = target.read(facts) if options.is_dry_run else target.prepare(facts, begins)
        if state is None:
            state = TargetState(begins)
        offsets = {ShardKey(facts.topic_id, shard): offset for shard, offset in state.next_offsets.items()}
        position = Position(offsets, {facts.topic_id: facts.topic})
        for shard in shards:
            between(position, position, shard, f"{options.target.kind} {options.target.name}")
        found = gaps(position, shards)
        if found and not options.is_gap_allowed:
            raise gap_refusal(found)
        if found and not options.is_dry_run:
            target.accept(facts, found)
    offsets |= {ShardKey(facts.topic_id, gap.shard): gap.to_offset for gap in found}
    lacks = [Lack(gap.shard, gap.from_offset, gap.to_offset, DELETED) for gap in found]
    return Position(offsets, position.topics), TargetState(state.next_offsets, [*state.lacks, *lacks], state.fixed)


async def _committed(options: SinkOptions) -> tuple[SinkFacts, list[CommittedShard]]:
    store = open_store(options.bucket)
    try:
        catalog = await _catalog(store, options)
        shards = await catalog.shards([options.topic])
        return SinkFacts(catalog.names.cluster_id, options.topic, topic_id_of(shards)), shards
    finally:
        await store.close()


async def _works(
    options: SinkOptions,
    facts: SinkFacts,
    shards: Sequence[CommittedShard],
    position: Position,
    fixed: Mapping[int, Mapping[int, int]],
) -> list[SinkWork]:
    """Of each shard, from its position on."""
    open_bucket = partial(open_store, options.bucket)
    store = open_bucket()
    try:
        catalog = await _catalog(store, options)
        works = []
        for shard in shards:
            name = (shard.topic, shard.key.shard)
            for begin, end in fixed_first(position.at(shard.key), fixed.get(shard.key.shard, {})):
                asked = Asked(starts={name: begin}, ends={} if end is None else {name: end})
                ranges = await catalog.ranges([shard], asked)
                pieces = cut(ranges, options.piece_bytes) if end is None else [Work(ranges)] if ranges else []
                works += [SinkWork(facts, piece.ranges, options.target, open_bucket) for piece in pieces]
        return works
    finally:
        await store.close()


def fixed_first(begin: int, fixed: Mapping[int, int]) -> list[tuple[int, int | None]]:
    """The fixed ranges that follow one another from `begin` on, and then the rest, which has no end yet."""
    found: list[tuple[int, int | None]] = []
    while begin in fixed:
        found.append((begin, fixed[begin]))
        begin = fixed[begin]
    return [*found, (begin, None)]


async def _catalog(store: ObjectStore, options: SinkOptions) -> Catalog:
    return await Catalog.open(
        store, cluster_id=options.cluster_id, meta_url=options.meta_url, meta_login=options.meta_login
    )


def _shard_of(work: SinkWork) -> ShardKey:
    return work.shard_key


def open_target(address: TargetAddress) -> Target:
    """Raises: InvalidRequest for an address that cannot be used."""
    match address.kind:
        case TargetKind.POSTGRES:
            from stratalog_pipeline.jobs.sinks.postgres import PostgresTarget

            return PostgresTarget(address)
        case TargetKind.ELASTICSEARCH | TargetKind.OPENSEARCH:
            from stratalog_pipeline.jobs.sinks.search import SearchTarget

            return SearchTarget(address)
        case TargetKind.CLICKHOUSE:
            from stratalog_pipeline.jobs.sinks.clickhouse import ClickHouseTarget

            return ClickHouseTarget(address)


# A piece ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PieceSunk:
    shard: int
    stored: Stored
    retries: int


def sink_piece(
    work: SinkWork,
    open_it: Callable[[TargetAddress], Target] = open_target,
    sleep: Callable[[float], None] = time.sleep,
) -> PieceSunk:
    """For a task. A piece that fails because something does not answer is tried again, a bounded number of times."""
    for failures in count(1):
        try:
            with open_it(work.target) as target:
                return PieceSunk(
                    work.wanted.shard, target.store(work.facts, work.wanted, partial(_read, work)), failures - 1
                )
        except Unavailable:
            if failures == _TRIES:
                raise
            sleep(pause_after(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S, random.random()))
    raise AssertionError("each try returns or raises")


def _read(work: SinkWork, from_offset: int, unread: list[UnreadBatch]) -> Iterator[Any]:
    with PartFetcher(work.open_bucket, ObjectNames("", work.facts.cluster_id)) as fetcher:
        for part in fetcher.fetch(one for one in work.ranges if one.to_offset > from_offset):
            yield from tables_of(part, Wanted(columns=_COLUMNS, from_offset=from_offset), unread.append)
