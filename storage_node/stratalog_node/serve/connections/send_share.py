"""Limits how much all connections together send in a turn of the loop: large answers beyond it wait for the next turn.

A socket takes megabytes at once, and two thousand sockets gigabytes, which would block the event loop for seconds,
longer than a lease. Lives on the event loop.
"""

from __future__ import annotations

from typing import Final

from stratalog_node.turn import Turn

_TURN_BYTES = 32 << 20
"""Some 10 to 40 ms."""
LITTLE_BYTES: Final = 16 << 10
"""What a connection may always send: those that have no more do not wait for those that have."""


class SendShare:
    """The share of one turn; each turn has a new one."""

    __slots__ = ("_number", "_sent_bytes", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._number = -1
        self._sent_bytes = 0

    @property
    def is_used_up(self) -> bool:
        return self._sent_bytes >= _TURN_BYTES and self._number == self._turn.number

    def use(self, size_bytes: int) -> None:
        """So much more was sent."""
        if self._number != self._turn.number:
            self._number, self._sent_bytes = self._turn.number, 0
        self._sent_bytes += size_bytes
