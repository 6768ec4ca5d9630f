"""Limits how many segment files one turn creates, so that first appends to thousands of shards do not block the loop.

Appends beyond the limit wait for the next turn. Their batches are copied out of the receive buffers, up to a number of
bytes; beyond it they create their files at once. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog_node.turn import Turn

_OPENINGS_PER_TURN = 32
_MOST_DEFERRED_BYTES = 64 << 20
"""What batches may take that wait for their turn to make a file: they are copies, outside the receive buffers' budget.
Those beyond it make their files at once after all."""


class FileCreations:
    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._number = -1
        self._left = 0
        self._deferred_bytes = 0

    def may_open(self, batches: Sequence[OfferedBatch]) -> bool:
        """Whether one more segment file is made in this turn, for these. False: `Turn.flush_next` its shard."""
        if self._turn.number != self._number:
            self._number, self._left, self._deferred_bytes = self._turn.number, _OPENINGS_PER_TURN, 0
        self._left -= 1
        if self._left >= 0:
            return True
        size_bytes = sum(batch.size_bytes for batch in batches)
        if self._deferred_bytes + size_bytes > _MOST_DEFERRED_BYTES:
            return True
        self._deferred_bytes += size_bytes
        return False


def take_out_of_buffers(batches: Sequence[OfferedBatch]) -> None:
    """Their bytes lie in receive buffers, which go back at the end of the turn, unless they were copied before."""
    for batch in batches:
        if not isinstance(batch.payload.obj, bytearray) or len(batch.payload.obj) != batch.size_bytes:
            batch.payload = memoryview(bytearray(batch.payload))
