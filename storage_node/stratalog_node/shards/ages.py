"""What happens to shards by time alone: segments roll by age, and producers are forgotten, also when nobody writes.

Lives on the event loop, as one task without an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratalog.telemetry.logs import logger
from stratalog_node.shards.directory import ShardDirectory
from stratalog_node.turn import Turn

log = logger(__name__)

_POLL_S = 1.0
_PRODUCER_POLLS = 60
"""Producers live for hours: they are looked at once in so many polls."""
_SHARDS_PER_STEP = 1024


async def look_at_ages(
    shards: ShardDirectory, turn: Turn, age_ms: Callable[[], int], producer_expiration_ms: int
) -> None:
    """`age_ms`: the clock by which producers grow old."""
    polls = 0
    while True:
        await asyncio.sleep(_POLL_S)
        turn.read_clocks()
        now_ms = turn.now_ms
        polls += 1
        for number, shard in enumerate(list(shards.all())):
            try:
                has_rolled = shard.look_at_age(now_ms)
                if polls % _PRODUCER_POLLS == 0:
                    shard.forget_silent_producers(age_ms(), producer_expiration_ms)
            except Exception as error:  # one shard's fault must not keep the others from rolling (F48)
                log.error("roll failed", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
                shard.stop_after_fault(f"a fault in the node, see its log: {error}")
                continue
            if has_rolled or number % _SHARDS_PER_STEP == _SHARDS_PER_STEP - 1:
                # A roll makes a file; thousands that were begun together end together.
                await asyncio.sleep(0)
