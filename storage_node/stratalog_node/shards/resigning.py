"""A shard whose segments others seal from now on: this node may follow them, and may lead the shard again later.

Called on the event loop, within the step of the metadata that said so: whoever follows segments hears of it behind the
shard, and finds files that nobody else uses.
"""

from __future__ import annotations

from stratalog.machines.shard_chain import ShardChain
from stratalog.machines.shard_life import StopCause
from stratalog.model.segment import Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.handing_over import leave
from stratalog_node.shards.shard_log import ShardLog

log = logger(__name__)


def must_resign(shard: ShardLog, segment: Segment) -> bool:
    """Whether others seal this segment, which the shard has led up to now. Of a segment without other replicas nobody
    else has anything: such a shard stays stopped.

    While the metadata name this node still as the leader of what it wrote last, they lag behind what deposed it: taken
    for another's, its file would be begun anew.
    """
    node_id = shard.context.node_id
    is_led_here = segment.leader == node_id and segment.state is not SegmentState.DELETED
    is_deposed = shard.stop is not None and shard.stop.cause is StopCause.DEPOSED
    if not is_deposed or is_led_here or len(segment.replicas) == 1:
        return False
    listed = shard.context.catalog.active_segment(shard.key)
    written = {copy.key for copy in _led(shard) if copy.leader.is_confirmed}
    return listed is None or listed.leader != node_id or listed.key not in written


def _led(shard: ShardLog) -> list[ActiveSegment]:
    return [*shard.ended, *([shard.active] if shard.active is not None else [])]


def resign(shard: ShardLog) -> None:
    """Files of segments that the meta service does not know go; all others stay, as copies of a replica."""
    log.info("a shard is led no more", topic=shard.topic.name, shard=shard.key.shard)
    leave(shard, _led(shard))
    shard.active, shard.ended, shard.inherited = None, [], None
    shard.chain = ShardChain(
        shard.key,
        shard.context.node_id,
        shard.rules.roll,
        high_watermark=shard.high_watermark,
        led_since_epoch=shard.epoch + 1,
    )
