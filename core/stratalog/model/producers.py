"""What a shard remembers of an idempotent producer."""

from __future__ import annotations

from typing import NamedTuple


class BatchMemo(NamedTuple):
    """One appended batch of a producer, kept to answer its repetition."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


class ProducerSnapshot(NamedTuple):
    """One producer's state at an offset: its epoch and its last batches, oldest first, at most five."""

    producer_id: int
    producer_epoch: int
    last_append_ms: int
    batches: tuple[BatchMemo, ...]
