"""A shard whose segments others seal from now on: this node may follow them, and may lead the shard again later.

Called on the event loop, within the step of the metadata that said so: whoever follows segments hears of it behind the
shard, and finds files that nobody else uses.
"""

from __future__ import annotations

from stratalog.machines.shard_chain import ShardChain
from stratalog.machines.shard_life import StopCause
from stratalog.model.segment import Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.shards.handing_over import leave
from stratalog_node.shards.shard_log import ShardLog

log = logger(__name__)


def must_resign(shard: ShardLog, segment: Segment) -> bool:
    """Whether others seal this segment, which the shard has led up to now. Of a segment without other replicas nobody
    else has anything: such a shard stays stopped."""
    is_led_here = segment.leader == shard.context.node_id and segment.state is not SegmentState.DELETED
    is_deposed = shard.stop is not None and shard.stop.cause is StopCause.DEPOSED
    return is_deposed and not is_led_here and len(segment.replicas) > 1


def resign(shard: ShardLog) -> None:
    """Files of segments that the meta service does not know go; all others stay, as copies of a replica."""
    log.info("a shard is led no more", topic=shard.topic.name, shard=shard.key.shard)
    leave(shard, [*shard.ended, *([shard.active] if shard.active is not None else [])])
    shard.active, shard.ended, shard.inherited = None, [], None
    shard.chain = ShardChain(
        shard.key,
        shard.context.node_id,
        shard.rules.roll,
        high_watermark=shard.high_watermark,
        led_since_epoch=shard.epoch + 1,
    )
