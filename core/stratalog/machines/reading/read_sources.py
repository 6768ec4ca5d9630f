"""Where a node reads a sealed range that it has no good copy of: other nodes that proved theirs, and the object store.

By cost: a node in the same rack costs a local round trip and nothing else; the object store a request and no traffic
between zones; a node in another rack that traffic (docs/decisions/0020). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from stratalog.machines.reading.read_policy import ReadPolicy
from stratalog.model.segment import Segment, SegmentState


class ReadSource(Enum):
    """Closed."""

    NEAR_NODE = "a node in the same rack"
    STORE = "the object store"
    FAR_NODE = "a node in another rack"


_STORE_FIRST = (ReadPolicy.NOT_IN_MEMORY, ReadPolicy.FORCE)


def sources(policy: str, *, has_near: bool, has_far: bool, is_in_store: bool) -> tuple[ReadSource, ...]:
    """In the order in which they are asked; the next one when one fails."""
    near = (ReadSource.NEAR_NODE,) if has_near else ()
    far = (ReadSource.FAR_NODE,) if has_far else ()
    store = (ReadSource.STORE,) if is_in_store and policy != ReadPolicy.DISABLE else ()
    if policy == ReadPolicy.FORCE and store:
        return store
    return (*store, *near, *far) if policy in _STORE_FIRST else (*near, *store, *far)


def provers(
    segment: Segment, node_id: int, rack: str | None, rack_of: Callable[[int], str | None]
) -> tuple[Sequence[int], Sequence[int]]:
    """Other nodes that proved their copy of a sealed segment: those in `rack`, this node's, and all others. Those that
    say nothing of a rack are near those that say nothing either."""
    if segment.state is not SegmentState.SEALED or segment.seal is None:
        return (), ()
    others = [node for node in segment.local_nodes if node != node_id]
    near = [node for node in others if (rack_of(node) or "") == (rack or "")]
    return near, [node for node in others if node not in near]
