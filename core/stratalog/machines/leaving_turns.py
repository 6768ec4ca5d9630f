"""Whose turn it is to look after a node that leaves: found alike by all who see the same metadata.

Of those that stay one after another, so that two looks are two nodes' where there are two; of a volume its own node. A
turn that is not taken falls to the next look, or to another node when that one dies.
Pure. Source: docs/scaling-spec.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireMode

AGAIN_MS = 5_000
"""After a look that was not clean, at most."""
MARGIN_MS = 50


def whose_turn(node: Node, nodes: Iterable[Node], number: int) -> int | None:
    """`number` looks were told of. None: nobody stays. Requires: the node has a retirement."""
    assert node.retirement is not None, "it leaves"
    if node.retirement.mode is RetireMode.VOLUME:
        return node.node_id
    staying = sorted(one.node_id for one in nodes if one.is_alive and not one.is_leaving)
    return staying[number % len(staying)] if staying else None


def pause_before_look_ms(record: Retirement, interval_ms: int) -> int:
    """How long after the last look was told of the next one is due."""
    if not record.sightings:
        return 0
    return interval_ms + MARGIN_MS if record.sightings[-1].is_clean else min(interval_ms, AGAIN_MS)
