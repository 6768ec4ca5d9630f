"""The clocks of a meta service: the wall clock for times that are kept, the monotonic one for leases in memory."""

from __future__ import annotations

import time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
