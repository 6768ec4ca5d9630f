"""Sizes in words: 64MiB, 1g."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(text: str) -> int | None:
    """Units are powers of 1,024, as Spark takes them. None for what is no size."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) << _POWERS[found[2].lower()] if found else None
