"""Snapshots as lines of JSON: a long answer that neither side holds as one text (watches: `watch_lines`).

A snapshot is a first line that counts what follows, then one record a line; a reader that does not get them all knows.
A shard with many segments takes several lines, all but its last one say `more`.

Cost: a line costs what its records cost (see `json_shape`), at most `RECORDS_PER_SLICE` of them and one, for the first
of those who read it at about the same time. Memory: `MAX_ENCODED_BYTES` for all of them, and a slice for each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog.meta_api.json_shape import JsonShape, NotOfShape
from stratalog.model.bounds import Count
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.mounts import Mount
from stratalog.model.quotas import EntityQuotas
from stratalog.model.rights import Rule
from stratalog.model.scram import UserCredential
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic

T = TypeVar("T")
RECORDS_PER_SLICE: Final = 256
MAX_ENCODED_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """The first line of a snapshot: its version, and how many records of each kind follow."""

    version: Count
    nodes: Count
    topics: Count
    shards: Count
    mounts: Count = 0
    rules: Count = 0
    credentials: Count = 0
    """Of users; 0 where the reader did not ask for them."""
    quotas: Count = 0


@dataclass(frozen=True, slots=True)
class ShardLine:
    """A shard, or some of its segments, oldest first."""

    key: ShardKey
    log_start_offset: Count
    segments: tuple[Segment, ...]
    more: bool = False
    """Further segments of this shard are in the next line."""


_HEAD: Final[JsonShape[SnapshotHead]] = JsonShape(SnapshotHead)
_NODE: Final[JsonShape[Node]] = JsonShape(Node)
_TOPIC: Final[JsonShape[Topic]] = JsonShape(Topic)
_SHARD: Final[JsonShape[ShardLine]] = JsonShape(ShardLine)
_MOUNT: Final[JsonShape[Mount]] = JsonShape(Mount)
_RULE: Final[JsonShape[Rule]] = JsonShape(Rule)
_CREDENTIAL: Final[JsonShape[UserCredential]] = JsonShape(UserCredential)
_QUOTAS: Final[JsonShape[EntityQuotas]] = JsonShape(EntityQuotas)


class EncodedShards:
    """The lines of shards that snapshots have asked for last: those that are read side by side, at one version or at
    several, encode what they have in common once."""

    def __init__(self, max_bytes: int = MAX_ENCODED_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.lines_encoded = 0
        self._lines: OrderedDict[tuple[int, int], tuple[Shard, bytes]] = OrderedDict()
        """By the record's identity, which holds while the record is held."""

    def line(self, shard: Shard, start: int, end: int) -> bytes:
        """Segments `[start, end)`; `end` follows from the shard and `start`."""
        known = self._lines.get((id(shard), start))
        if known is not None:
            return known[1]
        shard_line = ShardLine(shard.key, shard.log_start_offset, shard.segments[start:end], end < len(shard.segments))
        line = _SHARD.write(shard_line)
        self._lines[id(shard), start] = shard, line
        self.lines_encoded += 1
        self.size_bytes += len(line)
        while self.size_bytes > self.max_bytes:
            _, (_, dropped) = self._lines.popitem(last=False)
            self.size_bytes -= len(dropped)
        return line


def snapshot_slices(snapshot: Snapshot, encoded: EncodedShards | None = None) -> Iterator[bytes]:
    """The lines of a snapshot, some at a time: between two slices the caller may let others run."""
    encoded = encoded or EncodedShards()
    counts = len(snapshot.nodes), len(snapshot.topics), len(snapshot.shards), len(snapshot.mounts)
    further = len(snapshot.rules), len(snapshot.credentials), len(snapshot.quotas)
    head = SnapshotHead(snapshot.version, *counts, *further)
    lines, weight = [_HEAD.write(head)], 0
    for line, line_weight in _lines(snapshot, encoded):
        lines.append(line)
        weight += line_weight
        if weight >= RECORDS_PER_SLICE:
            yield b"\n".join(lines) + b"\n"
            lines, weight = [], 0
    if lines:
        yield b"\n".join(lines) + b"\n"


def _lines(snapshot: Snapshot, encoded: EncodedShards) -> Iterator[tuple[bytes, int]]:
    """Each line and how many records it holds."""
    for node in snapshot.nodes:
        yield _NODE.write(node), 1
    for topic in snapshot.topics:
        yield _TOPIC.write(topic), 1
    for shard in snapshot.shards:
        for start, end in cut(shard.segments, weight_of, RECORDS_PER_SLICE):
            weight = 1 + sum(map(weight_of, shard.segments[start:end]))
            yield encoded.line(shard, start, end), weight
    for mount in snapshot.mounts:
        yield _MOUNT.write(mount), 1
    for rule in snapshot.rules:
        yield _RULE.write(rule), 1
    for credential in snapshot.credentials:
        yield _CREDENTIAL.write(credential), 1
    for quotas in snapshot.quotas:
        yield _QUOTAS.write(quotas), 1


def weight_of(segment: Segment) -> int:
    """How many records it is: itself, its parts."""
    return 1 + len(segment.remote.parts)


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
        self._nodes: list[Node] = []
        self._topics: list[Topic] = []
        self._shards: list[Shard] = []
        self._mounts: list[Mount] = []
        self._rules: list[Rule] = []
        self._credentials: list[UserCredential] = []
        self._quotas: list[EntityQuotas] = []
        self._begun: list[Segment] = []
        """Segments of a shard whose last line has not come yet."""

    def add(self, line: bytes) -> None:
        """Raises Unavailable for anything but a line of a snapshot."""
        try:
            if self._head is None:
                self._head = _HEAD.read(line)
            elif len(self._nodes) < self._head.nodes:
                self._nodes.append(_NODE.read(line))
            elif len(self._topics) < self._head.topics:
                self._topics.append(_TOPIC.read(line))
            elif len(self._shards) < self._head.shards:
                self._add_shard(_SHARD.read(line))
            elif len(self._mounts) < self._head.mounts:
                self._mounts.append(_MOUNT.read(line))
            elif len(self._rules) < self._head.rules:
                self._rules.append(_RULE.read(line))
            elif len(self._credentials) < self._head.credentials:
                self._credentials.append(_CREDENTIAL.read(line))
            else:
                self._quotas.append(_QUOTAS.read(line))
        except NotOfShape as error:
            raise Unavailable(f"a line of the snapshot cannot be read ({error}): ask again") from error

    def _add_shard(self, line: ShardLine) -> None:
        self._begun += line.segments
        if not line.more:
            self._shards.append(Shard(line.key, line.log_start_offset, tuple(self._begun)))
            self._begun = []

    def finish(self) -> Snapshot:
        """Raises Unavailable when lines are missing."""
        head = self._head
        of_rights = (len(self._rules), len(self._credentials), len(self._quotas))
        counts = (len(self._shards), len(self._mounts), *of_rights)
        if head is None or counts != (head.shards, head.mounts, head.rules, head.credentials, head.quotas):
            raise Unavailable("the snapshot of the metadata was cut short: ask again")
        return Snapshot(
            head.version,
            tuple(self._topics),
            tuple(self._shards),
            tuple(self._nodes),
            tuple(self._mounts),
            tuple(self._rules),
            tuple(self._credentials),
            tuple(self._quotas),
        )
