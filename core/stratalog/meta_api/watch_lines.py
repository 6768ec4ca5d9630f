"""A watch as lines of JSON: change sets, cut into lines of bounded size, each encoded once for all who watch.

A line holds changes of one version; all but a change set's last line say `more`, and the reader puts them together. A
line is empty when there is nothing to say; a problem is the last line. Of a segment's parts a watch sends only those
that it has not sent before, so that a commit costs the same whether a segment has one part or thousands.

Cost: a line costs what its records cost (see `codec`), for the first watch that wants it; each further one looks once
at each change. Memory: `EncodedLines.max_bytes` for all watches, and what one line takes for each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final, Literal, TypeAlias, assert_never

from pydantic import Field, TypeAdapter, ValidationError

from stratalog.meta_api.codec import Count, Json, NodeJson, SegmentJson, SegmentKeyJson, ShardJson, TopicJson
from stratalog.meta_api.problems import Problem, from_problem
from stratalog.meta_api.streams import cut, weight_of
from stratalog.model.errors import OutcomeUnknown
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import (
    Change,
    ChangeSet,
    NodeChanged,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.parts import PartList
from stratalog.model.segment import Segment

RECORDS_PER_LINE: Final = 256
"""Changes, parts and producers in one line; a change that alone has more is a line of its own."""
MAX_ENCODED_BYTES: Final = 16 * 1024 * 1024


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
    more: bool = False
    """Further lines with changes of this version follow."""


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


class EncodedLines:
    """The lines that watches have asked for last, so that each is encoded once for all of them."""

    def __init__(self, max_bytes: int = MAX_ENCODED_BYTES, records_per_line: int = RECORDS_PER_LINE) -> None:
        self.max_bytes = max_bytes
        self.records_per_line = records_per_line
        self.size_bytes = 0
        self.records_encoded = 0
        self._lines: OrderedDict[tuple[int, int, tuple[int, ...]], bytes] = OrderedDict()

    def line(self, change_set: ChangeSet, start: int, end: int, kept: tuple[int, ...]) -> bytes:
        """Changes `[start, end)` of a set, without the first `kept` parts of each, which the reader has."""
        place = (change_set.version, start, kept)
        line = self._lines.get(place)
        if line is None:
            changes = change_set.changes
            told = ChangeSetJson(
                version=change_set.version,
                changes=tuple(map(_change_json, changes[start:end], kept)),
                more=end < len(changes),
            )
            line = self._lines[place] = told.model_dump_json().encode() + b"\n"
            self.records_encoded += end - start
            self.size_bytes += len(line)
            while self.size_bytes > self.max_bytes:
                _, dropped = self._lines.popitem(last=False)
                self.size_bytes -= len(dropped)
        return line


class WatchWriter:
    """Makes the lines of one watch (one connection)."""

    def __init__(self, encoded: EncodedLines) -> None:
        self._encoded = encoded
        self._sent = _SentParts()

    def lines(self, change_set: ChangeSet) -> Iterator[bytes]:
        """One after another: between two the caller may let others run."""
        for start, end in cut(change_set.changes, _weight, self._encoded.records_per_line):
            kept = tuple([self._kept(change) for change in change_set.changes[start:end]])
            yield self._encoded.line(change_set, start, end, kept)

    def _kept(self, change: Change) -> int:
        """How many parts of the segment it tells of were sent before; notes what is sent now."""
        match change:
            case SegmentChanged(segment):
                known, parts = self._sent.known(segment.key), segment.remote.parts
                self._sent.note(segment)
                return parts.shared_with(known) if known is not None and isinstance(parts, PartList) else 0
            case ShardChanged(shard):
                for segment in shard.segments:
                    self._sent.note(segment)
            case SegmentPurged(key):
                self._sent.forget(key)
            case _:
                pass
        return 0


def _weight(change: Change) -> int:
    match change:
        case SegmentChanged(segment):
            return weight_of(segment)
        case ShardChanged(shard):
            return 1 + len(shard.segments)
        case _:
            return 1


def _change_json(change: Change, kept: int) -> ChangeJson:
    match change:
        case TopicChanged(topic):
            return TopicChangedJson(topic=TopicJson.model_validate(topic))
        case TopicDeleted(topic):
            return TopicDeletedJson(topic=TopicJson.model_validate(topic))
        case ShardChanged(shard):
            return ShardChangedJson(shard=ShardJson.model_validate(shard))
        case SegmentChanged(segment):
            return SegmentChangedJson(segment=segment_json(segment, kept))
        case SegmentPurged(key):
            return SegmentPurgedJson(key=SegmentKeyJson.model_validate(key))
        case NodeChanged(node):
            return NodeChangedJson(node=NodeJson.model_validate(node))
        case _:
            assert_never(change)


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
        self._version = -1
        self._begun: list[Change] = []
        """Changes of `_version` whose last line has not come yet."""

    def read(self, line: bytes) -> ChangeSet | None:
        """The change set that this line completes; None while more of it comes.

        Raises the error that the line tells of; OutcomeUnknown for what is no line of a watch.
        """
        try:
            told = _WATCH_LINE.validate_json(line)
        except ValidationError as error:
            raise OutcomeUnknown(
                f"a line of the watch cannot be read ({error.errors()[0]['msg']}): watch again"
            ) from error
        if isinstance(told, ProblemLine):
            raise from_problem(told.problem)
        if self._begun and told.version != self._version:
            raise OutcomeUnknown(f"the watch broke off inside version {self._version}: watch again")
        self._version = told.version
        self._begun += [self._change(change) for change in told.changes]
        if told.more:
            return None
        changes, self._begun = tuple(self._begun), []
        return ChangeSet(told.version, changes)

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
