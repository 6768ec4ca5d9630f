"""Shards with a sealed segment, for tests of what is done with its copy."""

from __future__ import annotations

from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig


async def sealed_shard(rig: ShardRig, values: int = 3, size: int = 10) -> ShardLog:
    """A shard whose only data, `values` batches of about `size` bytes, is sealed."""
    shard = await rig.shard_of()
    for number in range(values):
        rig.append(shard, b"%d" % number * size)
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    return shard
