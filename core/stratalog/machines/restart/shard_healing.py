"""The healing of one shard: offsets that its disk lost come back from the object store, are given up, or stop it.

What is missing is put back where it was, byte for byte, and flushed; then the files are listed and read again. Offsets
below the log start do not count as missing: the segment ends there, and the log continues after it. Offsets that are
nowhere stop the shard, and the message names them. If the topic allows it (`uncleanSeal`), exactly these are given up:
a batch without records replaces them, so that the log has no gap, and later data are fetched from the object store.
Offsets that a recovery gave up already, as the segment's record says, are filled the same way without a person's word.
The checkpoint, which may be the only evidence of them, is revoked once that is flushed: until then the next start heals
again, afterwards the file refutes the checkpoint. If the store is away, or is another one, nothing counts as lost: it
is tried again.

Plain data in, plain data out; the shell is `stratalog_node.shards.restart.healing`. One object per missing range, for
as many attempts as it takes; an attempt begins with `AttemptBegun`.
Source: docs/design.md section 3, rule 8, and section 10, "Healing".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.restart.restart_events import Heal, RecreateFile, RevokeCheckpoints
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment, SegmentState

_TRIES = 6
"""An object that is gone or damaged is asked for so often, within a second or so, before it counts as a hole: an answer
may be damaged on its way. All are asked for in rounds: a thousand holes take no more pauses than one."""

OffsetRange: TypeAlias = tuple[int, int]
"""`[base_offset, end_offset)`."""


class Obstacle(Enum):
    """Why a file could not be filled up further."""

    NOT_COMMITTED = "it is further than the object store has the segment"
    NO_STORE = "the object store, which has them, is not known to this node: start it with --bucket"
    NOT_THERE = "an object is gone or damaged"


# Events: what happened -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AttemptBegun:
    """It is this shard's turn."""

    segment: Segment | None
    """As metadata has it now; None: deleted meanwhile."""
    log_start_offset: int
    has_file: bool
    may_give_up: bool
    """Whether the topic's settings allow that lost offsets are given up."""


@dataclass(frozen=True, slots=True)
class FileRefilled:
    """The answer to `Refill`: the file's batches are whole, from its start, up to `end_offset`, and flushed."""

    end_offset: int
    obstacle: Obstacle | None = None
    """None: that is as far as was asked."""
    why: str = ""
    """What the object store said, if NOT_THERE."""


@dataclass(frozen=True, slots=True)
class StoreAnswered:
    """The answer to `AskStore`."""

    missed: tuple[OffsetRange, ...]
    """What could not be had of it, ascending."""
    segment: Segment | None
    """As metadata has it now."""
    may_give_up: bool
    """As the settings are now."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A step could not be done, and those behind it were not begun."""

    why: str
    is_final: bool
    """Whether another attempt would prove nothing: refused, or a flush that failed."""


HealingEvent: TypeAlias = AttemptBegun | FileRefilled | StoreAnswered | AttemptFailed


# Steps: what the shell must do, in this order --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Refill:
    """Put back what the file lacks up to `end_offset` and the object store has. Nothing in it changes but what is not
    whole. Answer: `FileRefilled`. Durability: what was put back is flushed by then."""

    segment: Segment
    end_offset: int


@dataclass(frozen=True, slots=True)
class AskStore:
    """Read these offsets from the object store, for nothing but to know what it has. Answer: `StoreAnswered`."""

    segment: Segment
    ranges: tuple[OffsetRange, ...]
    why: str
    """Why it is asked."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step, longer each time."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Batches without records in the place of `holes`, and between them what the object store has, up to `end_offset`.
    What the file has from the first hole on is kept under another name.
    Durability: all of it is flushed, the first hole's batch last: the file ends before it until then."""

    segment: Segment
    holes: tuple[OffsetRange, ...]
    end_offset: int


@dataclass(frozen=True, slots=True)
class EndSegment:
    """Tell the meta service that the active segment ends there; the next one begins."""

    key: SegmentKey
    end_offset: int


@dataclass(frozen=True, slots=True)
class DropSegment:
    """Tell the meta service of the log start once more, and wait until it has deleted the segment, which lies below."""

    key: SegmentKey
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class ListFiles:
    """Begin another pass of `machines.restart.shard_restart`."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Begin another attempt after a pause."""

    why: str


@dataclass(frozen=True, slots=True)
class StopHealing:
    """The shard does not serve until the next start."""

    cause: StopCause
    why: str
    lost: tuple[OffsetRange, ...] = ()
    """If DATA_LOST: just which."""


HealingStep: TypeAlias = (
    RecreateFile
    | Refill
    | AskStore
    | Pause
    | GiveUp
    | RevokeCheckpoints
    | EndSegment
    | DropSegment
    | ListFiles
    | TryAgain
    | StopHealing
)


