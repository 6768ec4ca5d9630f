"""Decides which node verifies the data of a leaving node next; all who see the same metadata decide alike. The staying
nodes take turns, so that two checks come from two nodes if there are two; a volume is checked by its own node. A node
that could not check everything passes its turn to the others, because what it lacks (a bucket's credentials, a peer)
may not come back. If a node dies, another one gets its turn.
Pure. Source: docs/scaling-spec.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireMode

AGAIN_MS = 5_000
"""The longest pause after a check that was not clean."""
MARGIN_MS = 50


def node_on_turn(node: Node, nodes: Iterable[Node]) -> int | None:
    """Which node looks next; None: no node stays. Requires: the node has a retirement."""
    assert node.retirement is not None, "it leaves"
    if node.retirement.mode is RetireMode.VOLUME:
        return node.node_id
    staying = _staying(nodes)
    if not staying:
        return None
    sightings = node.retirement.sightings
    if not sightings:
        return staying[0]
    could_not_see = {one.by_node for one in sightings if not one.is_clean and not one.is_differing}
    able = [one for one in staying if one not in could_not_see] or staying
    return next((one for one in able if one > sightings[-1].by_node), able[0])


def inventory_writer(node: Node, nodes: Iterable[Node]) -> int | None:
    """Which node writes the list of what was held: the one that looked last, which saw all of it."""
    assert node.retirement is not None, "it leaves"
    if node.retirement.mode is RetireMode.VOLUME:
        return node.node_id
    staying = _staying(nodes)
    looked = [one.by_node for one in node.retirement.sightings[-1:] if one.by_node in staying]
    return next(iter([*looked, *staying]), None)


def _staying(nodes: Iterable[Node]) -> list[int]:
    return sorted(one.node_id for one in nodes if one.is_alive and not one.is_leaving)


def pause_before_check_ms(record: Retirement, interval_ms: int) -> int:
    """How long after the last check was reported the next one is due."""
    if not record.sightings:
        return 0
    return interval_ms + MARGIN_MS if record.sightings[-1].is_clean else min(interval_ms, AGAIN_MS)
