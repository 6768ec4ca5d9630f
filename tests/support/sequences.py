"""What an idempotent producer sends to a shard of this process, batch by batch."""

from __future__ import annotations

from typing import Any

from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import START_MS, Asked, make_batch

PRODUCER = 7


def offer_sequenced(shard: ShardLog, sequence: int) -> Asked:
    """Offers one record, whose value is its sequence, with acks=all. Its outcome is reported once."""
    data = make_batch([b"%d" % sequence], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
    asked: Any = Asked()
    shard.offer(OfferedBatch(memoryview(bytearray(data)), len(data), 1, START_MS, PRODUCER, 0, sequence, -1, asked, 0))
    return asked  # type: ignore[no-any-return]
