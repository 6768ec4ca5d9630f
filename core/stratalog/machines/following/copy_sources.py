"""The nodes that a replica asks for data that it lacks: as the segment's record says, never as a peer says. Pure.

Source: docs/replication.md sections 4 and 6.
"""

from __future__ import annotations

from typing import Final

from stratalog.machines.following.follower_events import SegmentNamed

OBJECT_STORE: Final = -1
"""In the place of a node's id: the object store, which is asked like a node."""


def sources_of(record: SegmentNamed, node_id: int, promised_fence: int) -> tuple[int, ...]:
    """The nodes that may have the missing data; the first is asked, and the next one after each refusal. None if this
    node is the source: it replaces missing data itself. The object store comes after the living nodes that proved the
    sealed segment, because they may all be gone for good. Nodes that are not alive come last: it takes seconds to find
    out that a machine does not answer."""
    if record.end_offset is None:
        # Asking the leader is a promise to it: only the record's, and only where no fence was seen.
        leader = record.leader
        is_led = leader is not None and not record.fence and not promised_fence
        return (leader,) if is_led and leader is not None and leader != node_id else ()
    first = record.leader if record.source is None else record.source
    store = OBJECT_STORE if record.is_sealed and record.is_stored else None
    if record.away:
        living = [node for node in (first, *record.proven) if node not in record.away]
        named = (*living, store, first, *record.proven)
    else:
        named = (first, *record.proven, store)
    return tuple(dict.fromkeys(node for node in named if node is not None and node != node_id))


def fills_it(record: SegmentNamed, node_id: int) -> bool:
    """Whether this node must replace the data below the end that no node has: if another node had more, that one would
    be the source."""
    return record.end_offset is not None and record.source == node_id and not record.is_sealed


def source_identity(record: SegmentNamed) -> tuple[int | None, int | None, int, int | None]:
    """What a change of tells that data come from elsewhere now."""
    return record.leader, record.source, record.fence, record.end_offset
