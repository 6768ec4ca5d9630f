"""Which segments several nodes have a say in. Pure.

What a start finds of one that is not sealed is no log of its own: it is followed, its copy offered or cut, as its
record says (`machines/following/segment_follower.py`). One with a single replica goes on as on a node alone, unless a
recovery was begun: then the meta service decides where it ends, perhaps without what is here.
Requires: segments oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.model.segment import Segment


def is_shared(segments: Sequence[Segment], epoch: int) -> bool:
    """Of a shard's segments, that of this epoch; one that is not listed was rolled into behind the last one before."""
    found: Segment | None = None
    for segment in segments:
        if segment.epoch > epoch:
            break
        found = segment
    return found is not None and _is_shared(found)


def shared_before_own(segments: Sequence[Segment], node_id: int) -> Segment | None:
    """The oldest segment that several nodes have a say in and behind which this node goes on alone, in one that is not
    sealed either: what producers had written up to there is known once that one is sealed. None: there is none."""
    shared = next((one for one in segments if _is_shared(one)), None)
    if shared is None:
        return None
    later = [one for one in segments if one.epoch > shared.epoch and one.seal is None]
    return shared if any(one.replicas == (node_id,) for one in later) else None


def _is_shared(segment: Segment) -> bool:
    return segment.seal is None and (len(segment.replicas) > 1 or segment.is_fenced)
