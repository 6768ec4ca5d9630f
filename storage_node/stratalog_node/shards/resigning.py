"""A shard whose segments others seal from now on: this node may follow them, and may lead the shard again later.

Called on the event loop, within the step of the metadata that said so: whoever follows segments hears of it behind the
shard, and finds files that nobody else uses. When that is so says `machines/resigning.py`.
"""

from __future__ import annotations

from stratalog.machines.shard_chain import ShardChain
from stratalog.telemetry.logs import logger
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.handing_over import leave
from stratalog_node.shards.shard_log import ShardLog

log = logger(__name__)


def _led(shard: ShardLog) -> list[ActiveSegment]:
    return [*shard.ended, *([shard.active] if shard.active is not None else [])]


def resign(shard: ShardLog) -> None:
    """Files of segments that the meta service does not know go; all others stay, as copies of a replica."""
    log.info("this node no longer leads a shard", topic=shard.topic.name, shard=shard.key.shard)
    leave(shard, _led(shard))
    shard.active, shard.ended, shard.inherited = None, [], None
    shard.chain = ShardChain(
        shard.key,
        shard.context.node_id,
        shard.rules.roll,
        high_watermark=shard.high_watermark,
        led_since_epoch=shard.epoch + 1,
    )
