"""How far ahead of its readers a shard is read from the object store: additive growth, multiplicative decrease.

One window per shard, shared by all groups. It grows by every use's bytes and halves when data that was fetched ahead
expires before it was wholly read (then readers are slower than we fetched, or gone). A block is requested once: while
it is in flight or held, it is not requested again (single flight). A window crosses the ends of parts and segments
without noticing: to it there are only blocks in order.

Requires: the caller performs what `plan` and `demand` return, and reports `arrived` or `failed` for each; it drops
what `expire` returns. Times never matter but in differences.
Invariant: floor <= window <= cap; held and in-flight bytes are the sums over the blocks.
Cost: a few dictionary look-ups per block of the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

_READERS_REMEMBERED = 64
"""Ends of recent reads: a sequential reader begins at one of them, a reader that jumps does not."""


class Block(NamedTuple):
    """Whole batches that are fetched, verified and dropped together: a range of one object. Offsets are half-open.

    An object is written once, so its key and the position say which batches. (A string's hash is kept, a topic id's is
    computed in Python each time, and blocks are looked up a dozen times for a read.)
    """

    object_key: str
    position: int
    base_offset: int
    end_offset: int
    size_bytes: int
    """What is fetched and held for it, everything counted."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Floor and cap of the window, and how long data is kept."""

    floor_bytes: int
    cap_bytes: int
    unread_ttl_ms: int
    """Of a block that was not wholly read, since it came or was last used."""
    read_ttl_ms: int
    """Of a block that was read to its end, since it was last used: other groups may be close behind."""

    def __post_init__(self) -> None:
        assert 0 < self.floor_bytes <= self.cap_bytes, "floor_bytes: must be between 1 and cap_bytes"
        assert self.read_ttl_ms >= 0 and self.unread_ttl_ms > 0, "TTLs: must not be negative"


class _Status(Enum):
    IN_FLIGHT = 1
    UNREAD = 2
    """Held, and not yet read to its end."""
    READ = 3


class _Entry:
    __slots__ = ("expires_ms", "is_ahead", "status")

    def __init__(self, *, is_ahead: bool) -> None:
        self.status = _Status.IN_FLIGHT
        self.is_ahead = is_ahead
        self.expires_ms = 0


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """For the cluster UI and metrics."""

    window_bytes: int
    held_bytes: int
    in_flight_bytes: int
    blocks: int
    is_paused: bool


class Expired(NamedTuple):
    """Blocks to drop, and how many (and how many bytes) of them were fetched ahead and not wholly read."""

    blocks: list[Block]
    unread_blocks: int
    unread_bytes: int


