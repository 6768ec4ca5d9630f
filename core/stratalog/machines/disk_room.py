"""How scarce room on a node's disk is, in four classes, so that placement can weigh it and the metadata seldom change.

Pure. A class is left only when the free share is past its border by `MARGIN_PERCENT`: a disk that fills and is freed
around a border changes nothing. What a class means to placement is in `placement`.
"""

from __future__ import annotations

from typing import Final

BORDERS_PERCENT: Final = (40, 20, 10)
"""Of the disk that is free: below each of them room is scarcer by one class."""
MARGIN_PERCENT: Final = 3
SCARCEST: Final = len(BORDERS_PERCENT)


def scarcity_of(free_bytes: int, total_bytes: int, noted: int) -> int:
    """0 (plenty) to `SCARCEST`, beginning with what is noted; a disk of unknown size stays as it is noted."""
    if total_bytes <= 0:
        return noted
    worse = _class_of(free_bytes, total_bytes, MARGIN_PERCENT)
    better = _class_of(free_bytes, total_bytes, -MARGIN_PERCENT)
    return max(worse, min(better, noted))


def _class_of(free_bytes: int, total_bytes: int, given_percent: int) -> int:
    """As if so much more were free. Integers: the same on every machine."""
    return sum(free_bytes * 100 + given_percent * total_bytes < border * total_bytes for border in BORDERS_PERCENT)
