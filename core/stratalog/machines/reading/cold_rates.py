"""How fast a topic's cold data may be read on this node, and by each client of it. Pure.

What was answered is counted; who read faster than the limit waits before the next read until that is made up for, as
Kafka's clients do under a quota. A limit that changes counts at once: what is owed is paid at the new rate.
Bounded: those that read most recently are known. Cost: one dictionary access for each limit that is set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from stratalog.machines.token_bucket import TokenBucket

NO_LIMIT: Final = -1
_MOST_KNOWN: Final = 10_000
_BURST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ColdLimits:
    """Of one topic on one node, bytes per second."""

    topic: int = NO_LIMIT
    client: int = NO_LIMIT
    """Of each client id."""


class _Rate:
    __slots__ = ("bucket", "bytes_per_s")

    def __init__(self, bytes_per_s: int, now_ms: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.bucket = TokenBucket(bytes_per_s, bytes_per_s * _BURST_S, now_ms)


class ColdRates:
    def __init__(self) -> None:
        self._rates: OrderedDict[tuple[Hashable, str | None], _Rate] = OrderedDict()

    def wait_ms(self, topic: Hashable, client: str, limits: ColdLimits, now_ms: int) -> int:
        """How long a read has to wait; 0 within the limits."""
        return max(
            self._wait_ms(topic, None, limits.topic, now_ms), self._wait_ms(topic, client, limits.client, now_ms)
        )

    def _wait_ms(self, topic: Hashable, client: str | None, bytes_per_s: int, now_ms: int) -> int:
        if bytes_per_s == NO_LIMIT:
            return 0
        level = self._rate(topic, client, bytes_per_s, now_ms).bucket.level(now_ms)
        return 0 if level >= 0 else int(-level * 1_000 / bytes_per_s) + 1

    def count(self, topic: Hashable, client: str, limits: ColdLimits, size_bytes: int, now_ms: int) -> None:
        """That much was answered."""
        if limits.topic != NO_LIMIT:
            self._rate(topic, None, limits.topic, now_ms).bucket.consume(size_bytes, now_ms)
        if limits.client != NO_LIMIT:
            self._rate(topic, client, limits.client, now_ms).bucket.consume(size_bytes, now_ms)

    def _rate(self, topic: Hashable, client: str | None, bytes_per_s: int, now_ms: int) -> _Rate:
        rate = self._rates.get((topic, client))
        if rate is None:
            rate = self._rates[topic, client] = _Rate(bytes_per_s, now_ms)
            if len(self._rates) > _MOST_KNOWN:
                self._rates.popitem(last=False)
        elif rate.bytes_per_s != bytes_per_s:
            rate.bytes_per_s = bytes_per_s
            rate.bucket.change_rate(bytes_per_s, bytes_per_s * _BURST_S, now_ms)
        self._rates.move_to_end((topic, client))
        return rate
