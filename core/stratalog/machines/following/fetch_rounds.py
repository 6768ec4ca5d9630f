"""Which segments one node fetches from another, round by round: those that changed, not all that it follows. A round is
one Fetch of a session (KIP-227): the peer remembers earlier rounds, so a round names only what changed since. The peer
holds a round until something changed there; a node that has news meanwhile sends the next round, which ends the held
one. A segment that was answered with data is named again, changed or not, and the peer sends no more of it before that:
so a node that is flushing, or has used up its share for catching up, is sent nothing twice. Plain data in, plain data
out. Report all that came in a turn, then `TurnEnded`. Cost: about 1 us for each segment that changed; a segment that
rests costs its place in two dictionaries.
Source: docs/replication.md section 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, TypeAlias, assert_never
from uuid import UUID

from stratalog.machines.token_bucket import TokenBucket

NO_SESSION = 0
_SAY_AGAIN_MS = 500
_KEPT_MS = 5_000
"""How long the peer keeps an unwanted segment that it sends nothing of: one being flushed is wanted again soon."""
_HELD_AND_NEXT = 2
"""Rounds under way at most: the one that is held, and the one that ends it."""


class SegmentName(NamedTuple):
    """A segment as two nodes name it to each other: epochs are unique within a shard."""

    topic_id: UUID
    shard: int
    epoch: int


def segment_name(of: tuple[UUID, int, int]) -> SegmentName:
    """The same, three times as fast."""
    return _new_name(SegmentName, of)


_new_name = tuple.__new__


# Events ---------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class SegmentWanted:
    """Ask for it at this offset: everything below is here."""

    name: SegmentName
    offset: int
    is_throttled: bool = False


@dataclass(frozen=True, slots=True)
class SegmentUnwanted:
    """Ask for it no more, for now."""

    name: SegmentName


@dataclass(slots=True)
class RoundAnswered:
    """`told`: the segments that data came for, with the bytes; `refused`: those that the peer refused."""

    session_id: int
    told: tuple[tuple[SegmentName, int], ...] = ()
    refused: tuple[SegmentName, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The peer does not know the session, or the connection is a new one: everything is named again, and no round is
    under way."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Everything that came was reported, and there is a connection."""


RoundsEvent: TypeAlias = SegmentWanted | SegmentUnwanted | RoundAnswered | SessionLost | TurnEnded


# Effect ---------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class SendRound:
    """Answer: `RoundAnswered`, or `SessionLost`."""

    session_id: int
    session_epoch: int
    asks: tuple[tuple[SegmentName, int], ...]
    """With the offset each is asked at."""
    forgotten: tuple[tuple[UUID, int], ...]
    """Shards that nothing is fetched of but what `asks` names."""


