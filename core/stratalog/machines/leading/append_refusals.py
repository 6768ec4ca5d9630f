"""Refusals of a shard that have further consequences: batches that must be repeated before the ones sent behind them
are taken, and sequence faults that must not be answered yet. A sequence fault is final for its producer. A leader that
was replaced, and does not know it, finds one in each batch that follows its successor's. So if another node may lead by
now, a fault is answered only once the metadata, read after it was found, still name this node as the leader. Until then
the answer waits; if the metadata cannot be read, the batch is refused so that its producer repeats it. Bounded by the
requests in flight. Source: docs/replication.md section 5, "Sequences".
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.machines.leading.chain_events import ChainEffect, CheckLeadership, LeadershipChecked, RefuseBatches
from stratalog.machines.leading.leader_events import OfferedBatch, RefuseBatch
from stratalog.machines.leading.rejected_batches import RejectedBatches
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.append import AppendFailure


class AppendRefusals:
    """Of one shard; made with the first one. Lives on the event loop.

    Invariant: while a fault waits, a question is under way that was asked after it was found, or one is whose answer
    asks the next.
    """

    __slots__ = ("_asked", "_found", "_question", "owed")

    def __init__(self) -> None:
        self.owed = RejectedBatches()
        self._found: list[RefuseBatch] = []
        """Faults that are not reported yet, oldest first."""
        self._asked = 0
        """How many of them the question under way is about."""
        self._question = 0

    @property
    def waiting_count(self) -> int:
        return len(self._found)

    def refuse(
        self, batches: Sequence[OfferedBatch], why: AppendFailure, message: str, now_ms: int
    ) -> list[ChainEffect]:
        """They may be repeated, and those sent behind them must not get in before."""
        if idempotent := [batch for batch in batches if batch.producer_id >= 0]:
            self.owed.refused(idempotent, now_ms)
        return [RefuseBatches(list(batches), why, message)]

    def sort_out(
        self, offered: list[OfferedBatch], active: SegmentLeader, now_ms: int
    ) -> tuple[list[OfferedBatch], list[ChainEffect]]:
        """Those that may be appended now; the others are refused, for one that was sent before them has to come."""
        due, early = self.owed.sort_out(offered, active.producers, now_ms)
        why = AppendFailure.BEHIND_REFUSED
        return due, [RefuseBatches(early, why, why.value)] if early else []

    def faults(self, found: list[RefuseBatch], active: SegmentLeader) -> list[ChainEffect]:
        """A leader answers faults at once if no other node can lead: no other node has a replica, and the meta service
        knows the segment."""
        if active.followers is None and active.is_confirmed:
            return [*found]
        for fault in found:
            fault.batch.payload = None
        self._found += found
        return [] if self._asked else self._ask()

    def _ask(self) -> list[ChainEffect]:
        self._asked = len(self._found)
        self._question += 1
        return [CheckLeadership(self._question)]

    def leadership_checked(self, read: LeadershipChecked) -> list[ChainEffect]:
        """A leader that was replaced has learnt it before this event: from the metadata that were read."""
        if not self._asked or read.question != self._question:
            return []
        if not read.is_known:
            return self.end(AppendFailure.LEAD_UNKNOWN, AppendFailure.LEAD_UNKNOWN.value)
        checked, self._found = self._found[: self._asked], self._found[self._asked :]
        self._asked = 0
        return [*checked, *(self._ask() if self._found else [])]

    def end(self, why: AppendFailure, message: str) -> list[ChainEffect]:
        """This node cannot tell any more whether those were faults."""
        found, self._found, self._asked = self._found, [], 0
        return [RefuseBatches([fault.batch for fault in found], why, message)] if found else []
