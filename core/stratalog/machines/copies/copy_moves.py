"""Decides which sealed copies of a node move to another of its directories.

New segments begin in the first directory (number 0). A sealed copy leaves it once it is old enough for its topic, or
earlier while the directory has less room than wished; copies of a directory that is drained go wherever there is room.
No move takes more room than its target has above its reserve. Pure. Cost: a sort of the copies that may move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stratalog.model.ids import SegmentKey

FIRST: Final = 0
NEVER_BY_AGE: Final = -1


class PlacedCopy(NamedTuple):
    """A sealed copy that is whole as far as is known."""

    key: SegmentKey
    size_bytes: int
    age_ms: int
    """Since its seal."""
    directory: int
    after_ms: int
    """From which age on its topic wants it out of the first directory; -1: not by age."""


class DirectoryRoom(NamedTuple):
    """A directory that works."""

    number: int
    free_bytes: int
    reserve_bytes: int
    """No move leaves less than this free."""
    is_draining: bool = False


class Move(NamedTuple):
    key: SegmentKey
    source: int
    target: int


def plan_moves(copies: Iterable[PlacedCopy], rooms: Sequence[DirectoryRoom], *, least_free_bytes: int) -> list[Move]:
    """In the order in which they are to be made: drained directories first, then the oldest copies. `rooms`: in the
    order in which directories are filled. `least_free_bytes`: what is to be free in the first directory."""
    free = {one.number: one.free_bytes for one in rooms}
    drained = {one.number for one in rooms if one.is_draining}
    moves: list[Move] = []

    def move(copy: PlacedCopy, *, may_be_first: bool) -> None:
        for room in rooms:
            if room.number == copy.directory or room.is_draining or (room.number == FIRST and not may_be_first):
                continue
            if free[room.number] - copy.size_bytes >= room.reserve_bytes:
                free[room.number] -= copy.size_bytes
                free[copy.directory] = free.get(copy.directory, 0) + copy.size_bytes
                moves.append(Move(copy.key, copy.directory, room.number))
                return

    oldest_first = sorted(copies, key=lambda one: -one.age_ms)
    for copy in oldest_first:
        if copy.directory in drained:
            move(copy, may_be_first=True)
    if FIRST not in free or FIRST in drained:
        return moves
    young: list[PlacedCopy] = []
    for copy in oldest_first:
        if copy.directory == FIRST:
            if NEVER_BY_AGE < copy.after_ms <= copy.age_ms:
                move(copy, may_be_first=False)
            else:
                young.append(copy)
    for copy in young:
        if free[FIRST] >= least_free_bytes:
            break
        move(copy, may_be_first=False)
    return moves
