"""Idempotent producers of one shard: which batches were already appended.

Epochs, sequences and offsets are a function of the log: the same batches in the same order give the same ones, so
each replica and each restart derives them again, and a seal record carries them to the next segment's leader. When a
producer was last seen is the node's time, not its batches', which may be of any age; what is read back from the log
counts as seen at that moment.
Bounded: above `limit` the producers not seen for longest are forgotten, once what drove them out is in the log. Their
next batch is appended whatever its sequence; only a repetition of what it had under way would not be known.
Cost: about 1 us per batch of an idempotent producer, nothing for others.
Source: docs/kafka.md "Idempotence"; Kafka's ProducerStateManager semantics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from stratalog.model.batch import BatchHeader
from stratalog.model.producers import BatchMemo, ProducerSnapshot

KEPT_BATCHES = 5
"""Clients keep at most five requests in flight, so no older batch can be repeated by a correct one."""
DEFAULT_LIMIT = 5_000
_SEQUENCES = 1 << 31


class SequenceFault(Enum):
    """Why a batch of an idempotent producer is not appended. Closed: who answers clients has a code for each."""

    OUT_OF_ORDER = "out of order sequence"
    DUPLICATE_FORGOTTEN = "repeats a batch older than the kept ones"
    STALE_EPOCH = "a newer epoch of this producer has written"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is in the log already, at these offsets."""

    base_offset: int
    end_offset: int


def is_before(sequence: int, other: int) -> bool:
    """Whether `sequence` comes before `other`, over the wrap at 2147483647 too."""
    return 0 < (other - sequence) % _SEQUENCES < _SEQUENCES // 2


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number `count` after `sequence`; 2147483647 is followed by 0."""
    return (sequence + count) % _SEQUENCES


class ProducerTable:
    """The sequence that each producer may write next. Invariant: entries are immutable snapshots, so undoing an append
    means putting old ones back. Invariant: entries are in the order in which their producers were last seen.
    """

    __slots__ = ("_dropped", "_entries", "limit")

    def __init__(self, snapshots: Iterable[ProducerSnapshot] = (), limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._dropped = 0
        self._entries: dict[int, ProducerSnapshot] = {}
        self.replace(snapshots)

    def __len__(self) -> int:
        return len(self._entries)

    def snapshot(self) -> tuple[ProducerSnapshot, ...]:
        """At most `limit`. Requires: no append is under way."""
        self.trim()
        return tuple(self._entries[pid] for pid in sorted(self._entries))

    def get(self, producer_id: int) -> ProducerSnapshot | None:
        return self._entries.get(producer_id)

    def replace(self, snapshots: Iterable[ProducerSnapshot]) -> None:
        """Start again from a checkpoint or a seal record."""
        ordered = sorted(snapshots, key=_last_append)
        self._dropped += max(0, len(ordered) - self.limit)
        self._entries = {entry.producer_id: entry for entry in ordered[-self.limit :]}

    def check_sequence(
        self, producer_id: int, epoch: int, first_sequence: int, count: int
    ) -> Duplicate | SequenceFault | None:
        """None: append it. Otherwise why not."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return None
        if epoch < entry.producer_epoch:
            return SequenceFault.STALE_EPOCH
        if epoch > entry.producer_epoch:
            return None if first_sequence == 0 else SequenceFault.OUT_OF_ORDER
        last_sequence = sequence_after(first_sequence, count - 1)
        for memo in entry.batches:
            if memo.first_sequence == first_sequence and memo.last_sequence == last_sequence:
                return Duplicate(memo.base_offset, memo.base_offset + count)
        if not entry.batches:
            return None
        newest = entry.batches[-1].last_sequence
        if first_sequence == (newest + 1) % _SEQUENCES:
            return None
        if len(entry.batches) == KEPT_BATCHES and not is_before(newest, last_sequence):
            return SequenceFault.DUPLICATE_FORGOTTEN
        # With fewer batches than are kept it never appended an older one: clients take "duplicate" for success.
        return SequenceFault.OUT_OF_ORDER

    def record(
        self, producer_id: int, epoch: int, first_sequence: int, count: int, base_offset: int, now_ms: int
    ) -> ProducerSnapshot | None:
        """Remember a batch appended now; returns the entry before, for `restore`. Call `trim` once it cannot fail any
        more: an append that fails must not evict a producer."""
        entries = self._entries
        entry = entries.pop(producer_id, None)
        memo = BatchMemo(first_sequence, (first_sequence + count - 1) % _SEQUENCES, base_offset, now_ms)
        if entry is None or entry.producer_epoch != epoch:
            batches: tuple[BatchMemo, ...] = (memo,)
        else:
            batches = (*entry.batches[1 - KEPT_BATCHES :], memo)
        entries[producer_id] = ProducerSnapshot(producer_id, epoch, now_ms, batches)
        return entry

    def trim(self) -> None:
        """Down to `limit`. Requires: nothing that was recorded is undone from here on."""
        while len(self._entries) > self.limit:
            del self._entries[next(iter(self._entries))]
            self._dropped += 1

    def pop_dropped(self) -> int:
        """How many producers were forgotten for the limit alone since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def restore(self, producer_id: int, entry: ProducerSnapshot | None) -> None:
        """Put back what `record` returned; undo the newest record first."""
        if entry is None:
            self._entries.pop(producer_id, None)
        else:
            self._entries[producer_id] = entry

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Take in a batch read back from the log at `now_ms`."""
        if header.producer_id >= 0 and header.base_sequence >= 0:
            self.record(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta + 1,
                header.base_offset,
                now_ms,
            )
            self.trim()

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for longer than `expiration_ms`; returns how many."""
        silent = [pid for pid, e in self._entries.items() if e.last_append_ms + expiration_ms < now_ms]
        for producer_id in silent:
            del self._entries[producer_id]
        return len(silent)


def _last_append(entry: ProducerSnapshot) -> tuple[int, int]:
    """By the log; of what it no longer tells by time."""
    return entry.batches[-1].base_offset if entry.batches else -1, entry.last_append_ms
