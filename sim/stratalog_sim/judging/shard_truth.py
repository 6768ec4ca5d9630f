"""What is true of one shard: which batch was given which offset, and which of them are owed."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.model.ids import SegmentKey
from stratalog_sim.environment.disk import Batch


@dataclass
class ShardTruth:
    """What is true of one shard."""

    is_fsync: bool
    is_quorum: bool = False
    """Whether a majority of the replicas acknowledges, instead of the ISR."""
    given: dict[SegmentKey, dict[int, Batch]] = field(default_factory=dict)
    """By segment and base offset: what was written there, wherever."""
    decided: dict[int, Batch] = field(default_factory=dict)
    """By base offset: what is owed."""
    ended: dict[SegmentKey, None] = field(default_factory=dict)
    """Segments whose end is known."""
    adopted: dict[SegmentKey, None] = field(default_factory=dict)
    """Sealed segments of which something was given up, once the judge knows what took its place."""
    excused: dict[str, int] = field(default_factory=dict)
    """Values that are owed no more, and where they were."""
    losses: int = 0
    """How often something was excused."""
    lowest_loss: int = -1
    """Of the last one."""
    high_watermark: int = 0

    @property
    def end_offset(self) -> int:
        """Where what is owed ends."""
        return max((self.decided[offset].end_offset for offset in list(self.decided)[-8:]), default=0)
