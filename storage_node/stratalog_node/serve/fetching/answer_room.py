"""How many bytes each partition may add to the answer of a fetch (KIP-74).

Partitions come in the order of the request. The first one with data adds at least one batch, however small the limits
are, so that a client always advances. Each later one obeys two limits: its own, and what the answer has left.
Behind a partition that is read later (from disk or the object store) no other is the first one. Its read may fail or
find nothing, though, so one batch that exceeds a limit is kept as a fallback, and counts as nothing.
Pure; one instance for each check of a fetch. Cost: below a microsecond for each partition.
"""

from __future__ import annotations


class AnswerRoom:
    __slots__ = ("_has_fallback", "later_bytes", "left_bytes", "limit_bytes", "total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.left_bytes = limit_bytes
        """Negative once a first batch above the limit was added."""
        self.later_bytes: int | None = None
        """What was left for the first partition that is read later; None if there is none."""
        self.total_bytes = 0
        """What was added, without a fallback."""
        self._has_fallback = False

    @property
    def is_full(self) -> bool:
        """Whether `add` refuses any partition that comes next."""
        return self.left_bytes <= 0 and (self.total_bytes > 0 or self._has_fallback)

    def wanted_bytes(self, most_bytes: int) -> int:
        """How much to read of a partition whose own limit is `most_bytes`; a read returns at least one batch."""
        return min(most_bytes, max(self.left_bytes, 1))

    def read_later(self) -> None:
        """The next partition is read later: what is added from now on gives way to it."""
        if self.later_bytes is None:
            self.later_bytes = self.left_bytes

    def add(self, size_bytes: int, most_bytes: int) -> bool:
        """Whether what was read of the next partition belongs to the answer."""
        if size_bytes > most_bytes or size_bytes > self.left_bytes:
            if self.total_bytes or self._has_fallback:
                return False
            if self.later_bytes is not None:
                self._has_fallback = True
                return True
        self.total_bytes += size_bytes
        self.left_bytes -= size_bytes
        return True
