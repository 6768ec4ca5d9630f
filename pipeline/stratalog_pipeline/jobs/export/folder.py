"""What the folder of an exported topic holds: the files of one export, and the facts and plans that name them.

    <topic>/_export.json                                    what is exported: cluster, topic id, shape, selection
    <topic>/_plans/<number>.json                            of each shard the offsets planned, and how they are cut
    <topic>/<shard>/<from>-<to>-<export>.<shape>            records
    <topic>/_unread/<shard>/<from>-<to>-<export>.<shape>.json   batches that the file lacks: they cannot be read

`<export>` is a digest of the facts, so a file's name determines its content. Facts and plans are put before the first
file that they name, a list of unread batches before its file, and no object is ever replaced. A later run of the same
export adds a plan for the records that are new, from the offset where the last plan ends, and puts every planned file
that is missing. So the files never overlap, and together they have each record once. A folder with files of anything
else is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from stratalog.model.errors import Conflict, Corrupt, NotFound, Unavailable
from stratalog.objects import ObjectStore
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedShard
from stratalog_pipeline.cold.cutting import Asked, GapInLog, PartRange, cut, gap_words, range_of
from stratalog_pipeline.jobs.columns.table_layout import encode_object
from stratalog_pipeline.jobs.columns.topic_folder import topic_folder
from stratalog_pipeline.jobs.put_once import put_once, put_or_read

_FORMAT: Final = 1
_TRIES: Final = 10
_ELSEWHERE: Final = "name another --to"
Piece: TypeAlias = tuple[int, int]
"""The offsets `[from, to)` of a file."""


@dataclass(frozen=True, slots=True)
class ExportFacts:
    """What never changes about an exported topic."""

    cluster_id: str
    topic: str
    topic_id: str
    shape: str
    snapshot: str | None
    selection: Mapping[str, Any]
    """The filter, as JSON."""

    def encode(self) -> bytes:
        return encode_object(
            {
                "format": _FORMAT,
                "cluster_id": self.cluster_id,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "shape": self.shape,
                "snapshot": self.snapshot,
                "selection": dict(self.selection),
            }
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()[:16]

    def check(self, body: bytes, source: str) -> None:
        """Raises: Conflict for a folder that holds another export."""
        found, wanted = _object(body, source), json.loads(self.encode())
        for name, value in wanted.items():
            if found.get(name) != value:
                raise Conflict(
                    f"{source}: the folder holds an export of the topic whose {name} is {found.get(name)!r}, not "
                    f"{value!r}: {_ELSEWHERE}"
                )


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How offsets `[from_offset, to_offset)` of a shard are exported. Offsets in no piece have no wanted record."""

    from_offset: int
    to_offset: int
    pieces: tuple[Piece, ...]


Plan: TypeAlias = Mapping[int, ShardPlan]
"""By shard."""


@dataclass(frozen=True, slots=True)
class FilePlanned:
    """A file that is missing, and where its records are."""

    key: str
    ranges: Sequence[PartRange]


def selection_of(asked: Asked) -> dict[str, Any]:
    """The filter as facts name it. `topics` is not part of it: each topic has a folder of its own."""
    by_shard = {
        name: [[topic, shard, offset] for (topic, shard), offset in sorted(offsets.items())]
        for name, offsets in (("starts", asked.starts), ("ends", asked.ends))
    }
    return {
        "shards": None if asked.shards is None else sorted(asked.shards),
        "only": None if asked.only is None else sorted(map(list, asked.only)),
        "from_offset": asked.from_offset,
        "to_offset": asked.to_offset,
        "least_offset": asked.least_offset,
        "from_ms": asked.from_ms,
        "to_ms": asked.to_ms,
        "keys": None if asked.keys is None else sorted(key.hex() for key in asked.keys),
        **by_shard,
    }


