"""What a shard that another node leads knows to be committed: all that has ended, by the meta service's word.

A sealed segment may be this node's to upload, to tell of and to serve, whoever leads the shard.
Called on the event loop, within the step of the metadata that said so.
"""

from __future__ import annotations

from stratalog.model.segment import Segment
from stratalog_node.shards.log.shard_log import ShardLog


def learn_end(shard: ShardLog, segment: Segment) -> None:
    """A record says where this segment ended, or begins, which is the same: below lies nothing that could be taken
    back. Who leads knows it by itself, and more."""
    known = segment.base_offset if segment.end_offset is None else segment.end_offset
    if known > shard.high_watermark and shard.active is None and not shard.ended:
        shard.high_watermark = known
        shard.context.turn.tell_moved(shard)
