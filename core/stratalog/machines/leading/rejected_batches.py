"""Producers whose last batch was rejected temporarily: that batch must come again before the ones sent behind it.

A producer that a shard does not remember may begin with any sequence, so that a forgotten producer can continue. If its
first batch were rejected for a moment (no room on the disk, a log being healed) and the next one taken, that one would
be its beginning, and the first could never be appended.
A producer that the shard remembers would get "out of order" for a batch that only came too early. Clients then begin a
new epoch and send unanswered batches again under it, also those that are already in the log.
A batch may be rejected before this node knows its shard at all: `RejectedBeforeShards` keeps that.
Bounded in number and in time: a client that never repeats a rejected batch is not held up for long.
Source: KAFKA-14312, KAFKA-15591; KAFKA-14920 has the same repair for transactions.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.machines.leading.producer_table import ProducerTable, SequenceFault, is_before, sequence_after

_MOST = 1_000
"""Producers of one shard. Above that the one refused longest ago is forgotten."""
_MOST_IN_LINE = 100
"""Batches that one shard's producers owe from before it was known."""
_LASTS_MS = 60_000
"""Longer than requests stay on their way. A repetition that is refused too begins it again."""


class RejectedBatches:
    """Lives on the event loop. Cost: nothing for shards that refuse nothing; at most about 300 bytes per producer."""

    __slots__ = ("_newest_ms", "_owed")

    def __init__(self) -> None:
        self._owed: dict[int, tuple[int, int, int]] = {}
        """Producer id -> its epoch, the first sequence that was refused, and when. Refused longest ago first."""
        self._newest_ms = 0

    def __len__(self) -> int:
        return len(self._owed)

    def refused(self, batches: Iterable[OfferedBatch], now_ms: int) -> None:
        """These batches of idempotent producers are not in the log, or it is unknown, and they may be repeated."""
        self._newest_ms = now_ms
        for batch in batches:
            self._refused(batch, now_ms)

    def _refused(self, batch: OfferedBatch, now_ms: int) -> None:
        known = self._owed.get(batch.producer_id)
        if known is not None:
            epoch, sequence, _ = known
            if batch.producer_epoch < epoch:
                return
            if batch.producer_epoch == epoch and is_before(sequence, batch.base_sequence):
                return
            del self._owed[batch.producer_id]
        elif len(self._owed) >= _MOST:
            del self._owed[next(iter(self._owed))]
        self._owed[batch.producer_id] = batch.producer_epoch, batch.base_sequence, now_ms

    def sort_out(
        self, batches: list[OfferedBatch], table: ProducerTable | None, now_ms: int
    ) -> tuple[list[OfferedBatch], list[OfferedBatch]]:
        """Those that may be appended now, and those before which another must come. `table`: None before there is one.
        Of what the table knows or takes as the next nothing is owed."""
        if not 0 <= now_ms - self._newest_ms < _LASTS_MS:
            self._owed.clear()
            return batches, []
        due: list[OfferedBatch] = []
        early: list[OfferedBatch] = []
        for batch in batches:
            is_early = batch.producer_id >= 0 and self._is_too_early(batch, table, now_ms)
            (early if is_early else due).append(batch)
        return due, early

    def _is_too_early(self, batch: OfferedBatch, table: ProducerTable | None, now_ms: int) -> bool:
        """Whether another batch of its producer must come first. When that one comes, the next one is owed: it may have
        been refused as well."""
        known = self._owed.get(batch.producer_id)
        if known is None:
            return False
        epoch, sequence, since_ms = known
        if batch.producer_epoch < epoch:
            return False
        if batch.producer_epoch > epoch or not 0 <= now_ms - since_ms < _LASTS_MS:
            del self._owed[batch.producer_id]
            return False
        if is_before(sequence, batch.base_sequence) and _is_behind_gap(batch, table):
            return True
        following = sequence_after(batch.base_sequence, batch.record_count)
        if is_before(sequence, following):
            self._owed[batch.producer_id] = epoch, following, since_ms
        return False


class RejectedBeforeShards:
    """Batches of idempotent producers that were refused because their shard is not known here: the client has heard of
    its topic from a node that knows more, and may send the next batch once this node knows it, too.

    By the name that a client sends, which may be anything. Cost: nothing once all are taken or too old; at most about
    300 bytes a batch.
    """

    __slots__ = ("_newest_ms", "_refused")

    def __init__(self) -> None:
        self._refused: dict[tuple[str, int], list[tuple[int, OfferedBatch]]] = {}
        """When, and what; refused longest ago first."""
        self._newest_ms = 0

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, topic: str, shard: int, batch: OfferedBatch, now_ms: int) -> None:
        """`batch` holds no bytes of the request."""
        line = self._refused.setdefault((topic, shard), [])
        if len(self._refused) > _MOST:
            del self._refused[next(iter(self._refused))]
        if len(line) < _MOST_IN_LINE:
            line.append((now_ms, batch))
        self._newest_ms = now_ms

    def pop(self, topic: str, shard: int, now_ms: int) -> list[OfferedBatch]:
        """The rejected batches of this shard's producers, once: the shard is known now. Cost: O(1)."""
        if not 0 <= now_ms - self._newest_ms < _LASTS_MS:
            self._refused.clear()
        line = self._refused.pop((topic, shard), ())
        return [batch for at_ms, batch in line if 0 <= now_ms - at_ms < _LASTS_MS]


def _is_behind_gap(batch: OfferedBatch, table: ProducerTable | None) -> bool:
    """Whether it would be a producer's beginning, or out of order."""
    if table is None or table.get(batch.producer_id) is None:
        return True
    verdict = table.check_sequence(batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count)
    return verdict is SequenceFault.OUT_OF_ORDER
