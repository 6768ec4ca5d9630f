"""Sizes and durations in words: 64MiB, 1g, 15m."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(text: str) -> int | None:
    """Units are powers of 1,024, as Spark takes them. None for what is no size."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) << _POWERS[found[2].lower()] if found else None


_DURATION: Final = re.compile(r"([0-9]{1,15})\s*(ms|s|m|min|h|d|)", re.IGNORECASE)
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int | None:
    """As Spark takes them: a number without a unit is of milliseconds. None for what is no duration."""
    found = _DURATION.fullmatch(text.strip())
    return int(found[1]) * _UNITS_MS[found[2].lower()] if found else None
