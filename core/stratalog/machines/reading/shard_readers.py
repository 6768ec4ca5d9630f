"""The readers of a node's cold shards: where each of them is, how fast it moves, and when it should come again. Pure.

A Fetch does not name its consumer group, so a reader is a position that moves: a read that begins where another one
ended continues that reader, and any other read begins a new one. A reader whose read was given up stays where it was.
A reader that does not come in time is expected after as long again as it has been away, so what it would read next
is less and less urgent. One that was away for `forget_ms` is forgotten, and so is the one that was away for longest
where there are too many.

Requires: `now_ms` never goes back. Offsets measure distance: within a shard a reader's speed is in offsets.
Invariant: at most `per_shard` readers of a shard and `in_all` of the node.
Cost: O(per_shard) for a read that begins, O(log in_all) for a check of a reader's time.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final

_REMEMBERED_MS: Final = 5_000.0
"""What lies this far back counts for 1/e in a reader's speed."""
_LAST_SHARE: Final = 0.5
"""Of the last move, in a reader's speed of the last moment."""
_FIRST_MS: Final = 100.0
"""How long a reader's first read is taken to last."""
_UNKNOWN_MS: Final = 100.0
"""For an offset, of a reader that has not moved yet, where no other one has."""
_AWAY_SHARE: Final = 0.25
"""Of the last pause, in the mean of a reader's pauses."""
_FEW: Final = 64
"""This many checks of readers that were forgotten since may wait."""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    patience_ms: int
    """A reader that was not seen for this long is late."""
    forget_ms: int = 600_000
    per_shard: int = 32
    in_all: int = 4_096

    def __post_init__(self) -> None:
        assert 0 < self.patience_ms <= self.forget_ms, "patience_ms: must be between 1 and forget_ms"
        assert self.per_shard > 0 and self.in_all > 0, "per_shard, in_all: one reader must be allowed"


class Reader:
    """One position. Its owner is `ShardReaders`; others only look."""

    __slots__ = (
        "_away_ms",
        "_ended_ms",
        "_last_ms",
        "_last_offsets",
        "_moved_ms",
        "_offsets",
        "_time_ms",
        "due_ms",
        "has_moved",
        "is_known",
        "is_reading",
        "position",
        "seen_ms",
        "shard",
    )

    def __init__(self, shard: Hashable, position: int, now_ms: int) -> None:
        self.shard = shard
        self.position = position
        self.is_reading = False
        self.is_known = True
        self.has_moved = False
        self.seen_ms = self.due_ms = self._ended_ms = self._moved_ms = now_ms
        self._offsets = 0.0
        self._time_ms = _FIRST_MS
        self._last_offsets = 0.0
        self._last_ms = _FIRST_MS
        self._away_ms = 0.0

    def reaches_ms(self, offset: int) -> float:
        """When it should ask for an offset that it has not passed: once it is back, and has come so far."""
        distance = offset - self.position
        if distance <= 0:
            return self.due_ms
        return self.due_ms + distance * (self._time_ms / self._offsets if self._offsets else _UNKNOWN_MS)

    def soonest_ms(self, offset: int) -> float:
        """The same, by its speed of the last moment if that is higher: it may have paused, and hurry now."""
        distance = offset - self.position
        if distance <= 0 or not self._offsets:
            return self.due_ms
        return self.due_ms + distance * min(self._time_ms / self._offsets, self._last_ms / self._last_offsets)

    def expect_as(self, other: Reader) -> None:
        """It has not moved yet: another reader of the shard is the best guess."""
        self._offsets = self._last_offsets = other._offsets / other._time_ms * _FIRST_MS

    def begin(self, now_ms: int) -> None:
        if self.has_moved:
            self._away_ms += _AWAY_SHARE * (now_ms - self._ended_ms - self._away_ms)
        self.is_reading = True
        self.seen_ms = self.due_ms = now_ms

    def move(self, end_offset: int, now_ms: int) -> None:
        """To where its next read is expected to begin. The time includes what it waited: that is how fast it comes
        on."""
        passed_ms = now_ms - self._moved_ms
        weight = exp(-passed_ms / _REMEMBERED_MS)
        self._offsets = self._offsets * weight + (end_offset - self.position)
        self._time_ms = self._time_ms * weight + passed_ms
        self._last_offsets += _LAST_SHARE * (end_offset - self.position - self._last_offsets)
        self._last_ms += _LAST_SHARE * (passed_ms - self._last_ms)
        self._moved_ms = now_ms
        self.position = end_offset
        self.has_moved = True

    def end(self, now_ms: int) -> None:
        """Its answer is on its way. What it does before it comes again is its own time, not that of the store."""
        self.is_reading = False
        self.seen_ms = self._ended_ms = now_ms
        self.due_ms = now_ms + int(self._away_ms)


