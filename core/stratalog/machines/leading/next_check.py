"""When time alone may do something to a shard, so that a node of thousands of idle shards need not look at them.

Pure. Cost: less than 1 us.
"""

from __future__ import annotations

from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Life


def next_check_ms(chain: ShardChain, now_ms: int) -> int | None:
    """The time, by the wall clock, from which a `TimePassed` may change something, unless another event reaches the
    shard before; None: never. `now_ms` if followers are behind, because the monotonic clock measures for how long."""
    if chain.stop is None:
        for leader in chain.ended:
            if leader.needs_check:
                return now_ms
        if chain.active is not None and chain.active.needs_check:
            return now_ms
    if chain.active is None or chain.life is not Life.SERVING:
        return None
    return chain.active.rolls_at_ms
