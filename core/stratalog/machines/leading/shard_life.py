"""Whether a shard of this node takes writes, and if not, why, and what to do about it. The node and its other shards
continue when one stops.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from stratalog.model.append import AppendFailure


class Life(Enum):
    """A shard's log on this node. Closed."""

    UNOPENED = "its first append makes its file"
    SERVING = "it has an active segment, which takes batches"
    MOVED = "another node leads what follows; what ended here is still confirmed and sealed"
    HEALING = "what its disk lost is being brought back"
    STOPPED = "it takes no batches any more, until the next start"


SHARD_TRANSITIONS: Final[dict[Life, frozenset[Life]]] = {
    Life.UNOPENED: frozenset((Life.SERVING, Life.MOVED, Life.HEALING, Life.STOPPED)),
    Life.SERVING: frozenset((Life.MOVED, Life.HEALING, Life.STOPPED)),
    Life.MOVED: frozenset((Life.SERVING, Life.HEALING, Life.STOPPED)),
    Life.HEALING: frozenset((Life.UNOPENED, Life.SERVING, Life.STOPPED)),
    Life.STOPPED: frozenset((Life.UNOPENED, Life.SERVING, Life.HEALING)),
}
"""What each life may become. A stopped shard serves again only by what a check of its disk found."""


class StopCause(StrEnum):
    FLUSH_FAILED = "flush_failed"
    UNREADABLE = "unreadable"
    DATA_LOST = "data_lost"
    HEALING = "healing"
    FAULT = "fault"
    DEPOSED = "deposed"
    DELETED = "deleted"
    """Its topic. Such a shard is no longer one of the node's: only who still holds it learns of it."""


_NEXT_STEPS = {
    StopCause.FLUSH_FAILED: "check the disk (the kernel log says what failed), then restart the node, not the machine: "
    "the page cache still has the records, and the node writes them again",
    StopCause.UNREADABLE: "fix what the reason names (the disk, the permissions, or the file, from a copy), then "
    "restart the node",
    StopCause.DATA_LOST: "start the node with the --bucket that has them, or put the file back while it is stopped. "
    "Only if they exist nowhere else: set uncleanSeal=allow on the topic and restart the node: it gives up these "
    "offsets alone, and keeps what the file has behind them as .given-up",
    StopCause.HEALING: "wait: the node tries again by itself; if it lasts, check what the reason names: the object "
    "store, the other nodes, or the room on the disk",
    StopCause.FAULT: "restart the node, and report the stack trace in its log",
    StopCause.DEPOSED: "wait: the node becomes a replica of the new leader; if it does not, restart it, and look for a "
    "second node with the same node.id",
    StopCause.DELETED: "nothing: the topic was deleted",
}

_FAILURES = {
    StopCause.HEALING: AppendFailure.HEALING,
    StopCause.DEPOSED: AppendFailure.NOT_LEADER,
    StopCause.DELETED: AppendFailure.TOPIC_DELETED,
}


class Stop(NamedTuple):
    """Why a shard takes no writes. `HEALING` ends by itself, all others last until the next start."""

    reason: str
    cause: StopCause

    @property
    def failure(self) -> AppendFailure:
        """The message for producers."""
        return _FAILURES.get(self.cause, AppendFailure.STOPPED)

    @property
    def next_step(self) -> str:
        """What whoever runs the node does about it."""
        return _NEXT_STEPS[self.cause]

    @property
    def hides_end(self) -> bool:
        """The log was not opened as a whole: it may reach further than what is known of it."""
        return self.cause in (StopCause.UNREADABLE, StopCause.DATA_LOST, StopCause.HEALING)

    @property
    def ends_leading(self) -> bool:
        """Others may write the shard now: nothing more of it is acknowledged here."""
        return self.cause in (StopCause.DEPOSED, StopCause.DELETED)

    @property
    def life(self) -> Life:
        return Life.HEALING if self.cause is StopCause.HEALING else Life.STOPPED

    def outweighs(self, later: Stop) -> bool:
        """Whether this reason stays when another one comes. A deleted topic stays deleted. A leader that was replaced
        does not lead again for another reason. A log that was not opened stays of unknown end, whatever else happens to
        it."""
        if later.cause is StopCause.DELETED:
            return False
        if self.ends_leading:
            return not later.ends_leading or self.cause is StopCause.DELETED
        return self.hides_end and not later.hides_end
