"""A watch as lines of JSON: change sets, cut into lines of bounded size, each encoded once for all watchers.

A line holds changes of one version; all but a change set's last line say `more`, and the reader puts them together. A
line is empty when there is nothing to say; a problem is the last line. Of a segment's parts a watch sends only those
that it has not sent before, so that a commit costs the same whether a segment has one part or thousands.

Cost: a line costs what its records cost (see `json_shape`), for the first watch that needs it; each further watch
checks each change once. Memory: `EncodedLines.max_bytes` for all watches, and what one line takes for each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from stratalog.meta_api.json_shape import JsonShape, NotOfShape
from stratalog.meta_api.problems import Problem, from_problem
from stratalog.meta_api.streams import cut, weight_of
from stratalog.model.bounds import Count
from stratalog.model.errors import OutcomeUnknown
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import (
    Change,
    ChangeSet,
    CredentialChanged,
    NodeChanged,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
)
from stratalog.model.parts import PartList
from stratalog.model.segment import Segment

RECORDS_PER_LINE: Final = 256
"""Changes and parts in one line; a change that alone has more is a line of its own."""
MAX_ENCODED_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WatchLine:
    """One line of a watch."""

    version: Count
    changes: tuple[Change, ...] = ()
    parts_kept: tuple[Count, ...] = ()
    """For each change: how many parts of its segment, sent before, come before those that it names."""
    more: bool = False
    """Further lines with changes of this version follow."""
    problem: Problem | None = None
    """Why the watch ends; there are no changes then."""


_LINE: Final[JsonShape[WatchLine]] = JsonShape(WatchLine)
_Hidden: TypeAlias = tuple[bool, bool]
"""Whether credentials, and whether tokens of lives, were taken out."""


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
        self._lines: OrderedDict[tuple[int, int, int, tuple[int, ...], _Hidden], bytes] = OrderedDict()

    def line(self, change_set: ChangeSet, start: int, end: int, kept: tuple[int, ...], hidden: _Hidden) -> bytes:
        """Changes `[start, end)` of a set, without the first `kept` parts of each, which the reader has. `hidden`: what
        was taken out of the set."""
        # Sets of one version that begin at different ones differ in their number of changes.
        place = (change_set.version, len(change_set.changes), start, kept, hidden)
        line = self._lines.get(place)
        if line is None:
            some = tuple(map(_without_parts, change_set.changes[start:end], kept))
            watch_line = WatchLine(change_set.version, some, kept, end < len(change_set.changes))
            line = self._lines[place] = _LINE.write(watch_line) + b"\n"
            self.records_encoded += end - start
            self.size_bytes += len(line)
            while self.size_bytes > self.max_bytes:
                _, dropped = self._lines.popitem(last=False)
                self.size_bytes -= len(dropped)
        return line


class WatchWriter:
    """Makes the lines of one watch (one connection)."""

    def __init__(self, encoded: EncodedLines, *, with_credentials: bool = False, with_tokens: bool = True) -> None:
        """`with_credentials`: the reader is a node, which needs the credentials of users. `with_tokens`: it may read
        the tokens of lives."""
        self._encoded = encoded
        self.has_credentials = with_credentials
        self._has_tokens = with_tokens
        self._sent = _SentParts()

    def lines(self, change_set: ChangeSet) -> Iterator[bytes]:
        """One after another: between two the caller may let others run."""
        change_set, hidden = self._shown(change_set)
        for start, end in cut(change_set.changes, _weight, self._encoded.records_per_line):
            kept = tuple([self._kept(change) for change in change_set.changes[start:end]])
            yield self._encoded.line(change_set, start, end, kept, hidden)

    def _shown(self, change_set: ChangeSet) -> tuple[ChangeSet, _Hidden]:
        """What the reader may see of it. If that is all of it, the set is the same one: all readers get its lines."""
        changes = change_set.changes
        hides_credentials = not self.has_credentials and any(isinstance(one, CredentialChanged) for one in changes)
        hides_tokens = not self._has_tokens and any(isinstance(one, NodeChanged) for one in changes)
        if hides_credentials:
            changes = tuple([one for one in changes if not isinstance(one, CredentialChanged)])
        if hides_tokens:
            changes = tuple([_without_token(one) for one in changes])
        hidden = (hides_credentials, hides_tokens)
        return (ChangeSet(change_set.version, changes) if any(hidden) else change_set), hidden

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


def _without_token(change: Change) -> Change:
    return NodeChanged(change.node.without_token()) if isinstance(change, NodeChanged) else change


def _without_parts(change: Change, kept: int) -> Change:
    """The change without the first `kept` parts of its segment, which the reader has."""
    if kept == 0 or not isinstance(change, SegmentChanged):
        return change
    remote = change.segment.remote
    return SegmentChanged(replace(change.segment, remote=replace(remote, parts=remote.parts[kept:])))


def problem_line(problem: Problem) -> bytes:
    return _LINE.write(WatchLine(0, problem=problem)) + b"\n"


class WatchReader:
    """Reads the lines of one watch (one connection)."""

    def __init__(self) -> None:
        self._sent = _SentParts()
        self._version = -1
        self._begun: list[Change] = []
        """Changes of `_version` whose last line has not come yet."""

    def read(self, line: bytes) -> ChangeSet | None:
        """The change set that this line completes; None while more of it comes.

        Raises the error that the line holds; OutcomeUnknown for anything but a line of a watch.
        """
        try:
            watch_line = _LINE.read(line)
        except NotOfShape as error:
            raise OutcomeUnknown(f"a line of the watch cannot be read ({error}): watch again") from error
        if watch_line.problem is not None:
            raise from_problem(watch_line.problem)
        if len(watch_line.parts_kept) != len(watch_line.changes):
            raise OutcomeUnknown("a line of the watch does not say which parts it leaves out: watch again")
        if self._begun and watch_line.version != self._version:
            raise OutcomeUnknown(f"the watch broke off inside version {self._version}: watch again")
        self._version = watch_line.version
        self._begun += map(self._change, watch_line.changes, watch_line.parts_kept)
        if watch_line.more:
            return None
        changes, self._begun = tuple(self._begun), []
        return ChangeSet(watch_line.version, changes)

    def _change(self, change: Change, kept: int) -> Change:
        match change:
            case SegmentChanged(segment):
                whole = self._with_parts(segment, kept)
                self._sent.note(whole)
                return change if whole is segment else SegmentChanged(whole)
            case ShardChanged(shard):
                for segment in shard.segments:
                    self._sent.note(self._with_parts(segment, 0))
            case SegmentPurged(key):
                self._sent.forget(key)
            case _:
                pass
        return change

    def _with_parts(self, segment: Segment, kept: int) -> Segment:
        """The segment with its first `kept` parts, which were sent before."""
        remote = segment.remote
        if not kept and not remote.parts:
            return segment
        parts = self._sent.known(segment.key) if kept else PartList()
        if parts is None or len(parts) < kept:
            raise OutcomeUnknown("the watch leaves out parts that it never sent: watch again")
        if len(parts) > kept:
            parts = PartList(parts[:kept])
        for part in remote.parts:
            parts = parts.appended(part)
        return replace(segment, remote=replace(remote, parts=parts))
