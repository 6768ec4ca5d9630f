"""Time-based changes of shards: segments roll by age, lagging followers leave the ISR, and idle producers are
forgotten, also while no client writes.

Lives on the event loop, as one endless task. Cost: a check of each shard that changed within the last second or whose
time has come; once a minute a check of the producers of all shards, in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from stratalog.telemetry.logs import logger
from stratalog_node.shards.copies.due_shards import DueShards, TimedShard
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.slices import Slices
from stratalog_node.turn import Turn

log = logger(__name__)

_POLL_S: Final = 1.0
_PRODUCER_POLLS: Final = 60
"""Producers live for hours: they are checked in one of this many polls."""


async def run_timed_checks(
    shards: ShardDirectory, turn: Turn, age_ms: Callable[[], int], producer_expiration_ms: int
) -> None:
    """`age_ms`: the clock by which producers grow old."""
    polls = 0
    while True:
        await asyncio.sleep(_POLL_S)
        turn.read_clocks()
        await check_due_shards(shards.due_shards, turn.now_ms)
        polls += 1
        if polls % _PRODUCER_POLLS == 0:
            slices = Slices()
            for shard in list(shards.all()):
                try:
                    forget_silent_producers(shard, age_ms(), producer_expiration_ms)
                except Exception as error:
                    _stop(shard, "producers cannot be forgotten", error)
                await slices.did()


async def check_due_shards(due_shards: DueShards, now_ms: int) -> None:
    """One pass."""
    slices = Slices()
    for shard in due_shards.pop_due(now_ms):
        has_rolled = False
        try:
            has_rolled = shard.check_age(now_ms)
        except Exception as error:  # one shard's fault must not keep the others from rolling (F48)
            _stop(shard, "roll failed", error)
        due_shards.settle(shard, now_ms)
        if has_rolled:
            await asyncio.sleep(0)  # a roll makes a file; thousands that were begun together end together
        else:
            await slices.did()


def forget_silent_producers(shard: ShardLog, now_ms: int, expiration_ms: int) -> int:
    """Forgets idempotent producers that have not written for `expiration_ms`. Returns how many."""
    if (active := shard.chain.active) is None:
        return 0
    table, stats = active.producers, shard.context.stats
    stats.producers_dropped += table.pop_dropped()
    return table.expire(now_ms, expiration_ms)


def _stop(shard: TimedShard, what: str, error: Exception) -> None:
    log.error(what, topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
    shard.stop_after_fault(f"a fault in the node, see its log: {error}")
