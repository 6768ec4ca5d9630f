"""Whether a shard of this node takes writes, and if not, why, and what to do about it.

The node and its other shards go on whatever befalls one.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

from stratalog.model.append import AppendFailure


class Life(Enum):
    """A shard's log on this node. Closed."""

    UNOPENED = "its first append makes its file"
    SERVING = "it has an active segment, which takes batches"
    MOVED = "another node leads what follows; what ended here is still confirmed and sealed"
    HEALING = "what its disk lost is being brought back"
    STOPPED = "it takes no batches any more, until the next start"


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
    StopCause.FLUSH_FAILED: "see to the disk (the kernel's log says what it met), then restart the node, not the "
    "machine: it writes again what is only in memory, and continues from there",
    StopCause.UNREADABLE: "see to what the reason names (the disk, permissions, or the file from a copy), then restart "
    "the node",
    StopCause.DATA_LOST: "start the node with the --bucket that has them, or put the file back while it is stopped. "
    "Only if they are nowhere any more: set uncleanSeal=allow on the topic and restart the node to give up just these "
    "offsets: what the object store has behind them comes back, what the file has behind them is kept beside it as "
    ".given-up; what the object store holds of the shard stays readable meanwhile",
    StopCause.HEALING: "wait: the node brings the missing offsets back from the object store and serves the shard "
    "then; if it lasts, see that the object store can be reached",
    StopCause.FAULT: "restart the node, and report the fault with the stack that its log holds",
    StopCause.DEPOSED: "restart the node, so that it asks again who leads; if that does not help, look "
    "for a second node with the same node.id",
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
        """What whoever appends is told."""
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
        """Whether this one stands when another comes. A topic that is gone is gone. Who was deposed does not lead again
        for another reason. What else befalls a log that was not opened does not make its end known."""
        if later.cause is StopCause.DELETED:
            return False
        if self.ends_leading:
            return not later.ends_leading or self.cause is StopCause.DELETED
        return self.hides_end and not later.hides_end
