"""When time alone may do something to a shard, so that a node of thousands of idle shards need not look at them.

Pure. Cost: less than 1 us.
"""

from __future__ import annotations

from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Life


def next_look_ms(chain: ShardChain, now_ms: int) -> int | None:
    """From when on, by the wall clock, a `TimePassed` may change anything, unless something else happens to the shard
    before; None: never. `now_ms` where followers are behind: how long is told by the monotonic clock."""
    if chain.stop is None:
        for leader in chain.ended:
            if leader.owes_look:
                return now_ms
        if chain.active is not None and chain.active.owes_look:
            return now_ms
    if chain.active is None or chain.life is not Life.SERVING:
        return None
    return chain.active.rolls_at_ms
