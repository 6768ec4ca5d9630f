"""How many bytes to ask another node for at once, so that an answer takes about a second on the link between them.

A large answer is cheap on a fast link. On a slow one it keeps everything behind it waiting: the high watermarks of all
other segments, and the confirmation that keeps a follower in the ISR.
Pure. Cost: a few comparisons per answer.
"""

from __future__ import annotations

_AIM_MS = 1_000
_SMALLEST_BYTES = 64 << 10


class AnswerSize:
    """Shrinks to what the link carried in a second; doubles while full answers take less than half of that.

    Invariant: min(64 KiB, most_bytes) <= size_bytes <= most_bytes.
    """

    __slots__ = ("_most_bytes", "size_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.size_bytes = most_bytes

    def answered(self, answer_bytes: int, took_ms: float) -> None:
        """An answer arrived whole. `took_ms`: from its first bytes to its last."""
        if took_ms > _AIM_MS:
            carried = int(answer_bytes * _AIM_MS / took_ms)
            self.size_bytes = max(min(_SMALLEST_BYTES, self._most_bytes), min(self.size_bytes, carried))
        elif 2 * took_ms < _AIM_MS and 2 * answer_bytes >= self.size_bytes:
            self.size_bytes = min(self._most_bytes, 2 * self.size_bytes)
