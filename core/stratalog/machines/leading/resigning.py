"""When a node that was deposed gives up what it led, and goes on as a replica: asked for each record of the shard that
it hears of. Pure; node and simulator ask the same."""

from __future__ import annotations

from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.segment import Segment, SegmentState


def must_resign(chain: ShardChain, segment: Segment, listed: Segment | None) -> bool:
    """Whether others seal this segment, which the shard has led up to now. Of a segment without other replicas nobody
    else has anything: such a shard stays stopped, unless a recovery was begun, which waits for this node's word.
    `listed`: what this node's metadata name as the active segment.

    While they name this node still as the leader of what it wrote last, they lag behind what deposed it: taken for
    another's, its file would be begun again.
    """
    if chain.stop is None or chain.stop.cause is not StopCause.DEPOSED:
        return False
    is_led_here = segment.leader == chain.node_id and segment.state is not SegmentState.DELETED
    if is_led_here or (len(segment.replicas) == 1 and not segment.is_fenced):
        return False
    if listed is None or listed.leader != chain.node_id:
        return True
    led = chain.ended if chain.active is None else (*chain.ended, chain.active)
    return not any(leader.key == listed.key and leader.is_confirmed for leader in led)
