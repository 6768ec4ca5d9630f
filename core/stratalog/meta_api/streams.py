"""Snapshots as lines of JSON: a long answer that neither side holds as one text (watches: `watch_lines`).

A snapshot is a first line that counts what follows, then one record a line; a reader that does not get them all knows.
A shard with many segments takes several lines, all but its last one say `more`.

Cost: a line costs what its records cost (see `codec`), at most `RECORDS_PER_PIECE` of them and one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from stratalog.meta_api.codec import Count, Json, NodeJson, SegmentJson, ShardJson, TopicJson
from stratalog.model.errors import Unavailable
from stratalog.model.metadata import NodeInfo, Snapshot
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic

T = TypeVar("T")
RECORDS_PER_PIECE = 256


class SnapshotHead(Json):
    """The first line of a snapshot: its version, and how many lines of each kind follow."""

    version: Count
    nodes: Count
    topics: Count
    shards: Count


class ShardLineJson(ShardJson):
    """A shard, or some of its segments, oldest first."""

    more: bool = False
    """Further segments of this shard are in the next line."""


def snapshot_pieces(snapshot: Snapshot) -> Iterator[bytes]:
    """The lines of a snapshot, some at a time: between two pieces the caller may let others run."""
    head = SnapshotHead(
        version=snapshot.version, nodes=len(snapshot.nodes), topics=len(snapshot.topics), shards=len(snapshot.shards)
    )
    lines, weight = [head.model_dump_json().encode()], 0
    for line in _lines(snapshot):
        lines.append(line.model_dump_json().encode())
        weight += 1 + sum(map(weight_of, line.segments)) if isinstance(line, ShardLineJson) else 1
        if weight >= RECORDS_PER_PIECE:
            yield b"\n".join(lines) + b"\n"
            lines, weight = [], 0
    if lines:
        yield b"\n".join(lines) + b"\n"


def _lines(snapshot: Snapshot) -> Iterator[BaseModel]:
    for node in snapshot.nodes:
        yield NodeJson.model_validate(node)
    for topic in snapshot.topics:
        yield TopicJson.model_validate(topic)
    for shard in snapshot.shards:
        for start, end in cut(shard.segments, weight_of, RECORDS_PER_PIECE):
            some = Shard(shard.key, shard.log_start_offset, shard.segments[start:end])
            line = ShardLineJson.model_validate(some)
            yield line if end == len(shard.segments) else line.model_copy(update={"more": True})


def weight_of(segment: Segment | SegmentJson) -> int:
    """How many records it is: itself, its parts, its producers."""
    producers = segment.seal.producers if segment.seal is not None else ()
    return 1 + len(segment.remote.parts) + len(producers)


def cut(records: Sequence[T], weight_of: Callable[[T], int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of records of weight `most` at most, or of one record; one, empty, for no records."""
    start = weight = 0
    for index, record in enumerate(records):
        more = weight_of(record)
        if weight and weight + more > most:
            yield start, index
            start, weight = index, 0
        weight += more
    yield start, len(records)


class SnapshotReader:
    """Puts a snapshot together, line by line."""

    def __init__(self) -> None:
        self._head: SnapshotHead | None = None
        self._nodes: list[NodeInfo] = []
        self._topics: list[Topic] = []
        self._shards: list[Shard] = []
        self._begun: list[Segment] = []
        """Segments of a shard whose last line has not come yet."""

    def add(self, line: bytes) -> None:
        """Raises Unavailable for what is no line of a snapshot."""
        try:
            if self._head is None:
                self._head = SnapshotHead.model_validate_json(line)
            elif len(self._nodes) < self._head.nodes:
                self._nodes.append(NodeJson.model_validate_json(line).to_record())
            elif len(self._topics) < self._head.topics:
                self._topics.append(TopicJson.model_validate_json(line).to_record())
            else:
                self._add_shard(ShardLineJson.model_validate_json(line))
        except ValidationError as error:
            raise Unavailable(
                f"a line of the snapshot cannot be read ({error.errors()[0]['msg']}): ask again"
            ) from error

    def _add_shard(self, line: ShardLineJson) -> None:
        some = line.to_record()
        self._begun += some.segments
        if not line.more:
            self._shards.append(Shard(some.key, some.log_start_offset, tuple(self._begun)))
            self._begun = []

    def finish(self) -> Snapshot:
        """Raises Unavailable when lines are missing."""
        head = self._head
        if head is None or len(self._shards) != head.shards:
            raise Unavailable("the snapshot of the metadata was cut short: ask again")
        return Snapshot(head.version, tuple(self._topics), tuple(self._shards), tuple(self._nodes))
