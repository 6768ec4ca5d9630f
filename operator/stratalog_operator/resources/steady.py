"""Keeps a text with durations in a status until its meaning changes: writing "for 5 s", then "for 6 s" would never end,
because each write wakes the next pass.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(
    r"\b(\d[\d,]*)(?= ?(?:ms|s|min|h|d|seconds|minutes|hours|days)\b)|\b(\d[\d.,]*)(?= ?\w+/s\b)"
)


def steady(before: str, now: str) -> str:
    """Returns `before` if `now` differs only in durations and rates, and none of these has doubled or halved; else
    `now`."""
    if before == now or _DURATION.sub("#", before) != _DURATION.sub("#", now):
        return now
    pairs = zip(_numbers(before), _numbers(now), strict=True)
    return before if all(is_steady(old, new) for old, new in pairs) else now


def is_steady(before: float, now: float) -> bool:
    return before == now or (before > 0 and before < 2 * now < 4 * before)


def _numbers(words: str) -> list[float]:
    return [float((one[0] or one[1]).replace(",", "").rstrip(".")) for one in _DURATION.findall(words)]
