"""What a shard remembers of an idempotent producer, and what a seal record says of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.model.bounds import Count


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


class ProducerRule(NamedTuple):
    """Which producers a sealed segment's table keeps, beside those who wrote in it last."""

    limit: Count
    """The most producers that are kept: those that wrote last."""
    expiration_ms: Count
    """None that was silent for longer."""


@dataclass(frozen=True, slots=True)
class ProducerTally:
    """What a seal record says about the table of producers at the segment's end; the table itself is in index blocks.
    With `rule` the table is a function of the segment's batches and of the table before it, so every node that has both
    makes the same table.
    """

    count: Count
    digest: bytes
    """Over the table's bytes (`formats/segments/producers.py`); empty where the table is."""
    limit: Count
    expiration_ms: Count

    @property
    def rule(self) -> ProducerRule:
        return ProducerRule(self.limit, self.expiration_ms)


NO_PRODUCERS: Final = ProducerTally(0, b"", 0, 0)
