"""Snapshots and watches as lines of JSON: long answers that neither side holds as one text.

A snapshot is a first line that counts what follows, then one record a line; a reader that does not get them all knows.
A watch is one change set a line, an empty line when there is nothing to say, a problem as its last line. Of a segment's
parts a watch sends only those that it has not sent before, so that a commit costs the same whether a segment has one
part or thousands.

Cost: a line costs what its records cost (see `codec`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias, assert_never

from pydantic import Field, TypeAdapter, ValidationError

from stratalog.meta_api.codec import Count, Json, NodeJson, SegmentJson, SegmentKeyJson, ShardJson, TopicJson
from stratalog.meta_api.problems import Problem, from_problem
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import (
    Change,
    ChangeSet,
    NodeChanged,
    NodeInfo,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    Snapshot,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.parts import PartList
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic

RECORDS_PER_PIECE = 256


# Snapshot -------------------------------------------------------------------------------------------------------
class SnapshotHead(Json):
    """The first line of a snapshot: its version, and how many lines of each kind follow."""

    version: Count
    nodes: Count
    topics: Count
    shards: Count


def snapshot_pieces(snapshot: Snapshot) -> Iterator[bytes]:
    """The lines of a snapshot, some at a time: between two pieces the caller may let others run."""
    head = SnapshotHead(
        version=snapshot.version, nodes=len(snapshot.nodes), topics=len(snapshot.topics), shards=len(snapshot.shards)
    )
    lines = [head.model_dump_json().encode()]
    for model, records in (
        (NodeJson, snapshot.nodes),
        (TopicJson, snapshot.topics),
        (ShardJson, snapshot.shards),
    ):
        for record in records:
            lines.append(model.model_validate(record).model_dump_json().encode())
            if len(lines) >= RECORDS_PER_PIECE:
                yield b"\n".join(lines) + b"\n"
                lines = []
    if lines:
        yield b"\n".join(lines) + b"\n"


class SnapshotReader:
    """Puts a snapshot together, line by line."""

    def __init__(self) -> None:
        self._head: SnapshotHead | None = None
        self._nodes: list[NodeInfo] = []
        self._topics: list[Topic] = []
        self._shards: list[Shard] = []

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
                self._shards.append(ShardJson.model_validate_json(line).to_record())
        except ValidationError as error:
            raise Unavailable(
                f"a line of the snapshot cannot be read ({error.errors()[0]['msg']}): ask again"
            ) from error

    def finish(self) -> Snapshot:
        """Raises Unavailable when lines are missing."""
        head = self._head
        if head is None or len(self._shards) != head.shards:
            raise Unavailable("the snapshot of the metadata was cut short: ask again")
        return Snapshot(head.version, tuple(self._topics), tuple(self._shards), tuple(self._nodes))


# Watch ----------------------------------------------------------------------------------------------------------
class TopicChangedJson(Json):
    kind: Literal["topic-changed"] = "topic-changed"
    topic: TopicJson


class TopicDeletedJson(Json):
    kind: Literal["topic-deleted"] = "topic-deleted"
    topic: TopicJson


class ShardChangedJson(Json):
    kind: Literal["shard-changed"] = "shard-changed"
    shard: ShardJson


class SegmentChangedJson(Json):
    kind: Literal["segment-changed"] = "segment-changed"
    segment: SegmentJson


class SegmentPurgedJson(Json):
    kind: Literal["segment-purged"] = "segment-purged"
    key: SegmentKeyJson


class NodeChangedJson(Json):
    kind: Literal["node-changed"] = "node-changed"
    node: NodeJson


ChangeJson: TypeAlias = Annotated[
    TopicChangedJson | TopicDeletedJson | ShardChangedJson | SegmentChangedJson | SegmentPurgedJson | NodeChangedJson,
    Field(discriminator="kind"),
]


class ChangeSetJson(Json):
    """One line of a watch."""

    version: Count
    changes: tuple[ChangeJson, ...]


class ProblemLine(Json):
    """The last line of a watch that ends with an error."""

    problem: Problem


WatchLine: TypeAlias = ChangeSetJson | ProblemLine
_WATCH_LINE: TypeAdapter[WatchLine] = TypeAdapter(WatchLine)


class _SentParts:
    """The parts of each segment as one watch has them; both ends keep it alike."""

    def __init__(self) -> None:
        self._parts: dict[SegmentKey, PartList] = {}

    def known(self, key: SegmentKey) -> PartList | None:
        return self._parts.get(key)

    def note(self, segment: Segment) -> None:
        if isinstance(segment.remote.parts, PartList):
            self._parts[segment.key] = segment.remote.parts
        else:
            self._parts.pop(segment.key, None)

    def forget(self, key: SegmentKey) -> None:
        self._parts.pop(key, None)


class WatchWriter:
    """Makes the lines of one watch (one connection)."""

    def __init__(self) -> None:
        self._sent = _SentParts()

    def line(self, change_set: ChangeSet) -> bytes:
        changes = tuple(self._change(change) for change in change_set.changes)
        return ChangeSetJson(version=change_set.version, changes=changes).model_dump_json().encode() + b"\n"

    def _change(self, change: Change) -> ChangeJson:
        match change:
            case TopicChanged(topic):
                return TopicChangedJson(topic=TopicJson.model_validate(topic))
            case TopicDeleted(topic):
                return TopicDeletedJson(topic=TopicJson.model_validate(topic))
            case ShardChanged(shard):
                for segment in shard.segments:
                    self._sent.note(segment)
                return ShardChangedJson(shard=ShardJson.model_validate(shard))
            case SegmentChanged(segment):
                return SegmentChangedJson(segment=self._segment(segment))
            case SegmentPurged(key):
                self._sent.forget(key)
                return SegmentPurgedJson(key=SegmentKeyJson.model_validate(key))
            case NodeChanged(node):
                return NodeChangedJson(node=NodeJson.model_validate(node))
            case _:
                assert_never(change)

    def _segment(self, segment: Segment) -> SegmentJson:
        known = self._sent.known(segment.key)
        self._sent.note(segment)
        parts = segment.remote.parts
        kept = parts.shared_with(known) if known is not None and isinstance(parts, PartList) else 0
        return segment_json(segment, kept)


def segment_json(segment: Segment, kept: int) -> SegmentJson:
    """A segment without its first `kept` parts, which the reader has."""
    if kept == 0:
        return SegmentJson.model_validate(segment)
    rest = replace(segment, remote=replace(segment.remote, parts=segment.remote.parts[kept:]))
    whole = SegmentJson.model_validate(rest)
    return whole.model_copy(update={"remote": whole.remote.model_copy(update={"parts_kept": kept})})


def problem_line(problem: Problem) -> bytes:
    return ProblemLine(problem=problem).model_dump_json().encode() + b"\n"


class WatchReader:
    """Reads the lines of one watch (one connection)."""

    def __init__(self) -> None:
        self._sent = _SentParts()

    def read(self, line: bytes) -> ChangeSet:
        """Raises the error that the line tells of; OutcomeUnknown for what is no line of a watch."""
        try:
            told = _WATCH_LINE.validate_json(line)
        except ValidationError as error:
            raise OutcomeUnknown(
                f"a line of the watch cannot be read ({error.errors()[0]['msg']}): watch again"
            ) from error
        if isinstance(told, ProblemLine):
            raise from_problem(told.problem)
        return ChangeSet(told.version, tuple(self._change(change) for change in told.changes))

    def _change(self, change: ChangeJson) -> Change:
        match change:
            case TopicChangedJson():
                return TopicChanged(change.topic.to_record())
            case TopicDeletedJson():
                return TopicDeleted(change.topic.to_record())
            case ShardChangedJson():
                shard = change.shard.to_record()
                for segment in shard.segments:
                    self._sent.note(segment)
                return ShardChanged(shard)
            case SegmentChangedJson():
                return SegmentChanged(self._segment(change.segment))
            case SegmentPurgedJson():
                key = change.key.to_record()
                self._sent.forget(key)
                return SegmentPurged(key)
            case NodeChangedJson():
                return NodeChanged(change.node.to_record())
            case _:
                assert_never(change)

    def _segment(self, told: SegmentJson) -> Segment:
        kept = None
        count = told.remote.parts_kept
        if count:
            kept = self._sent.known(told.key.to_record())
            if kept is None or len(kept) < count:
                raise OutcomeUnknown("the watch leaves out parts that it never sent: watch again")
            if len(kept) > count:
                kept = PartList(kept[:count])
        segment = told.to_record(kept)
        self._sent.note(segment)
        return segment
