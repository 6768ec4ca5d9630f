"""How far ahead of its readers a shard is read from the object store: additive growth, multiplicative decrease.

One window per shard, shared by all groups. It grows by every use's bytes and halves when data that was fetched ahead is
not wholly read in time (then readers are slower than we fetched, or gone). A block is requested once: while it is in
flight or held, it is not requested again (single flight). A window crosses the ends of parts and segments without
noticing: to it there are only blocks in order. It drops nothing: what goes when room is needed says `eviction_order`.

Requires: the caller performs what `plan` and `demand` return, and reports `arrived` or `failed` for each, and `dropped`
for what it no longer holds. Times never matter but in differences.
Invariant: floor <= window <= cap; held and in-flight bytes are the sums over the blocks.
Cost: a few dictionary look-ups per block of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


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
    """Floor and cap of the window, and how long its data may wait for readers."""

    floor_bytes: int
    cap_bytes: int
    unread_ttl_ms: int
    """Of a block that was not wholly read, since it came or was last used."""

    def __post_init__(self) -> None:
        assert 0 < self.floor_bytes <= self.cap_bytes, "floor_bytes: must be between 1 and cap_bytes"
        assert self.unread_ttl_ms > 0, "unread_ttl_ms: must be positive"


class _Status(Enum):
    IN_FLIGHT = 1
    UNREAD = 2
    """Held, not yet read to its end, and expected to be."""
    KEPT = 3
    """Held for later readers: it was read to its end, or not in time."""


class _Entry:
    __slots__ = ("is_ahead", "status", "used_ms")

    def __init__(self, *, is_ahead: bool) -> None:
        self.status = _Status.IN_FLIGHT
        self.is_ahead = is_ahead
        self.used_ms = 0


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """For the cluster UI and metrics."""

    window_bytes: int
    held_bytes: int
    in_flight_bytes: int
    blocks: int
    is_paused: bool


class Waste(NamedTuple):
    """What was fetched ahead and not wholly read in time."""

    blocks: int
    size_bytes: int


class ReadWindow:
    """The read-ahead of one shard."""

    __slots__ = (
        "_blocks",
        "_halved_ms",
        "_is_paused",
        "_limits",
        "_unread",
        "held_bytes",
        "in_flight_bytes",
        "unread_bytes",
        "window_bytes",
    )

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._blocks: dict[Block, _Entry] = {}
        self._unread: dict[Block, None] = {}
        """Longest unused first."""
        self._halved_ms: int | None = None
        self._is_paused = False
        self.window_bytes = limits.floor_bytes
        self.held_bytes = 0
        self.unread_bytes = 0
        """Of those held, what is still expected to be read to its end."""
        self.in_flight_bytes = 0

    # Asking -----------------------------------------------------------------------------------------------------
    def demand(self, block: Block) -> bool:
        """A reader waits for this block. Returns: whether to fetch it; False when it is held or on its way."""
        if block in self._blocks:
            return False
        self._begin(block, is_ahead=False)
        return True

    def plan(
        self, ahead: Iterable[Block], reach_bytes: int, allowance_bytes: int, has_room: Callable[[Block], bool]
    ) -> list[Block]:
        """What to fetch now, all at the same time, so that `reach_bytes` lie ready.

        `ahead` is what follows a reader's position, in order; it is read only as far as needed. At most
        `allowance_bytes` are asked for, nearest first, and nothing is skipped over. `has_room` is asked last: what it
        says yes to is fetched.
        """
        wanted: list[Block] = []
        if self._is_paused or reach_bytes <= 0:
            return wanted
        reached = 0
        for block in ahead:
            if block not in self._blocks:
                if block.size_bytes > allowance_bytes or not has_room(block):
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
        entry.used_ms = now_ms
        self._unread[block] = None
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
        entry = self._blocks.get(block)
        if entry is None or entry.status is not _Status.UNREAD:
            return
        if end_offset >= block.end_offset:
            self._keep(block, entry)
        else:
            entry.used_ms = now_ms
            del self._unread[block]
            self._unread[block] = None

    def _keep(self, block: Block, entry: _Entry) -> None:
        entry.status = _Status.KEPT
        self.unread_bytes -= block.size_bytes
        del self._unread[block]

    def dropped(self, block: Block) -> None:
        """Its room was needed: no judgement on the window."""
        entry = self._blocks.pop(block)
        assert entry.status is not _Status.IN_FLIGHT, f"{block} dropped before it arrived"
        if entry.status is _Status.UNREAD:
            self._keep(block, entry)
        self.held_bytes -= block.size_bytes

    # Time -------------------------------------------------------------------------------------------------------
    def judge(self, now_ms: int) -> Waste:
        """What was fetched ahead and not wholly read in time halves the window; at most once per unread TTL, because
        what was fetched together is late together."""
        ttl_ms = self._limits.unread_ttl_ms
        blocks = size_bytes = 0
        while self._unread:
            block = next(iter(self._unread))
            entry = self._blocks[block]
            if entry.used_ms + ttl_ms > now_ms:
                break
            self._keep(block, entry)
            if entry.is_ahead:
                blocks += 1
                size_bytes += block.size_bytes
        if blocks and (self._halved_ms is None or now_ms - self._halved_ms >= ttl_ms):
            self._halved_ms = now_ms
            self.window_bytes = max(self._limits.floor_bytes, self.window_bytes // 2)
        return Waste(blocks, size_bytes)

    def rest(self) -> None:
        """No client has read here for long: the next one begins with the floor."""
        self.window_bytes = self._limits.floor_bytes

    @property
    def is_waiting(self) -> bool:
        """Something is on its way, or expected to be read."""
        return self.in_flight_bytes > 0 or bool(self._unread)

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
        assert set(self._unread) == {b for b, e in self._blocks.items() if e.status is _Status.UNREAD}
        used_ms = [self._blocks[block].used_ms for block in self._unread]
        assert used_ms == sorted(used_ms)
