"""Archives a topic: every sealed segment becomes rows of a table, exactly once.

What makes it so: a segment's plan (schema, pieces) is fixed by the first who puts it, all names follow from the plan,
no object is ever replaced, and a segment counts as archived once its `done` object says so, which is put last. So a
job that was killed anywhere, ran twice, or beside another, or never heard that its last put was taken, ends with the
same table (docs/pipeline.md section 7).
Only sealed segments that are complete in the bucket are archived: their seal names their records forever.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import dropwhile
from typing import Any, Final

import pyarrow as pa

from stratalog.connect.http_login import HttpLogin
from stratalog.model.errors import NotFound
from stratalog.model.segment import SealRecord
from stratalog.objects import ObjectStore, open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedSegment, CommittedShard, topic_id_of
from stratalog_pipeline.cold.cutting import OffsetRange, PartRange, cut, ranges_within
from stratalog_pipeline.cold.progress import Gap, gap_refusal
from stratalog_pipeline.decode.columns import SCHEMA
from stratalog_pipeline.jobs.archive.gaps import accept, gaps_of, note_beginning
from stratalog_pipeline.jobs.archive.piece import (
    FieldsFound,
    InferWork,
    PieceMade,
    PieceWork,
    RecordSchema,
    archive_piece,
    infer_piece,
)
from stratalog_pipeline.jobs.archive.schemas import Schemas
from stratalog_pipeline.jobs.columns.record_kinds import PLACE, evolve
from stratalog_pipeline.jobs.columns.table_layout import (
    Kind,
    SegmentPlan,
    TableFacts,
    TableFormat,
    TimePartition,
    check_facts,
    decode_plan,
    done_key,
    encode,
    plan_key,
    seal_name,
    segments_prefix,
    table_key,
)
from stratalog_pipeline.jobs.columns.table_types import settled
from stratalog_pipeline.jobs.put_once import put_once, put_or_read
from stratalog_pipeline.jobs.runners import OnProgress, OpenStore, Runner
from stratalog_pipeline.jobs.tables.table_log import FieldIds, SegmentFiles, TableLog

PIECE_BYTES: Final = 32 << 20
_COMMIT_SEGMENTS: Final = 64
_COMMIT_BYTES: Final = 4 << 30
"""Most segments, and most bytes, of one commit to a table's log. After a kill, segments without a commit are read
again."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    bucket: str = field(repr=False)
    target: str = field(repr=False)
    topic: str = ""
    kind: Kind = Kind.JSON
    by: TimePartition = TimePartition.DATE
    schema: RecordSchema | None = None
    """None: inferred, of JSON; raw records need none."""
    is_confluent: bool = False
    """Of JSON without a schema: each record begins with a zero byte and an id."""
    cluster_id: str | None = None
    meta_url: str | None = None
    meta_login: HttpLogin | None = None
    """How the meta service is asked; None: as the environment says."""
    piece_bytes: int = PIECE_BYTES
    table: TableFormat = TableFormat.PARQUET
    commit_segments: int = _COMMIT_SEGMENTS
    is_dry_run: bool = False
    is_gap_allowed: bool = False
    """Else records that were deleted before they were archived are an error."""


@dataclass(slots=True)
class Archived:
    """What came of it."""

    topic: str
    cluster_id: str = ""
    segments: int = 0
    already: int = 0
    waiting: int = 0
    """Segments that the bucket has records of, and that this run left out: they, or one before them in their shard, are
    not sealed and complete in the bucket yet."""
    lag_records: int = 0
    """Offsets of these segments: what is committed, and not in the table after this run."""
    rows: int = 0
    dead: int = 0
    files: int = 0
    bytes_read: int = 0
    format: str = TableFormat.PARQUET.value
    is_dry_run: bool = False
    gaps: list[Gap] = field(default_factory=list)
    """All that the table has: offsets that are in no row, for retention was faster."""