class ExportFolder:
    """The folder of one topic in the target. One event loop."""

    def __init__(self, target: ObjectStore, facts: ExportFacts, piece_bytes: int) -> None:
        self._target = target
        self._facts = facts
        self._piece_bytes = piece_bytes
        self._prefix = f"{topic_folder(facts.topic)}/"
        self._facts_key = f"{self._prefix}_export.json"
        self._plans_prefix = f"{self._prefix}_plans/"

    async def plan(
        self, catalog: Catalog, shards: Sequence[CommittedShard], asked: Asked, *, is_dry_run: bool
    ) -> tuple[list[FilePlanned], int, list[str]]:
        """The files that are missing; how many are there already, and the batches that these lack, in words.

        Raises: Conflict for a folder of something else; GapInLog where records that are still to be exported are gone,
        or the bucket is older than the export.
        """
        await self._begin(is_dry_run=is_dry_run)
        plans = await self._planned(catalog, shards, asked, is_dry_run=is_dry_run)
        present = {info.key async for info in self._target.list(self._prefix)}
        files, there, unread = list[FilePlanned](), 0, list[str]()
        for shard in shards:
            pieces = [piece for plan in plans if shard.key.shard in plan for piece in plan[shard.key.shard].pieces]
            missing = [piece for piece in pieces if self._key(shard, piece) not in present]
            there += len(pieces) - len(missing)
            notes = [unread_key(key) for piece in pieces if (key := self._key(shard, piece)) in present]
            for note in present.intersection(notes):
                unread += _decode_unread(await self._target.get(note), note)
            files += await self._files(catalog, shard, asked, missing)
        return files, there, sorted(unread)

    async def _begin(self, *, is_dry_run: bool) -> None:
        try:
            self._facts.check(await self._target.get(self._facts_key), self._facts_key)
            return
        except NotFound:
            pass
        async for info in self._target.list(self._prefix):
            if info.key.startswith(self._plans_prefix) or info.key == self._facts_key:
                break  # by another job, at this moment
            raise Conflict(
                f"{info.key}: the folder holds files, and no _export.json says what they are: {_ELSEWHERE}, or remove "
                "them"
            )
        if not is_dry_run:
            body = self._facts.encode()
            self._facts.check(await put_or_read(self._target, self._facts_key, body), self._facts_key)

    async def _planned(
        self, catalog: Catalog, shards: Sequence[CommittedShard], asked: Asked, *, is_dry_run: bool
    ) -> list[Plan]:
        """All plans, the last one for what is new."""
        for _ in range(_TRIES):
            plans = await self._read_plans()
            new = {}
            for shard in shards:
                found = await self._plan_new(catalog, shard, asked, plans)
                if found is not None:
                    new[shard.key.shard] = found
            if not new or is_dry_run:
                return [*plans, new]
            if await put_once(self._target, f"{self._plans_prefix}{len(plans) + 1:06d}.json", _encode(new)):
                return [*plans, new]
        raise Unavailable(
            f"the export of {self._facts.topic} was planned {_TRIES} times meanwhile: run one job at a time"
        )

    async def _plan_new(
        self, catalog: Catalog, shard: CommittedShard, asked: Asked, plans: Sequence[Plan]
    ) -> ShardPlan | None:
        begins = [plan[shard.key.shard].to_offset for plan in plans if shard.key.shard in plan]
        if begins:
            from_offset = begins[-1]
            if shard.end_offset < from_offset:
                raise GapInLog(
                    f"shard {shard.key.shard} of topic {shard.topic} was exported up to offset {from_offset}, and is "
                    f"committed up to {shard.end_offset} now: the bucket, or its metadata, are older than the export"
                )
            _check_gap(shard, from_offset)
            name = (shard.topic, shard.key.shard)
            asked = replace(asked, starts={**asked.starts, name: from_offset})
        wanted = range_of(shard, asked)
        if wanted is None:
            return None
        works = cut(await catalog.ranges([shard], asked), self._piece_bytes)
        pieces = tuple((work.ranges[0].from_offset, work.ranges[-1].to_offset) for work in works)
        return ShardPlan(wanted.from_offset, wanted.to_offset, pieces)

    async def _files(
        self, catalog: Catalog, shard: CommittedShard, asked: Asked, pieces: Sequence[Piece]
    ) -> list[FilePlanned]:
        if not pieces:
            return []
        low, high = min(low for low, _ in pieces), max(high for _, high in pieces)
        _check_gap(shard, low)
        if high > shard.end_offset:
            raise GapInLog(
                f"offsets {shard.end_offset} to {high} of shard {shard.key.shard} of topic {shard.topic} were planned, "
                "and are not committed now: the bucket, or its metadata, are older than the export"
            )
        name = (shard.topic, shard.key.shard)
        ranges = await catalog.ranges([shard], Asked(starts={name: low}, ends={name: high}, from_ms=asked.from_ms))
        return [FilePlanned(self._key(shard, piece), _within(ranges, piece)) for piece in pieces]

    def _key(self, shard: CommittedShard, piece: Piece) -> str:
        places = f"{piece[0]:020d}-{piece[1]:020d}"
        return f"{self._prefix}{shard.key.shard}/{places}-{self._facts.digest}.{self._facts.shape}"

    async def _read_plans(self) -> list[Plan]:
        keys = sorted([info.key async for info in self._target.list(self._plans_prefix)])
        return [_decode(await self._target.get(key), key) for key in keys]


def unread_key(file_key: str) -> str:
    """Where the batches that a file lacks are named."""
    folder, shard, name = file_key.rsplit("/", 2)
    return f"{folder}/_unread/{shard}/{name}.json"


def encode_unread(batches: Sequence[str]) -> bytes:
    return encode_object({"format": _FORMAT, "unread": list(batches)})


def _decode_unread(body: bytes, source: str) -> list[str]:
    found = _object(body, source).get("unread")
    if not isinstance(found, list):
        raise Corrupt("it does not name unread batches", source=source, position=0)
    return list(map(str, found))


def _check_gap(shard: CommittedShard, from_offset: int) -> None:
    if from_offset < shard.log_start_offset:
        way_on = f"The export in this folder cannot be completed: {_ELSEWHERE}"
        raise GapInLog(gap_words(shard.topic, shard.key.shard, from_offset, shard.log_start_offset, way_on))


def _within(ranges: Sequence[PartRange], piece: Piece) -> list[PartRange]:
    low, high = piece
    return [
        replace(one, from_offset=max(one.from_offset, low), to_offset=min(one.to_offset, high))
        for one in ranges
        if one.from_offset < high and one.to_offset > low
    ]


def _encode(plan: Plan) -> bytes:
    shards = {
        str(shard): {"from": one.from_offset, "to": one.to_offset, "pieces": [list(piece) for piece in one.pieces]}
        for shard, one in plan.items()
    }
    return encode_object({"format": _FORMAT, "shards": shards})


def _decode(body: bytes, source: str) -> Plan:
    try:
        return {
            int(shard): ShardPlan(
                int(one["from"]), int(one["to"]), tuple((int(low), int(high)) for low, high in one["pieces"])
            )
            for shard, one in _object(body, source)["shards"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"it is not a plan of an export: {error}", source=source, position=0) from error


def _object(body: bytes, source: str) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise Corrupt(f"it is not JSON: {error}", source=source, position=0) from error
    if not isinstance(found, dict):
        raise Corrupt("it is not a JSON object", source=source, position=0)
    return found
