"""What a node knows to be committed of a shard that another node leads: everything up to the end of the segments that
have ended, according to the meta service.

A node may upload, report and serve a sealed segment, whichever node leads the shard.
Called on the event loop, within the step that applies the change of metadata.
"""

from __future__ import annotations

from stratalog.model.segment import Segment
from stratalog_node.shards.log.shard_log import ShardLog


def learn_end(shard: ShardLog, segment: Segment) -> None:
    """Raise the high watermark to the end of this segment, or to its base if it has no end yet: what lies below cannot
    be taken back. The leader's own high watermark is never lower than this."""
    known = segment.base_offset if segment.end_offset is None else segment.end_offset
    if known > shard.high_watermark and shard.active is None and not shard.ended:
        shard.high_watermark = known
        shard.context.turn.tell_moved(shard)
