"""Times as users write them, and the present one."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from stratalog.model.errors import InvalidRequest


def parse_time_ms(text: str, option: str) -> int:
    """ISO 8601, UTC unless it says otherwise. Raises: InvalidRequest naming the option."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{option} {text!r:.80}: expected a time such as 2013-01-01 or 2013-01-01T12:00") from None
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
