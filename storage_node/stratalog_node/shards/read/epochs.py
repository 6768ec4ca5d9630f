"""How far a reader of an epoch reads the same log: answered from a shard's segment list, which is its leader-epoch
history. Pure.

Requires: segments oldest first, contiguous. Source: KIP-101, KIP-320, Kafka's LeaderEpochFileCache.endOffsetFor; where
it differs, docs/kafka.md "Where an epoch ends".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from stratalog.model.segment import Segment
from stratalog_node.shards.copies.shard_view import ShardView

UNDEFINED = (-1, -1)


def end_of_epoch(segments: Sequence[Segment], log_end_offset: int, epoch: int) -> tuple[int, int]:
    """The greatest epoch at most `epoch` that this shard knows, and up to where the log continues from it without a
    break: to its end, or to the first offset that a recovery gave up or may give up. UNDEFINED above all known epochs.

    For an epoch that was trimmed away: the given epoch, and where the first known one begins.
    """
    if epoch < 0 or not segments or epoch > segments[-1].epoch:
        return UNDEFINED
    at = bisect_right(segments, epoch, key=lambda segment: segment.epoch) - 1
    if at < 0:
        return epoch, segments[0].base_offset
    for segment, following in pairwise(segments[at:]):
        if segment.handed.given_up:
            return segments[at].epoch, following.base_offset
    return segments[at].epoch, log_end_offset


def end_of_led_epoch(shard: ShardView, end_offset: int, epoch: int) -> tuple[int, int]:
    """As `end_of_epoch`, for a shard that this node leads: to the end of its log. If a recovery gave up the end of the
    last segment that the metadata list, batches behind it may already be in the log, but no reader saw them, because
    their segment's roll is not confirmed."""
    segments = shard.segments
    is_broken = bool(segments) and bool(segments[-1].handed.given_up)
    return end_of_epoch(segments, shard.high_watermark if is_broken else end_offset, epoch)


def epoch_of_offset(segments: Sequence[Segment], offset: int) -> int:
    """Epoch of the segment that holds (or, at the end of the log, will hold) an offset; -1 below all of them."""
    for segment in reversed(segments):
        if segment.base_offset <= offset:
            return segment.epoch
    return -1
