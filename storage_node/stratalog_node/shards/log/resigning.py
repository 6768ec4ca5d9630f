"""A shard whose segments other nodes seal from now on: this node may follow them, and may lead the shard again later.

Called on the event loop, within the step of the metadata that said so. `replication/following.py` gets the same change
after the shard, so that it finds files that the shard no longer uses. `machines/leading/resigning.py` decides when a
shard resigns.
"""

from __future__ import annotations

from stratalog.machines.leading.chain_events import ShardRecovered
from stratalog.machines.leading.shared_segments import is_shared
from stratalog.model.segment import SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.log.handing_over import leave
from stratalog_node.shards.log.shard_log import ShardLog

log = logger(__name__)


def _led(shard: ShardLog) -> list[ActiveSegment]:
    return [*shard.ended, *([shard.active] if shard.active is not None else [])]


def _seals_alone(shard: ShardLog, copy: ActiveSegment) -> bool:
    """Whether this node still seals the segment, whichever node leads the shard next: no other node has data of it, and
    no recovery of it has begun."""
    segment = shard.context.catalog.segment(copy.key)
    is_ended = segment is not None and segment.state is SegmentState.SEALING
    return is_ended and not is_shared(shard.segments, copy.key.epoch)


def resign(shard: ShardLog) -> None:
    """Files of segments that the meta service does not know go; all others stay, as copies of a replica."""
    log.info("this node no longer leads a shard", topic=shard.topic.name, shard=shard.key.shard)
    kept = [copy for copy in shard.ended if _seals_alone(shard, copy)]
    leave(shard, [copy for copy in _led(shard) if copy not in kept])
    shard.active, shard.ended, shard.inherited = None, kept, None
    listed = shard.context.catalog.active_segment(shard.key)
    shard.chain = shard.chain.after_resigning(shard.rules.roll, listed)
    if kept:
        ended = tuple(copy.leader for copy in kept)
        shard.handle(ShardRecovered(ended, None, shard.high_watermark, shard.chain.doubted_epoch, None))
        shard.begin_service([copy.key.epoch for copy in kept])
