"""What a segment's leader knows about its followers: how far each has confirmed, in which of its lives, and which ones
lag.

A fetch at an offset says that the follower holds everything below, as durable as the flush policy asks. That is its
credit. It is good for the life that fetched: in one life credit only grows, a newer life begins with none, an older
one is not heard any more. A node that is not a replica of the segment has none. The caller passes the time, from a
monotonic clock; it only decides when a follower counts as lagging.
Source: docs/replication.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class _Credit:
    __slots__ = ("can_write", "is_lost", "life_epoch", "offset", "owed_offset", "owed_since_ms")

    def __init__(self, base_offset: int) -> None:
        self.life_epoch = -1
        """-1: nothing was heard of it."""
        self.is_lost = False
        """Its lease was over, and it has not fetched since."""
        self.can_write = True
        self.offset = base_offset
        self.owed_offset = base_offset
        """Where the leader's end was when it was last seen to be behind."""
        self.owed_since_ms: int | None = None
        """None: it is not behind, as of the last check."""


class Followers:
    """Of one segment. Cost: a dictionary look-up per fetch."""

    __slots__ = ("_base_offset", "_credits")

    def __init__(self, base_offset: int, node_ids: Iterable[int]) -> None:
        """`node_ids`: the replicas but for the leader."""
        self._base_offset = base_offset
        self._credits = {node_id: _Credit(base_offset) for node_id in node_ids}

    def replace(self, node_ids: Iterable[int]) -> None:
        """The segment's replicas are these now. Credit of those that stay stands."""
        self._credits = {node_id: self._credits.get(node_id) or _Credit(self._base_offset) for node_id in node_ids}

    def forget_others(self, members: Sequence[int]) -> None:
        """A replica that is out of sync in a newer record may have been released and listed again meanwhile, with
        another copy: its next fetch says what it holds."""
        for node_id, credit in self._credits.items():
            if node_id not in members:
                credit.offset = self._base_offset

    def fetched(self, node_id: int, life_epoch: int, offset: int, end_offset: int) -> bool:
        """Whether it is believed: a replica, in no older life than is known, that claims no more than there is."""
        credit = self._credits.get(node_id)
        if credit is None or life_epoch < credit.life_epoch:
            return False
        if life_epoch > credit.life_epoch:
            self._begin(credit, life_epoch)
        if not self._base_offset <= offset <= end_offset:
            return False
        credit.is_lost = False
        if offset > credit.offset:
            credit.offset = offset
        return True

    def node_updated(self, node_id: int, life_epoch: int, *, is_alive: bool, can_write: bool = True) -> None:
        """What the node held in a life before this one is not known any more."""
        credit = self._credits.get(node_id)
        if credit is not None and life_epoch >= credit.life_epoch:
            if life_epoch > credit.life_epoch:
                self._begin(credit, life_epoch)
            credit.is_lost, credit.can_write = not is_alive, can_write

    def may_join(self, node_id: int) -> bool:
        """Whether its disk makes progress, as far as is known: at the mark of an idle segment, any follower is."""
        credit = self._credits.get(node_id)
        return credit is not None and credit.can_write

    def _begin(self, credit: _Credit, life_epoch: int) -> None:
        # What it owes stays: who begins a life again and again is not in sync.
        credit.life_epoch, credit.offset = life_epoch, self._base_offset

    def credit(self, node_id: int) -> int:
        """Everything below it is there; the segment's base when nothing is known to be."""
        credit = self._credits.get(node_id)
        return credit.offset if credit is not None else self._base_offset

    def lowest_of(self, node_ids: Sequence[int], own_offset: int) -> int:
        """What the leader, up to `own_offset`, and all of these hold."""
        for node_id in node_ids:
            own_offset = min(own_offset, self.credit(node_id))
        return own_offset

    def majority(self, own_offset: int) -> int:
        """The end up to which a majority of the replicas holds the data, counting the leader up to `own_offset`."""
        offsets = sorted((credit.offset for credit in self._credits.values()), reverse=True)
        others = (len(offsets) + 1) // 2
        return min(own_offset, offsets[others - 1]) if others else own_offset

    def needs_check(self, node_ids: Iterable[int], end_offset: int) -> bool:
        """Whether `lagging` has anything to find, or to forget, of these: not while each holds all that there is."""
        for node_id in node_ids:
            credit = self._credits.get(node_id)
            if credit is None or credit.is_lost or credit.offset < end_offset or credit.owed_since_ms is not None:
                return True
        return False

    def lagging(self, node_ids: Iterable[int], end_offset: int, steady_ms: int, limit_ms: int) -> set[int]:
        """Followers that have not reached, within the limit, where the leader's end was, and those that are not alive.
        Call it every so often, also while nothing happens: the first call after the limit finds a lagging follower."""
        found = set()
        for node_id in node_ids:
            credit = self._credits.get(node_id)
            if credit is None or credit.is_lost:
                found.add(node_id)
            elif credit.offset >= end_offset:
                credit.owed_since_ms = None
            elif credit.owed_since_ms is None or credit.offset >= credit.owed_offset:
                credit.owed_offset, credit.owed_since_ms = end_offset, steady_ms
            elif steady_ms - credit.owed_since_ms >= limit_ms:
                found.add(node_id)
        return found