class ShardReaders:
    """All readers of one node."""

    def __init__(self, limits: ReaderLimits) -> None:
        self._limits = limits
        self._shards: dict[Hashable, list[Reader]] = {}
        self._seen: OrderedDict[Reader, None] = OrderedDict()
        """Longest away first."""
        self._checks: list[tuple[int, int, Reader]] = []
        """One for each reader, and those of readers that were forgotten since."""
        self._made = 0
        self.changed: set[Hashable] = set()
        """Shards whose readers are not what they were. Whoever keeps something by them empties it."""

    def __len__(self) -> int:
        return len(self._seen)

    def of(self, shard: Hashable) -> Sequence[Reader]:
        """In order of their positions."""
        return sorted(self._shards.get(shard, ()), key=_position)

    # Reads ------------------------------------------------------------------------------------------------------
    def begin(self, shard: Hashable, offset: int, now_ms: int) -> Reader:
        """A read begins. Of several readers at that offset the one that was away for longest reads on."""
        reader: Reader | None = None
        for one in self._shards.get(shard, ()):
            if one.position == offset and not one.is_reading and (reader is None or one.seen_ms < reader.seen_ms):
                reader = one
        if reader is None:
            reader = self._new(shard, offset, now_ms)
        reader.begin(now_ms)
        self._saw(reader)
        return reader

    def moved(self, reader: Reader, end_offset: int, now_ms: int) -> None:
        """It was answered up to there."""
        reader.move(end_offset, now_ms)
        self._saw(reader)

    def ended(self, reader: Reader, now_ms: int) -> None:
        """Its read was answered, failed, or was given up."""
        reader.end(now_ms)
        self._saw(reader)

    def _new(self, shard: Hashable, offset: int, now_ms: int) -> Reader:
        known = self._shards.get(shard, ())
        if len(known) >= self._limits.per_shard:
            self._forget(min(known, key=_seen_ms))
        if len(self._seen) >= self._limits.in_all:
            self._forget(next(iter(self._seen)))
        reader = Reader(shard, offset, now_ms)
        like = max((one for one in known if one.has_moved), key=_seen_ms, default=None)
        if like is not None:
            reader.expect_as(like)
        self._shards.setdefault(shard, []).append(reader)
        self._seen[reader] = None
        self._check_at(reader, now_ms + self._limits.patience_ms)
        return reader

    def _saw(self, reader: Reader) -> None:
        if reader.is_known:
            self._seen.move_to_end(reader)
            self.changed.add(reader.shard)

    def _forget(self, reader: Reader) -> None:
        reader.is_known = False
        del self._seen[reader]
        known = self._shards[reader.shard]
        known.remove(reader)
        if not known:
            del self._shards[reader.shard]
        self.changed.add(reader.shard)

    # Time -------------------------------------------------------------------------------------------------------
    def pass_time(self, now_ms: int) -> None:
        """Look at those who may be late by now."""
        patience_ms, forget_ms = self._limits.patience_ms, self._limits.forget_ms
        while self._checks and self._checks[0][0] <= now_ms:
            reader = heapq.heappop(self._checks)[2]
            if not reader.is_known:
                continue
            away_ms = now_ms - reader.seen_ms
            if away_ms >= forget_ms and not reader.is_reading:
                self._forget(reader)
            elif away_ms >= patience_ms:
                reader.due_ms = max(reader.due_ms, now_ms + away_ms)
                self.changed.add(reader.shard)
                self._check_at(reader, now_ms + away_ms)
            else:
                self._check_at(reader, reader.seen_ms + patience_ms)

    def next_check_ms(self) -> int | None:
        """When `pass_time` may find something."""
        return self._checks[0][0] if self._checks else None

    def _check_at(self, reader: Reader, at_ms: int) -> None:
        self._made += 1
        heapq.heappush(self._checks, (at_ms, self._made, reader))
        if len(self._checks) > 2 * len(self._seen) + _FEW:
            self._checks = [check for check in self._checks if check[2].is_known]
            heapq.heapify(self._checks)

    # Looking ----------------------------------------------------------------------------------------------------
    def check_invariants(self) -> None:
        known = [reader for readers in self._shards.values() for reader in readers]
        assert set(known) == set(self._seen) and len(known) == len(self._seen) <= self._limits.in_all
        assert all(0 < len(readers) <= self._limits.per_shard for readers in self._shards.values())
        checked = [check[2] for check in self._checks if check[2].is_known]
        assert len(checked) == len(known) and set(checked) == set(known)


def _position(reader: Reader) -> int:
    return reader.position


def _seen_ms(reader: Reader) -> int:
    return reader.seen_ms
