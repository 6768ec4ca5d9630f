"""How much of a shard one request to the object store asks for: a block, or less while readers outnumber the memory.

A block that must go before it was read to its end was fetched in vain. Then the shard's next ranges are half as large,
until what is fetched is also read; they grow again one step at a time when the caller says that there is memory.
Level n is a block halved n times. A reader that takes much at a time gets ranges as large as that, because data that is
taken at once occupies no memory.

Invariant: 0 <= level <= most_levels.
"""

from __future__ import annotations


class ReadRange:
    """The ranges of one shard."""

    __slots__ = ("_block_bytes", "_most_levels", "finest", "level")

    def __init__(self, block_bytes: int, smallest_bytes: int) -> None:
        """Ranges of less than `smallest_bytes` cannot be cut."""
        self._block_bytes = block_bytes
        self._most_levels = max(0, (block_bytes // smallest_bytes).bit_length() - 1)
        self.level = self.finest = 0
        """The level now, and the highest so far: no block of a higher one was asked for."""

    def size_bytes(self, level: int) -> int:
        return max(1, self._block_bytes >> level)

    def level_for(self, taken_bytes: int) -> int:
        """Where to fetch for a reader that takes `taken_bytes` at a time."""
        level = self.level
        while level and self.size_bytes(level) < taken_bytes:
            level -= 1
        return level

    def went_unread(self, size_bytes: int) -> None:
        """A block of this size went before it was read to its end. What went together counts once."""
        if 2 * size_bytes > self.size_bytes(self.level) and self.level < self._most_levels:
            self.level += 1
            self.finest = max(self.finest, self.level)

    def rest(self) -> None:
        """No client has read here for long: the next one begins with a block."""
        self.level = 0

    def grow(self) -> None:
        self.level = max(0, self.level - 1)
