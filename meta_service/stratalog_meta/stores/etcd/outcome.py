"""What became of a transaction whose answer was lost, or that was refused. Pure.

Each transaction compares the create revision of the leader key and the modification revision of `turn`, and puts into
`turn` a stamp that no other transaction has. So it happens once however often it is sent, never after another leader
came, and a reader of both keys knows afterwards whether it happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Fence:
    """What a transaction compares."""

    leader_revision: int
    """In which the leader key was created for this leader: no other leader has it, or will."""
    turn_revision: int
    """In which `turn` was put last; 0 before the first time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Leader key and `turn` as they were in one moment; revisions are 0 for a key that is not there."""

    leader_revision: int
    turn_revision: int
    stamp: bytes


class Outcome(Enum):
    WRITTEN = auto()
    NOT_YET = auto()
    """Not written by then; what was sent before and not answered may still be."""
    NEVER = auto()
    """Not written, and it never will be: another process leads now, or none."""
    UNKNOWN = auto()
    """Another leader wrote since, over what would tell."""


def outcome_of(fence: Fence, stamp: bytes, seen: Seen) -> Outcome:
    """Of the transaction with this fence and stamp, as far as `seen` tells."""
    if seen.stamp == stamp:
        return Outcome.WRITTEN
    if seen.turn_revision != fence.turn_revision:
        # Another write came in between: the comparison then fails forever, but this transaction may have happened
        # before it.
        return Outcome.UNKNOWN
    return Outcome.NOT_YET if seen.leader_revision == fence.leader_revision else Outcome.NEVER