@dataclass(slots=True)
class _Segment:
    seal: str
    ranges: list[PartRange]
    plan: SegmentPlan | None = None
    pieces: list[PieceMade] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(one.part.size_bytes for one in self.ranges)


@dataclass(slots=True)
class _Todo:
    result: Archived
    segments: list[_Segment] = field(default_factory=list)
    fresh: list[_Segment] = field(default_factory=list)
    """Those that have no plan yet."""


class Archive:
    def __init__(
        self,
        options: ArchiveOptions,
        run: Runner,
        on_progress: OnProgress = lambda *_: None,
        open_target: OpenStore | None = None,
        log: TableLog | None = None,
    ) -> None:
        """`log`: of a table that has one; left out, it is opened where the table lies."""
        self._options = options
        self._run = run
        self._on_progress = on_progress
        self._open_bucket = partial(open_store, options.bucket)
        self._open_target = open_target or partial(open_store, options.target)
        self._log = log or _open_log(options, self._open_target)

    def archive(self) -> Archived:
        """All that is sealed and not archived yet.

        Raises: Conflict for a table of something else, GapInLog, InvalidRequest, what the stores raise.
        """
        todo = asyncio.run(self._find())
        result = todo.result
        if self._options.is_dry_run or not todo.segments:
            return result
        schemas = asyncio.run(self._plan(todo, self._infer(todo)))
        ids = None if self._log is None else self._log.prepare(_fields_of(self._options.kind, schemas.values()))
        works = [work for segment in todo.segments for work in self._works(result.cluster_id, segment, schemas, ids)]
        by_seal = {segment.seal: segment for segment in todo.segments}
        whole: list[_Segment] = []
        for number, made in enumerate(self._run(archive_piece, works), 1):
            segment = by_seal[made.seal]
            segment.pieces.append(made)
            assert segment.plan is not None, "every segment was planned"
            if len(segment.pieces) == len(segment.plan.pieces):
                whole.append(segment)
            if self._is_enough(whole):
                self._finish_all(whole, schemas, result)
                whole = []
            self._on_progress("archived", number, len(works))
        self._finish_all(whole, schemas, result)
        return result

    def _is_enough(self, whole: Sequence[_Segment]) -> bool:
        """Without a log each segment counts as soon as its files are there."""
        most = 1 if self._log is None else self._options.commit_segments
        return len(whole) >= most or sum(one.size_bytes for one in whole) >= _COMMIT_BYTES

    def _finish_all(self, whole: Sequence[_Segment], schemas: dict[int, RecordSchema], result: Archived) -> None:
        """First they are rows of the table, then they count as archived. A kill in between repeats both."""
        if not whole:
            return
        if self._log is not None:
            self._log.commit([_files_of(one, self._options.kind, schemas) for one in whole])
        asyncio.run(self._finish(whole))
        for piece in (piece for segment in whole for piece in segment.pieces):
            result.rows += piece.done.rows
            result.dead += piece.done.dead
            result.files += len(piece.done.files)

    def _works(
        self, cluster_id: str, segment: _Segment, schemas: dict[int, RecordSchema], ids: FieldIds | None
    ) -> Iterable[PieceWork]:
        assert segment.plan is not None, "every segment was planned"
        options = self._options
        for number, (low, high) in enumerate(segment.plan.pieces):
            ranges = [
                replace(one, from_offset=max(one.from_offset, low), to_offset=min(one.to_offset, high))
                for one in segment.ranges
                if one.from_offset < high and one.to_offset > low
            ]
            yield PieceWork(
                cluster_id,
                options.topic,
                segment.seal,
                number,
                ranges,
                schemas[segment.plan.schema],
                options.by,
                options.table,
                self._open_bucket,
                self._open_target,
                ids,
            )

    async def _finish(self, segments: Sequence[_Segment]) -> None:
        store = self._open_target()
        try:
            for segment in segments:
                pieces = sorted((one.done for one in segment.pieces), key=lambda one: one.piece)
                body = json.dumps([json.loads(encode(one)) for one in pieces], indent=1).encode()
                await put_once(store, done_key(self._options.topic, segment.seal), body)
        finally:
            await store.close()

    # Planning -------------------------------------------------------------------------------------------------------
    async def _find(self) -> _Todo:
        """What is sealed and not archived. Raises: GapInLog for records that were deleted before they were archived."""
        options = self._options
        bucket, target = self._open_bucket(), self._open_target()
        try:
            catalog = await Catalog.open(
                bucket, cluster_id=options.cluster_id, meta_url=options.meta_url, meta_login=options.meta_login
            )
            shards = await catalog.shards([options.topic])
            cluster_id = catalog.names.cluster_id
            todo = _Todo(Archived(options.topic, cluster_id, format=options.table.value, is_dry_run=options.is_dry_run))
            facts = TableFacts(
                cluster_id, options.topic, str(topic_id_of(shards)), options.kind, options.by, options.table
            )
            is_made = await self._is_made(target, facts)
            objects = {info.key async for info in target.list(segments_prefix(options.topic))}
            if not options.is_dry_run:
                # First where it begins: else a kill in between would let a table begin behind what expires meanwhile.
                await note_beginning(target, options.topic, shards, objects)
                if not is_made:
                    await self._make_table(target, facts)
            todo.result.gaps = await self._check_gaps(target, shards, objects)
            sealed = await _sealed(catalog, shards)
            todo.result.waiting = sum(len(shard.segments) for shard in shards) - len(sealed)
            todo.result.lag_records = sum(_lag(shard) for shard in shards)
            for segment in sealed:
                if done_key(options.topic, segment.seal) in objects:
                    todo.result.already += 1
                    continue
                todo.segments.append(segment)
                if plan_key(options.topic, segment.seal) not in objects:
                    todo.fresh.append(segment)
                todo.result.segments += 1
                todo.result.bytes_read += segment.size_bytes
            return todo
        finally:
            await bucket.close()
            await target.close()

    async def _check_gaps(
        self, target: ObjectStore, shards: Sequence[CommittedShard], objects: Collection[str]
    ) -> list[Gap]:
        options = self._options
        known, new = await gaps_of(target, options.topic, shards, objects)
        if new and not options.is_gap_allowed:
            raise gap_refusal(new)
        if not options.is_dry_run:
            await accept(target, new)
        return sorted([*known, *new], key=lambda one: (one.shard, one.from_offset))

    def _infer(self, todo: _Todo) -> list[FieldsFound] | None:
        """The fields of all records of new segments, by the tasks that will read them; None where they are known."""
        options = self._options
        if options.kind is not Kind.JSON or options.schema is not None:
            return None
        pieces = [work.ranges for segment in todo.fresh for work in cut(segment.ranges, options.piece_bytes)]
        works = [
            InferWork(todo.result.cluster_id, n, one, self._open_bucket, options.is_confluent)
            for n, one in enumerate(pieces)
        ]
        found = []
        for one in self._run(infer_piece, works):
            found.append(one)
            self._on_progress("inferring the schema", len(found), len(works))
        return found

    async def _plan(self, todo: _Todo, found: list[FieldsFound] | None) -> dict[int, RecordSchema]:
        """Fixes the plan of each segment. Returns the schemas that the plans name."""
        options = self._options
        target = self._open_target()
        try:
            schemas = Schemas(target, options.topic, options.table, options.by)
            number = 0
            if todo.fresh and found is not None:
                number = await schemas.for_found(found, is_confluent=options.is_confluent)
            elif todo.fresh and options.schema is not None:
                number = await schemas.for_given(options.schema)
            for segment in todo.segments:
                segment.plan = await self._fix_plan(target, segment, number)
            numbers = {one.plan.schema for one in todo.segments if one.plan is not None}
            return {one: await schemas.read(one) for one in numbers}
        finally:
            await target.close()

    async def _is_made(self, target: ObjectStore, facts: TableFacts) -> bool:
        """Whether the table is there. Raises: Conflict for one of something else."""
        key = table_key(facts.topic)
        try:
            check_facts(await target.get(key), facts, key)
        except NotFound:
            if self._options.table is not TableFormat.PARQUET and not self._options.is_dry_run:
                await target.probe()
            return False
        return True

    async def _make_table(self, target: ObjectStore, facts: TableFacts) -> None:
        key = table_key(facts.topic)
        check_facts(await put_or_read(target, key, facts.encode()), facts, key)

    async def _fix_plan(self, target: ObjectStore, segment: _Segment, schema: int) -> SegmentPlan:
        """The first who puts it decides; it stays whatever is asked for later."""
        works = cut(segment.ranges, self._options.piece_bytes)
        pieces = tuple((work.ranges[0].from_offset, work.ranges[-1].to_offset) for work in works)
        key = plan_key(self._options.topic, segment.seal)
        return decode_plan(await put_or_read(target, key, encode(SegmentPlan(schema, pieces))), key)


