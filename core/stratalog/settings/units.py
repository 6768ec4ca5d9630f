"""Sizes and times: as numbers, so that a default reads as its meaning, and as users write them (`7d`, `1MiB`). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stratalog.model.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_MS_BY_UNIT: Final = {
    "ms": 1,
    "s": SECOND_MS,
    "m": MINUTE_MS,
    "min": MINUTE_MS,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": 7 * DAY_MS,
}
_BYTES_BY_UNIT: Final = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_WRITTEN: Final = re.compile(r"([0-9]{1,18}) ?([A-Za-z]{1,3})", re.ASCII)

DURATIONS: Final = "7d, 12h, 30m, 10s or 500ms"
SIZES: Final = "1GiB, 64MiB, 512KiB or 10MB"


def duration_ms(text: str) -> int | None:
    """`7d` -> milliseconds; None for anything but a number with a unit of time."""
    return _with_unit(text, _MS_BY_UNIT)


def size_bytes(text: str) -> int | None:
    """`1MiB` -> bytes, `1MB` -> a million; None for anything but a number with a unit of size. Case does not matter."""
    return _with_unit(text, _BYTES_BY_UNIT)


def parse_duration_ms(text: str, option: str) -> int:
    """For options that take a time and had no unit before. Raises: InvalidRequest naming the option."""
    found = duration_ms(text)
    if not found or found > INT64_MAX:
        raise InvalidRequest(f"{option} {text!r:.80}: expected a number and a unit, such as {DURATIONS}")
    return found


def parse_seconds(text: str, option: str) -> float:
    """For options whose plain numbers are seconds. Raises: InvalidRequest naming the option."""
    found = duration_ms(text)
    if found is not None:
        return found / SECOND_MS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < INT32_MAX:
        raise InvalidRequest(f"{option} {text!r:.80}: expected seconds, or a time such as {DURATIONS}")
    return seconds


def takes_duration(key: str) -> bool:
    return key.endswith((".ms", ".minutes"))


def takes_size(key: str) -> bool:
    return key.endswith((".bytes", ".bytes.per.second"))


def plain(key: str, value: str) -> str:
    """A setting's value in the unit of its key: `retention.ms=7d` -> 604800000. A value without a unit, or with a unit
    that its key does not take, stays as it is; the key's bounds judge it. So does a time that is not a whole number of
    minutes."""
    if key.endswith(".minutes"):
        found = duration_ms(value)
        if found is not None:
            found = None if found % MINUTE_MS else found // MINUTE_MS
    elif takes_duration(key):
        found = duration_ms(value)
    else:
        found = size_bytes(value) if takes_size(key) else None
    return value if found is None else str(found)


def _with_unit(text: str, units: Mapping[str, int]) -> int | None:
    match = _WRITTEN.fullmatch(text.strip())
    unit = None if match is None else units.get(match[2].lower())
    return None if match is None or unit is None else int(match[1]) * unit
