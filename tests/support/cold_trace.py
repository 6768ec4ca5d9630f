"""Ten consumer groups that read one shard's cold data at different positions: each read with its time, the same in
every run. Sizes are those of a node with default settings.

Six groups are within 4 s of the first; now and then one pauses for some seconds (a rebalance) and then hurries
until it has its place again. Three others read an older part of the shard, within 3 s. The tenth looks at single
offsets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

MIB = 1 << 20
READ_BYTES = 256 << 10
BLOCK_BYTES = 3 * MIB // 2
BUDGET_BYTES = 40 * MIB
"""Of the default 48 MiB, what indexes leave."""
SHARD_BYTES = 360 * MIB
_SPEED = 4 * MIB / 1_000
"""Bytes in a millisecond, for all groups in the long run."""
_OLDER_BYTES = 120 * MIB
"""Where the first six begin; the next three end there."""


@dataclass(frozen=True, slots=True)
class Access:
    """A Fetch. A byte is an offset."""

    now_ms: int
    group: int
    offset: int
    end_offset: int

    @property
    def blocks(self) -> range:
        return range(self.offset // BLOCK_BYTES, (self.end_offset - 1) // BLOCK_BYTES + 1)


@dataclass(slots=True)
class _Group:
    lag_ms: int
    base: int
    end: int
    speed: float
    position: int = 0

    def pace_ms(self, now_ms: float, draw: random.Random) -> float:
        """Until its next read."""
        usual_ms = READ_BYTES / self.speed
        behind = self.base + (now_ms - self.lag_ms) * self.speed - self.position
        if draw.random() < 0.002:
            return draw.uniform(1_000, 3_000)
        return usual_ms * draw.uniform(0.7, 1.3) * (0.4 if behind > MIB else 1.0)


def ten_groups(seed: int = 30, speed: float = 1.0) -> Iterator[Access]:
    """In order of time: a minute. With twice the `speed` there is twice as much data between the groups."""
    draw = random.Random(seed)
    ahead = [_Group(lag_ms, _OLDER_BYTES, SHARD_BYTES, speed * _SPEED) for lag_ms in (0, 300, 900, 3_400, 3_700, 4_000)]
    groups = ahead + [_Group(lag_ms, 0, _OLDER_BYTES, speed * _SPEED) for lag_ms in (0, 2_600, 3_000)]
    for group in groups:
        group.position = group.base
    due = [(group.lag_ms + draw.uniform(0, 100), index) for index, group in enumerate(groups)]
    heapify(due)
    next_look_ms = 500.0
    while due:
        now_ms, index = due[0]
        group = groups[index]
        if next_look_ms < now_ms:
            at = draw.randrange(_OLDER_BYTES, SHARD_BYTES // 2)
            yield Access(int(next_look_ms), 9, at, at + 1_000)
            next_look_ms += 6_000
        end = min(group.position + READ_BYTES, group.end)
        yield Access(int(now_ms), index, group.position, end)
        group.position = end
        if end == group.end:
            heappop(due)
        else:
            heapreplace(due, (now_ms + group.pace_ms(now_ms, draw), index))
