"""Which segments concern others than their leader's disk. Pure. A start does not open the local file of such an
unsealed segment as its own log: the segment is followed, and its copy offered or cut, as its record says
(`machines/following/segment_follower.py`). A segment with a single replica continues as on a single node, unless a
recovery was begun: then the meta service decides where it ends, perhaps without this copy. A Direct one never
continues: it ends where the object store's data end.
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
    """The oldest segment that concerns several nodes and that this node continues after alone, in a segment that is not
    sealed either: what producers had written up to there is known once the first one is sealed. None: there is none."""
    shared = next((one for one in segments if _is_shared(one)), None)
    if shared is None:
        return None
    later = [one for one in segments if one.epoch > shared.epoch and one.seal is None]
    return shared if any(one.replicas == (node_id,) for one in later) else None


def _is_shared(segment: Segment) -> bool:
    return segment.seal is None and segment.is_shared
