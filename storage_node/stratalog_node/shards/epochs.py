"""Where an epoch ends: answered from a shard's segment list, which is its leader-epoch history. Pure.

Requires: segments oldest first, contiguous. Source: KIP-101, Kafka's LeaderEpochFileCache.endOffsetFor.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.model.segment import Segment

UNDEFINED = (-1, -1)


def end_of_epoch(segments: Sequence[Segment], log_end_offset: int, epoch: int) -> tuple[int, int]:
    """The greatest epoch at most `epoch` that this shard knows, and its end offset; UNDEFINED above all known ones.

    For an epoch that was trimmed away: the epoch asked, and where the first known one begins.
    """
    if epoch < 0 or not segments or epoch > segments[-1].epoch:
        return UNDEFINED
    if epoch == segments[-1].epoch:
        return epoch, log_end_offset
    floor = epoch
    for segment in segments:
        if segment.epoch > epoch:
            return floor, segment.base_offset
        floor = segment.epoch
    return UNDEFINED


def epoch_of_offset(segments: Sequence[Segment], offset: int) -> int:
    """Epoch of the segment that holds (or, at the end of the log, will hold) an offset; -1 below all of them."""
    for segment in reversed(segments):
        if segment.base_offset <= offset:
            return segment.epoch
    return -1