class ShardHealing:
    """Decides how one segment gets back what its file lacks.

    Invariant: nothing is given up but what the object store was asked for and has not got, and only if that is allowed.
    Invariant: an attempt ends in exactly one of `ListFiles`, `TryAgain` and `StopHealing`.
    """

    __slots__ = ("_attempt", "_from", "_key", "_known_end", "_local_end", "_tries", "_why")

    def __init__(self, missing: Heal) -> None:
        self._key = missing.segment.key
        self._local_end = missing.local_end
        self._known_end = missing.known_end
        self._attempt: AttemptBegun | None = None
        self._from = missing.local_end
        """Where the file's batches end in this attempt."""
        self._why = ""
        """Why the file could not be filled up in this attempt."""
        self._tries = 0
        """How often the object store was asked in this attempt."""

    def step(self, event: HealingEvent) -> list[HealingStep]:
        match event:
            case AttemptBegun():
                return self._begin(event)
            case FileRefilled():
                return self._refilled(event)
            case StoreAnswered():
                return self._asked(event)
            case AttemptFailed(why, is_final):
                return [StopHealing(StopCause.UNREADABLE, why) if is_final else TryAgain(why)]
            case _:
                assert_never(event)

    def _begin(self, event: AttemptBegun) -> list[HealingStep]:
        self._attempt = event
        segment, log_start = event.segment, event.log_start_offset
        if segment is None:
            return [ListFiles()]
        if log_start >= self._known_end:
            end: list[HealingStep] = []
            if segment.state is SegmentState.ACTIVE:
                end.append(EndSegment(segment.key, log_start))
            return [*end, DropSegment(segment.key, log_start), ListFiles()]
        refill = Refill(segment, self._known_end)
        if event.has_file:
            return [refill]
        missed = ((self._local_end, self._known_end),)
        if segment.remote.commit_offset <= segment.base_offset and not self._may_lose(missed, event.may_give_up):
            # Nothing to begin with: the name stays free for a copy that a person may put there.
            return self._lost(missed, "the object store has nothing of the segment")
        return [RecreateFile(segment.key), refill]

    def _refilled(self, event: FileRefilled) -> list[HealingStep]:
        segment = self._segment
        self._from = event.end_offset
        match event.obstacle:
            case None:
                return [ListFiles()]
            case Obstacle.NO_STORE:
                return self._lost(((event.end_offset, segment.remote.commit_offset),), Obstacle.NO_STORE.value)
            case Obstacle.NOT_COMMITTED:
                committed_end = max(segment.remote.commit_offset, segment.base_offset)
                self._why = f"{committed_end} is as far as the object store has the segment"
            case Obstacle.NOT_THERE:
                self._why = event.why
            case _:
                assert_never(event.obstacle)
        self._tries = 0
        ranges = joined([(self._from, self._committed_end)])
        return [AskStore(segment, ranges, self._why)]

    def _asked(self, event: StoreAnswered) -> list[HealingStep]:
        """What was asked for in vain often enough is a hole, and so is what was never committed."""
        segment, missed = self._segment, event.missed
        self._tries += 1
        if missed and self._tries < _TRIES:
            return [Pause(), AskStore(segment, missed, self._why)]
        if event.segment is None or event.segment.remote != segment.remote:
            return [TryAgain(f"{self._why}; metadata moved while the object store was asked")]
        holes = joined([*missed, (self._committed_end, self._known_end)])
        if not holes or holes[0][0] != self._from:
            return [TryAgain(self._why)]  # it is there after all
        if not self._may_lose(holes, event.may_give_up):
            return self._lost(holes, self._why)
        give_up = GiveUp(segment, holes, self._known_end)
        return [give_up, RevokeCheckpoints((self._key,)), ListFiles()]

    @property
    def _committed_end(self) -> int:
        """Up to where the object store should have what is missing."""
        return min(max(self._segment.remote.commit_offset, self._from), self._known_end)

    def _may_lose(self, holes: tuple[OffsetRange, ...], may_give_up: bool) -> bool:
        """Also without a word of the topic's settings: what a recovery gave up, as the segment's record says, or who
        deleted records does not miss."""
        assert self._attempt is not None
        given_up = [(gap.base_offset, gap.end_offset) for gap in self._segment.handed.given_up]
        gone = _united([(self._key.base_offset, self._attempt.log_start_offset), *given_up])
        return may_give_up or all(any(base <= hole[0] and hole[1] <= end for base, end in gone) for hole in holes)

    def _lost(self, ranges: tuple[OffsetRange, ...], why: str) -> list[HealingStep]:
        """Who deleted records does not miss them."""
        assert self._attempt is not None
        log_start = self._attempt.log_start_offset
        missed = tuple((max(base, log_start), end) for base, end in ranges if end > log_start)
        return [StopHealing(StopCause.DATA_LOST, why, missed or ranges)]

    @property
    def _segment(self) -> Segment:
        assert self._attempt is not None and self._attempt.segment is not None, "an attempt begins with `AttemptBegun`"
        return self._attempt.segment


def joined(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Those that touch become one, empty ones none. `ranges` ascend."""
    found: list[OffsetRange] = []
    for base_offset, end_offset in ranges:
        if found and found[-1][1] == base_offset < end_offset:
            found[-1] = (found[-1][0], end_offset)
        elif base_offset < end_offset:
            found.append((base_offset, end_offset))
    return tuple(found)


def _united(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Ascending; those that overlap or touch become one, empty ones none."""
    found: list[OffsetRange] = []
    for base_offset, end_offset in sorted(ranges):
        if found and base_offset <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_offset))
        elif base_offset < end_offset:
            found.append((base_offset, end_offset))
    return found