def _lag(shard: CommittedShard) -> int:
    """Committed offsets behind the last segment that can be archived."""
    waiting = list(dropwhile(lambda one: one.manifest_key is not None, shard.segments))
    return max(0, shard.end_offset - max(shard.log_start_offset, waiting[0].base_offset)) if waiting else 0


async def _sealed(catalog: Catalog, shards: Iterable[CommittedShard]) -> list[_Segment]:
    """Of each shard, from its log start on without a hole: behind the last planned segment is where gaps are looked
    for, so what waits for a manifest holds up what is behind it. Else retention could take it without a word."""
    found = []
    for shard in shards:
        wanted = OffsetRange(shard.log_start_offset, shard.end_offset)
        for segment in shard.segments:
            if segment.manifest_key is None:
                break
            parts, seal = await catalog.parts_of(segment)
            assert seal is not None, "a manifest has a seal"
            found.append(_segment(shard, segment, seal, ranges_within(shard.topic, segment, parts, seal, wanted)))
    return found


def _segment(shard: CommittedShard, segment: CommittedSegment, seal: SealRecord, ranges: list[PartRange]) -> _Segment:
    return _Segment(seal_name(segment.key, seal), ranges)


def _open_log(options: ArchiveOptions, open_target: OpenStore) -> TableLog | None:
    if options.table is TableFormat.PARQUET or options.is_dry_run:
        return None
    from stratalog_pipeline.jobs.tables.table_places import table_place

    place = table_place(options.target)
    if options.table is TableFormat.DELTA:
        from stratalog_pipeline.jobs.tables.delta_log import DeltaLog

        return DeltaLog(place, options.topic, options.by)
    from stratalog_pipeline.jobs.tables.iceberg_log import IcebergLog

    return IcebergLog(place, open_target, options.topic, options.by, options.kind)


def _files_of(segment: _Segment, kind: Kind, schemas: dict[int, RecordSchema]) -> SegmentFiles:
    assert segment.plan is not None, "every segment was planned"
    data = sorted((file for one in segment.pieces for file in one.data), key=lambda file: file.key)
    dead = sorted((file for one in segment.pieces for file in one.dead), key=lambda file: file.key)
    fields = _fields_of(kind, [schemas[segment.plan.schema]])
    return SegmentFiles(segment.seal, fields, tuple(data), tuple(dead))


def _fields_of(kind: Kind, schemas: Iterable[RecordSchema]) -> Any:
    """The columns of rows by any of these schemas, settled."""
    if kind is Kind.RAW:
        return settled(SCHEMA)
    fields = pa.schema(PLACE)
    for one in schemas:
        fields = evolve(fields, one.fields)
    return settled(fields)