class ReadWindow:
    """The read-ahead of one shard."""

    __slots__ = (
        "_blocks",
        "_ends",
        "_halved_ms",
        "_is_paused",
        "_limits",
        "held_bytes",
        "in_flight_bytes",
        "unread_bytes",
        "window_bytes",
    )

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._blocks: dict[Block, _Entry] = {}
        self._ends: dict[int, None] = {}
        self._halved_ms: int | None = None
        self._is_paused = False
        self.window_bytes = limits.floor_bytes
        self.held_bytes = 0
        self.unread_bytes = 0
        """Of those held, what was not read to its end."""
        self.in_flight_bytes = 0

    # Asking -----------------------------------------------------------------------------------------------------
    def continues(self, offset: int) -> bool:
        """Whether a read at `offset` continues where a recent read ended. A reader that jumps gets no read-ahead yet,
        because it may not read on."""
        return offset in self._ends

    def demand(self, block: Block) -> bool:
        """A reader waits for this block. Returns: whether to fetch it; False when it is held or on its way."""
        if block in self._blocks:
            return False
        self._begin(block, is_ahead=False)
        return True

    def plan(self, ahead: Iterable[Block], reach_bytes: int, allowance_bytes: int) -> list[Block]:
        """What to fetch now, all at the same time, so that `reach_bytes` lie ready.

        `ahead` is what follows a reader's position, in order; it is read only as far as needed. At most
        `allowance_bytes` are asked for (the memory that is left), nearest first, and nothing is skipped over.
        """
        wanted: list[Block] = []
        if self._is_paused or reach_bytes <= 0:
            return wanted
        reached = 0
        for block in ahead:
            if block not in self._blocks:
                if block.size_bytes > allowance_bytes:
                    break
                allowance_bytes -= block.size_bytes
                self._begin(block, is_ahead=True)
                wanted.append(block)
            reached += block.size_bytes
            if reached >= reach_bytes:
                break
        return wanted

    def _begin(self, block: Block, *, is_ahead: bool) -> None:
        self._blocks[block] = _Entry(is_ahead=is_ahead)
        self.in_flight_bytes += block.size_bytes

    # What became of it ------------------------------------------------------------------------------------------
    def arrived(self, block: Block, now_ms: int) -> None:
        """The block is verified and held."""
        entry = self._blocks[block]
        assert entry.status is _Status.IN_FLIGHT, f"{block} arrived twice"
        entry.status = _Status.UNREAD
        entry.expires_ms = now_ms + self._limits.unread_ttl_ms
        self.in_flight_bytes -= block.size_bytes
        self.held_bytes += block.size_bytes
        self.unread_bytes += block.size_bytes
        self._is_paused = False

    def failed(self, block: Block) -> None:
        """It could not be fetched. Read-ahead rests until a reader's own fetch succeeds: a store that is away is not
        asked for more than is needed."""
        entry = self._blocks.pop(block)
        assert entry.status is _Status.IN_FLIGHT, f"{block} failed after it arrived"
        self.in_flight_bytes -= block.size_bytes
        self._is_paused = True

    def used(self, block: Block, used_bytes: int, end_offset: int, now_ms: int) -> None:
        """A reader took `used_bytes` of the block, up to `end_offset`. The block may have been dropped meanwhile."""
        self.window_bytes = min(self._limits.cap_bytes, self.window_bytes + used_bytes)
        self._ends.pop(end_offset, None)
        self._ends[end_offset] = None
        if len(self._ends) > _READERS_REMEMBERED:
            del self._ends[next(iter(self._ends))]
        entry = self._blocks.get(block)
        if entry is None or entry.status is _Status.IN_FLIGHT:
            return
        if end_offset >= block.end_offset and entry.status is _Status.UNREAD:
            entry.status = _Status.READ
            self.unread_bytes -= block.size_bytes
        ttl_ms = self._limits.read_ttl_ms if entry.status is _Status.READ else self._limits.unread_ttl_ms
        entry.expires_ms = now_ms + ttl_ms

    def dropped(self, block: Block) -> None:
        """The memory was needed elsewhere: no judgement on the window."""
        entry = self._blocks.get(block)
        if entry is not None and entry.status is not _Status.IN_FLIGHT:
            del self._blocks[block]
            self._let_go(block, entry)

    def _let_go(self, block: Block, entry: _Entry) -> None:
        self.held_bytes -= block.size_bytes
        if entry.status is _Status.UNREAD:
            self.unread_bytes -= block.size_bytes

    # Time -------------------------------------------------------------------------------------------------------
    def expire(self, now_ms: int) -> Expired:
        """What is to be dropped now. Halves the window when some of it was fetched ahead and not wholly read; at most
        once per unread TTL, because what was fetched together expires together."""
        limits = self._limits
        gone = [
            block
            for block, entry in self._blocks.items()
            if entry.status is not _Status.IN_FLIGHT and entry.expires_ms <= now_ms
        ]
        unread_blocks = unread_bytes = 0
        for block in gone:
            entry = self._blocks.pop(block)
            self._let_go(block, entry)
            if entry.status is _Status.UNREAD and entry.is_ahead:
                unread_blocks += 1
                unread_bytes += block.size_bytes
        if unread_blocks and (self._halved_ms is None or now_ms - self._halved_ms >= limits.unread_ttl_ms):
            self._halved_ms = now_ms
            self.window_bytes = max(limits.floor_bytes, self.window_bytes // 2)
        return Expired(gone, unread_blocks, unread_bytes)

    @property
    def is_idle(self) -> bool:
        """Nothing held, nothing on its way: the shard's window may be forgotten."""
        return not self._blocks

    # Looking ----------------------------------------------------------------------------------------------------
    def describe(self) -> WindowStatus:
        return WindowStatus(
            self.window_bytes, self.held_bytes, self.in_flight_bytes, len(self._blocks), self._is_paused
        )

    def check_invariants(self) -> None:
        assert self._limits.floor_bytes <= self.window_bytes <= self._limits.cap_bytes
        in_flight = sum(b.size_bytes for b, e in self._blocks.items() if e.status is _Status.IN_FLIGHT)
        assert in_flight == self.in_flight_bytes
        unread = sum(b.size_bytes for b, e in self._blocks.items() if e.status is _Status.UNREAD)
        assert unread == self.unread_bytes
        assert sum(block.size_bytes for block in self._blocks) - in_flight == self.held_bytes
        assert len(self._ends) <= _READERS_REMEMBERED