class NamesByShard:
    """Names of segments, of which most shards have one, and some two or three: rounds name segments, and forget shards.
    With it a round that forgets a few of thousands costs what it forgets."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[tuple[UUID, int], tuple[SegmentName, ...]] = {}

    def add(self, name: SegmentName) -> None:
        """Requires: it is not there."""
        shard = name.topic_id, name.shard
        self._names[shard] = (*self._names.get(shard, ()), name)

    def discard(self, name: SegmentName) -> None:
        shard = name.topic_id, name.shard
        others = tuple(one for one in self._names.pop(shard, ()) if one != name)
        if others:
            self._names[shard] = others

    def clear(self) -> None:
        self._names.clear()

    def of(self, shards: Iterable[tuple[UUID, int]]) -> list[SegmentName]:
        """`shards`: each once."""
        return [name for shard in shards for name in self._names.get(shard, ())]


class FetchRounds:
    """The rounds from this node to one peer.

    Invariant: at most one round is held at the peer, and one more is under way that ends it.
    Invariant: the last position that the peer got for a segment, and has not answered with data, is the present one, or
    the segment waits to be named again.
    Invariant: a segment in the peer's session that no round under way forgets is in `_told` or `_resting`.
    """

    __slots__ = (
        "_catch_up",
        "_changed",
        "_gone",
        "_kept_by_shard",
        "_most_asks",
        "_resting",
        "_say_again_at_ms",
        "_throttled",
        "_told",
        "_wanted",
        "asks_sent",
        "in_flight",
        "rounds_sent",
        "session_epoch",
        "session_id",
        "throttled_bytes",
    )

    def __init__(self, catch_up: TokenBucket, *, most_asks: int = 2_000) -> None:
        """`catch_up`: bytes that throttled segments may take, of all peers together. `most_asks`: in one round."""
        self._catch_up = catch_up
        self._most_asks = most_asks
        self._wanted: dict[SegmentName, int] = {}
        self._throttled: set[SegmentName] = set()
        self._told: dict[SegmentName, int] = {}
        self._kept_by_shard = NamesByShard()
        """What is in `_told` or `_resting`."""
        self._changed: dict[SegmentName, None] = {}
        """To be told, in this order."""
        self._gone: dict[SegmentName, None] = {}
        self._resting: dict[SegmentName, float] = {}
        """Answered since a round named them, and when: the peer keeps them, and sends no more of them."""
        self._say_again_at_ms = 0.0
        self.session_id = NO_SESSION
        self.session_epoch = 0
        self.in_flight = 0
        self.rounds_sent = 0
        self.asks_sent = 0
        self.throttled_bytes = 0
        """That came for what is throttled."""

    def step(self, event: RoundsEvent, now_ms: float) -> list[SendRound]:
        match event:
            case SegmentWanted(name, offset, is_throttled):
                self._want(name, offset, is_throttled)
            case SegmentUnwanted(name):
                self._let_go(name)
            case RoundAnswered():
                self._answered(event, now_ms)
            case SessionLost():
                self._begin_again()
            case TurnEnded():
                return self._send(now_ms)
            case _:
                assert_never(event)
        return []

    def _want(self, name: SegmentName, offset: int, is_throttled: bool) -> None:
        self._wanted[name] = offset
        if is_throttled:
            self._throttled.add(name)
        else:
            self._throttled.discard(name)
        self._gone.pop(name, None)
        if self._told.get(name) == offset:
            self._changed.pop(name, None)
        else:
            self._changed[name] = None

    def _let_go(self, name: SegmentName) -> None:
        if self._wanted.pop(name, None) is None:
            return
        self._throttled.discard(name)
        self._changed.pop(name, None)
        if name in self._told:
            self._gone[name] = None

    def _answered(self, answer: RoundAnswered, now_ms: float) -> None:
        self.in_flight = max(0, self.in_flight - 1)
        self.session_id = answer.session_id
        for name, size_bytes in answer.told:
            if name in self._throttled:
                self._catch_up.consume(size_bytes, now_ms)
                self.throttled_bytes += size_bytes
            self._name_again(name, now_ms)
        for name in answer.refused:
            self._name_again(name, now_ms)
        if self._throttled and now_ms >= self._say_again_at_ms:
            # A replica outside of the ISR that has everything is let in by its next fetch: without one it stays
            # outside. Other segments may keep the rounds busy forever, so it is named again after a time; each time
            # ends a held round.
            self._changed.update(dict.fromkeys(self._throttled))
            self._say_again_at_ms = now_ms + _SAY_AGAIN_MS

    def _name_again(self, name: SegmentName, now_ms: float) -> None:
        """The peer sends no more of it until this node names its position."""
        if self._told.pop(name, None) is not None:
            self._resting[name] = now_ms
        self._gone.pop(name, None)
        if name in self._wanted:
            self._changed[name] = None

    def _begin_again(self) -> None:
        self.session_id, self.session_epoch, self.in_flight = NO_SESSION, 0, 0
        self._told.clear()
        self._kept_by_shard.clear()
        self._gone.clear()
        self._resting.clear()
        self._changed = dict.fromkeys(self._wanted)

    def _send(self, now_ms: float) -> list[SendRound]:
        if self.in_flight >= _HELD_AND_NEXT or (self.in_flight and self.session_id == NO_SESSION):
            return []
        asks = tuple(self._next_asks(now_ms))
        if now_ms - next(iter(self._resting.values()), now_ms) >= _KEPT_MS:
            self._gone.update(self._long_unwanted(now_ms))
        if not asks and not self._gone and (self.in_flight or not self._told):
            return []
        forgotten = {(name.topic_id, name.shard): None for name in self._gone}
        if forgotten:
            asks += tuple(self._neighbours_of(forgotten, {name for name, _ in asks}))
        for name in self._gone:
            self._told.pop(name, None)
            self._kept_by_shard.discard(name)
        self._gone.clear()
        for name, offset in asks:
            if name not in self._told and self._resting.pop(name, None) is None:
                self._kept_by_shard.add(name)
            self._told[name] = offset
            self._changed.pop(name, None)
        round_ = SendRound(self.session_id, self.session_epoch, asks, tuple(forgotten))
        self.session_epoch += 1
        self.in_flight += 1
        self.rounds_sent += 1
        self.asks_sent += len(asks)
        return [round_]

    def _next_asks(self, now_ms: float) -> Iterable[tuple[SegmentName, int]]:
        may_catch_up = not self._throttled or self._catch_up.level(now_ms) > 0
        room = self._most_asks
        for name in self._changed:
            if not room:
                return
            if may_catch_up or name not in self._throttled:
                room -= 1
                yield name, self._wanted[name]

    def _long_unwanted(self, now_ms: float) -> dict[SegmentName, None]:
        """What rests and was not wanted again: no more of its shard may ever be told, so it is forgotten."""
        due = [name for name, _ in takewhile(lambda one: now_ms - one[1] >= _KEPT_MS, self._resting.items())]
        for name in due:
            del self._resting[name]
            if name in self._wanted:
                self._resting[name] = now_ms
        return dict.fromkeys(name for name in due if name not in self._wanted)

    def _neighbours_of(
        self, forgotten: dict[tuple[UUID, int], None], asked: set[SegmentName]
    ) -> Iterable[tuple[SegmentName, int]]:
        """A shard is forgotten as a whole: what else of it is asked for must be told again. Rare: at a roll."""
        for name in self._kept_by_shard.of(forgotten):
            if name in self._told and name not in self._gone and name not in asked:
                yield name, self._wanted[name]

    @property
    def has_wants(self) -> bool:
        """Whether anything is asked of the peer."""
        return bool(self._wanted)

    def wants(self, name: SegmentName) -> bool:
        return name in self._wanted

    @property
    def named(self) -> int:
        """How many segments the peer may have been told of."""
        return len(self._wanted) + len(self._told) + len(self._resting)

    @property
    def waits_for_room(self) -> bool:
        """What is left to be told waits for what catching up may take: `TurnEnded` again, a little later."""
        return any(name in self._throttled for name in self._changed)

    def check_invariants(self) -> None:
        assert 0 <= self.in_flight <= _HELD_AND_NEXT
        assert self._changed.keys() <= self._wanted.keys()
        assert self._gone.keys() <= self._told.keys()
        assert not self._told.keys() & self._resting.keys()
        assert not self._gone.keys() & self._wanted.keys()
        for name, offset in self._wanted.items():
            assert name in self._changed or self._told.get(name) == offset, f"{name} would never be asked for"
