"""How many new connections are taken in a second: of an address (KIP-612), and of all clients together. Pure.

A connection that its address may not open counts neither for the address nor for all.
Bounded: the addresses that opened a connection most recently are known.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from stratalog.machines.quotas.rates import UsageRate, Windows

MOST_ADDRESSES: Final = 10_000


class ConnectionRates:
    def __init__(self, most_per_s: int, windows: Windows) -> None:
        self._windows = windows
        self._all = UsageRate(most_per_s, windows, windows.size_ms)
        self._addresses: OrderedDict[str, UsageRate] = OrderedDict()

    def add(self, now_ms: int) -> int:
        """One more. Returns: how many milliseconds no further one is to be taken."""
        return self._all.use(1, now_ms)

    def add_of(self, ip: str, limit: float, now_ms: int) -> int:
        """One more of an address. Returns 0, or how many milliseconds it has to wait: then it is not counted."""
        rate = self._addresses.get(ip)
        if rate is None:
            rate = self._addresses[ip] = UsageRate(limit, self._windows, self._windows.size_ms)
            if len(self._addresses) > MOST_ADDRESSES:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(ip)
        rate.limit = limit
        wait_ms = rate.use(1, now_ms)
        if wait_ms:
            rate.give_back(1, now_ms)
        return wait_ms
