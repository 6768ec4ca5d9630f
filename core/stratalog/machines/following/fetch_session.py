"""The segments that a follower fetches from this node, kept between its rounds: the other half of
`machines/following/fetch_rounds.py`. A round names what changed; it is held until something changed here, or until the
next one comes. Only changed segments are checked: a segment is ready when it may have more than its follower was sent.
Once something was sent it rests, until the follower names its new position.
Plain data. Cost: about 1 us for each segment named or moved; one that rests costs its entry.
Source: docs/replication.md section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from uuid import UUID

from stratalog.machines.following.fetch_rounds import NO_SESSION, NamesByShard, SegmentName


class SessionFault(Enum):
    """Why a round is not of this session. Closed."""

    UNKNOWN = "there is no such session: start a new one"
    WRONG_EPOCH = "a round of this session is missing, or came twice: begin again"


class FetchSession:
    """One follower's, on one connection.

    Invariant: what is ready has an entry that waits for data.
    """

    __slots__ = ("_names", "_next_epoch", "_offsets", "_ready", "_resting", "session_id")

    def __init__(self, session_id: int) -> None:
        """`session_id`: not 0, and no other's of this node."""
        assert session_id != NO_SESSION, "0 is not a session"
        self.session_id = session_id
        self._next_epoch = 0
        self._offsets: dict[SegmentName, int] = {}
        self._names = NamesByShard()
        self._ready: dict[SegmentName, None] = {}
        """To be looked at, those that moved first before the others."""
        self._resting: set[SegmentName] = set()
        """Sent something, and not told where the follower is since."""

    def receive_round(
        self,
        session_id: int,
        session_epoch: int,
        asks: Iterable[tuple[SegmentName, int]],
        forgotten: Sequence[tuple[UUID, int]],
    ) -> SessionFault | None:
        """A round came. All segments that it names are ready: the caller then checks whether they have more."""
        is_first = session_id == NO_SESSION and session_epoch == 0
        if not is_first and session_id != self.session_id:
            return SessionFault.UNKNOWN
        if not is_first and session_epoch != self._next_epoch:
            return SessionFault.WRONG_EPOCH
        if is_first:
            self._offsets.clear()
            self._names.clear()
            self._ready.clear()
            self._resting.clear()
        self._next_epoch = session_epoch + 1
        for name in self.names_of(forgotten):
            self.drop(name)
        for name, offset in asks:
            if name not in self._offsets:
                self._names.add(name)
            self._offsets[name] = offset
            self._resting.discard(name)
            self._ready[name] = None
        return None

    def moved(self, name: SegmentName) -> bool:
        """There may be more of it. Returns: whether anything is to be looked at for it."""
        if name not in self._offsets or name in self._resting:
            return False
        self._ready[name] = None
        return True

    def offset_of(self, name: SegmentName) -> int | None:
        return self._offsets.get(name)

    def take_ready(self, most: int) -> list[SegmentName]:
        """The next to be looked at, once."""
        names: list[SegmentName] = []
        for name in self._ready:
            if len(names) == most:
                break
            names.append(name)
        for name in names:
            del self._ready[name]
        return names

    def put_back(self, names: Iterable[SegmentName]) -> None:
        """There was no room for them: the first of the next answer."""
        kept = dict.fromkeys(name for name in names if name in self._offsets and name not in self._resting)
        self._ready = {**kept, **self._ready}

    def sent(self, name: SegmentName) -> None:
        """It rests until the follower tells where it is."""
        if name in self._offsets:
            self._resting.add(name)
            self._ready.pop(name, None)

    def drop(self, name: SegmentName) -> None:
        """It is asked for no more, or cannot be served: it is forgotten."""
        if self._offsets.pop(name, None) is not None:
            self._names.discard(name)
        self._ready.pop(name, None)
        self._resting.discard(name)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def names(self) -> Iterable[SegmentName]:
        """All that are asked for. Not to be changed meanwhile."""
        return self._offsets.keys()

    def names_of(self, shards: Iterable[tuple[UUID, int]]) -> list[SegmentName]:
        """Those of these shards that are asked for."""
        return self._names.of(dict.fromkeys(shards))

    def __len__(self) -> int:
        return len(self._offsets)
