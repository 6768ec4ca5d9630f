"""When a replaced leader gives up its segment and becomes a replica: called for each new record of the shard. Pure;
node and simulator use it."""

from __future__ import annotations

from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.segment import Segment, SegmentState


def must_resign(chain: ShardChain, segment: Segment, listed: Segment | None) -> bool:
    """Whether other nodes seal this segment, which the shard has led up to now. If the segment has no other replicas,
    no other node has its data: such a shard stays stopped, unless a recovery was begun, which waits for this node's
    promise. `listed`: the active segment in this node's metadata. While they still name this node as the leader of the
    segment that it wrote last, they are older than the change that replaced it. Treating that segment as another node's
    would recreate its file.
    """
    if chain.stop is None or chain.stop.cause is not StopCause.DEPOSED:
        return False
    is_led_here = segment.leader == chain.node_id and segment.state is not SegmentState.DELETED
    if is_led_here or not segment.is_shared:
        return False
    if listed is None or listed.leader != chain.node_id:
        return True
    led = chain.ended if chain.active is None else (*chain.ended, chain.active)
    return not any(leader.key == listed.key and leader.is_confirmed for leader in led)
