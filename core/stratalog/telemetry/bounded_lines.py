"""Log lines that others can cause any number of: clients that are turned away, or 10,000 shards in the same trouble.
Twenty are written in ten seconds, then one that says so; the first one after that says how many were left out.

Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_WINDOW_MS: Final = 10_000
_MOST_LINES: Final = 20


class BoundedLines:
    def __init__(self, log: Any, steady_ms: Callable[[], int], rest: str) -> None:
        """`log` is one of structlog. `rest` says where a person finds what is left out."""
        self._log = log
        self._steady_ms = steady_ms
        self._rest = rest
        self._since_ms: int | None = None
        self._asked = 0
        """How many lines were asked for since then."""

    def warning(self, event: str, **fields: object) -> None:
        self._write(self._log.warning, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(self._log.info, event, fields)

    def _write(self, write: Callable[..., object], event: str, fields: dict[str, object]) -> None:
        now_ms = self._steady_ms()
        if self._since_ms is None or now_ms - self._since_ms >= _WINDOW_MS:
            left_out = max(0, self._asked - _MOST_LINES)
            self._since_ms, self._asked = now_ms, 0
            if left_out:
                fields["left_out"] = left_out
        self._asked += 1
        if self._asked <= _MOST_LINES:
            write(event, **fields)
        elif self._asked == _MOST_LINES + 1:
            self._log.warning(f"further lines are left out: {self._rest}")
