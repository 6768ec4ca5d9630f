"""One turn of the node's event loop: writes what was read, notifies waiters, sends answers, frees memory.

Work for the end of the running turn is queued here; the first entry schedules one run with the loop. The queues run in
this order, each as a whole:

1. shards flush the batches that were queued for them, one write each;
2. shards that moved notify their waiters, once each, however often they moved;
3. those that wait for shards check again (`after_shards`: fetches, timers of unanswered requests);
4. answers are sent;
5. buffers whose views only this turn's flush used go back, and those of connections without unread bytes;
6. connections that had more to read continue.

One item's failure does not stop the others (F48): the item itself gets the error. Knows no client and no protocol: a
node turns for followers and groups as well. Lives on the event loop; nothing here blocks.
Cost: lists and one call an item; no work for empty queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter
from stratalog_node.buffers import Buffer, BufferPool

log = logger(__name__)


class TurningShard(Protocol):
    """What a turn does with a shard."""

    def flush_pending(self, now_ms: int) -> None:
        """Write and answer all that was put in line."""
        ...

    def tell_moved(self) -> None:
        """Its readable end moved in this turn."""
        ...

    def turn_failed(self, error: Exception) -> None:
        """One of these raised. Never raises itself."""
        ...


class Sender(Protocol):
    """A connection with answers to send."""

    def send_ready(self) -> None: ...

    def turn_failed(self, error: Exception) -> None:
        """`send_ready` raised. Never raises itself."""
        ...


class BufferHolder(Protocol):
    """A connection with a receive buffer."""

    def give_back_buffer(self) -> None:
        """The turn has used what was read; memory that is no longer needed may go back."""
        ...

    def turn_ended(self) -> None:
        """Read on."""
        ...


@dataclass(slots=True)
class TurnStats:
    turns: int = counter("Turns of the event loop that had work.")


class Turn:
    """The node's one turn. Make it on the event loop that it belongs to."""

    def __init__(self, pool: BufferPool, clock_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self.stats = TurnStats()
        self.number = 0
        """The running turn's. It ends when every batch that was read in it is written, copied or refused."""
        self.now_ms = 0
        """Wall clock, as of this turn."""
        self.steady_ms = 0
        """Monotonic: patience must not depend on a clock that is set."""
        self.after_shards: list[Callable[[], None]] = []
        """Called once in each turn, in this order. They must not raise."""
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._clock_ms = clock_ms
        self.monotonic_ms = monotonic_ms
        """Now: between turns `steady_ms` may be long past."""
        self._is_due = False
        """A run is to come, or under way, that works off what is put in line now."""
        self._is_before_sends = False
        self._is_stopped = False
        """Closed, or held."""
        self._is_held = False
        self._dirty: list[TurningShard] = []
        self._dirty_next: list[TurningShard] = []
        self._moved: dict[TurningShard, None] = {}
        self._senders: list[Sender] = []
        self._used: list[Buffer] = []
        self._idle: list[BufferHolder] = []
        self._unread: list[BufferHolder] = []
        self.read_clocks()

    # What is put in line --------------------------------------------------------------------------------------------
    def request(self) -> None:
        """Turn soon. All that is put in line asks for it."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.run)

    def flush(self, shard: TurningShard) -> None:
        """It has something in line; put it here once a turn."""
        self._dirty.append(shard)
        self.request()

    def flush_next(self, shard: TurningShard) -> None:
        """It puts its batches off to the next turn. Requires: none of their bytes lie in receive buffers."""
        self._dirty_next.append(shard)

    def tell_moved(self, shard: TurningShard) -> None:
        """Its readable end moved."""
        self._moved[shard] = None
        self.request()

    def send(self, sender: Sender) -> None:
        """It has answers that are ready; put it here once a turn."""
        self._senders.append(sender)
        if not self._is_before_sends:
            self.request()

    def free_after_turn(self, buffer: Buffer) -> None:
        """A buffer whose views only this turn's flush still uses."""
        self._used.append(buffer)
        self.request()

    def free_when_idle(self, holder: BufferHolder) -> None:
        """Nothing is unread in its buffer: it may go back once this turn has used it. Asks for no turn of its own."""
        self._idle.append(holder)

    def read_after_turn(self, holder: BufferHolder) -> None:
        """It has more to read, and batches of the running turn in its buffer."""
        self._unread.append(holder)
        self.request()

    # The turn -------------------------------------------------------------------------------------------------------
    def read_clocks(self) -> None:
        """Each turn does; a node without work has others do it for it."""
        self.now_ms = self._clock_ms()
        self.steady_ms = self.monotonic_ms()

    def run(self) -> None:
        if self._is_stopped:
            return
        self._is_due = False
        self.stats.turns += 1
        self.now_ms = self._clock_ms()
        self.steady_ms = self.monotonic_ms()
        self._is_before_sends = True
        if self._dirty or self._moved:
            self._is_due = True  # what they put in line is worked off by this very run
            try:
                self._turn_shards()
            finally:
                self._is_due = False
        try:
            if self._dirty_next or self._dirty:
                self._dirty += self._dirty_next
                self._dirty_next.clear()
                self.request()
            self.number += 1
            for look in self.after_shards:
                look()
        finally:
            self._is_before_sends = False
        if self._senders:
            senders, self._senders = self._senders, []
            for sender in senders:
                try:
                    sender.send_ready()
                except Exception as error:
                    sender.turn_failed(error)
        if self._used:
            for buffer in self._used:
                self._pool.give_back(buffer)
            self._used.clear()
        if self._idle:
            for holder in self._idle:
                holder.give_back_buffer()
            self._idle.clear()
        if self._unread:
            unread, self._unread = self._unread, []
            for holder in unread:
                holder.turn_ended()

    def _turn_shards(self) -> None:
        now_ms = self.now_ms
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for shard in dirty:
                try:
                    shard.flush_pending(now_ms)
                except Exception as error:
                    shard.turn_failed(error)
        while self._moved:
            moved, self._moved = self._moved, {}
            for shard in moved:
                try:
                    shard.tell_moved()
                except Exception as error:
                    shard.turn_failed(error)

    def hold(self) -> None:
        """Until `let_go` nothing is written by a leader and nothing is answered: what all that is acknowledged knows of
        lies below the ends of now. For a moment only: clients wait."""
        assert not self._is_stopped, "held already, or closed"
        self._is_stopped = self._is_held = self._is_due = True

    def let_go(self) -> None:
        """Go on with what was put in line meanwhile."""
        if self._is_held:
            self._is_stopped = self._is_held = self._is_due = False
            self.request()

    def close(self) -> None:
        """No more turns: what is in line stays there."""
        self._is_stopped = self._is_due = True
        self._is_held = False
