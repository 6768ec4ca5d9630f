"""One client connection: reads frames into a reused buffer, answers in request order, stops reading when it must.

A small transport of our own over a non-blocking socket: one `recv_into` and one `sendmsg` per loop turn, so
that batches go from the receive buffer to `pwritev` without a copy in Python. Lives on the event loop.

Invariant: once frames were taken from a receive buffer in the running turn (`Turn.number`), the buffer is neither read
into, nor compacted, nor given back before that turn has ended, in whatever order the loop calls: libuv polls again,
before anything else runs, as long as one poll fills its 1,024 events.
Limits: frame size, requests waiting for answers, unsent answer bytes, time to complete a frame, idle time.
Memory: a client that does not read its answers holds at most `_HIGH_WATER_BYTES` and one more answer, and only one
answer while all clients together exceed their limit. A fetch that would exceed that is parked, unread, until there is
room, and so is a question that is answered from memory. The first request in the queue is not parked once all earlier
answers are sent, because otherwise nothing would move.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from stratalog.event_loop.patience import has_unread, is_left
from stratalog.event_loop.tls_channel import TlsChannel
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.kafka.errors import MalformedFrame, OtherProtocol
from stratalog.kafka.frames import RequestHeader, decode_request_header, other_protocol
from stratalog.machines.quotas.usage import ClientUsage
from stratalog.machines.sasl.login import Login
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Principal
from stratalog.telemetry.logs import logger
from stratalog_node.buffers import Buffer
from stratalog_node.serve.connections.answer import Answer, Parkable
from stratalog_node.serve.connections.context import ConnectionInfo
from stratalog_node.serve.connections.outbox import Outbox
from stratalog_node.serve.connections.send_share import LITTLE_BYTES
from stratalog_node.serve.connections.serving import Serving
from stratalog_node.serve.connections.tls_outbox import TlsOutbox

log = logger(__name__)

_SIZE = struct.Struct(">i")
_SMALL_BUFFER = 16 << 10
"""What a connection gets without asking the byte budget; enough for those that send one small request at a time."""
_FIRST_BUFFER = 256 << 10
"""What one gets that has filled the small one before."""
_KEPT_MS = 1_000
"""How long a connection that nothing comes from keeps a large buffer."""
_MAX_WAITING_ANSWERS = 512
_MAX_WAITING_FETCHES = 8
"""Fetches of one connection that wait for data at a time; others begin when they are first in line, as all do in Kafka.
No client sends a fetch before the one before it was answered."""
_HIGH_WATER_BYTES = 4 << 20
_CROWDED_BYTES = 64 << 10
"""What requests of one connection that wait may hold once those of all hold what they may."""
_TURN_BYTES = 1 << 20
"""What one connection sends in a turn: a quarter of a millisecond, and others wait for it. Half of that
took a fifth more CPU per byte, in turns and wake-ups of the client."""


class ControlQueue:
    """Handles the control requests of one connection one after the other, as clients expect. Lives on the event loop.

    Calls `broken` when the request in progress will not be answered: the node stops, or a handler's own task was
    cancelled.
    """

    __slots__ = ("_broken", "_loop", "_task", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, broken: Callable[[str], None]) -> None:
        self._loop = loop
        self._broken = broken
        self._waiting: list[Callable[[], Awaitable[None]]] = []  # not a deque: an empty one takes 760 bytes
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Callable[[], Awaitable[None]]) -> None:
        self._waiting.append(work)
        if self._task is None:
            self._task = self._loop.create_task(self._work_off())

    def close(self) -> None:
        """The connection is gone."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                await self._waiting.pop(0)()
        except asyncio.CancelledError:
            self._broken("a request was cancelled")
            raise
        finally:
            self._task = None


class Connection:
    """State of one client's socket."""

    __slots__ = (
        "_answers",
        "_buffer",
        "_catching_up",
        "_control",
        "_deadline_ms",
        "_dispatch",
        "_end",
        "_first_bytes",
        "_granted",
        "_held_bytes",
        "_is_reading",
        "_is_writing",
        "_kept_bytes",
        "_loop",
        "_more",
        "_on_closed",
        "_out",
        "_parked",
        "_pause_reasons",
        "_paused_ms",
        "_serving",
        "_start",
        "_taken_in_turn",
        "_tls",
        "_turn",
        "fd",
        "in_send_list",
        "info",
        "is_closed",
        "last_active_ms",
        "login",
        "max_frame_bytes",
        "muted_until_ms",
        "rights",
        "slow_reads",
        "sock",
        "usage",
        "waiting_fetches",
    )

    def __init__(
        self,
        sock: socket.socket | TlsChannel,
        serving: Serving,
        info: ConnectionInfo,
        dispatch: Callable[[Connection, RequestHeader, memoryview], None],
        on_closed: Callable[[Connection, str, bool], None],
    ) -> None:
        """`dispatch` takes requests, whose bytes are good for a turn; `on_closed` hears why, and if it was a fault."""
        self.sock = sock
        self.fd = sock.fileno()
        self.info = info
        self.rights = serving.rights.of(info.principal, info.peer)
        self.login: Login | None = None
        """Of a listener with SASL."""
        self.usage: ClientUsage | None = None
        """What its last request counted against; None where its client has no quota."""
        self.muted_until_ms = 0
        """Not read until then, by the monotonic clock, because of a quota; 0: it is not muted."""
        self.max_frame_bytes = serving.limits.max_frame_bytes
        self.last_active_ms = serving.turn.steady_ms
        self.in_send_list = False
        self._control: ControlQueue | None = None
        self._serving = serving
        self._turn = serving.turn
        self._loop = serving.loop
        self._dispatch = dispatch
        self._on_closed = on_closed
        self._buffer: Buffer | None = None
        self._start = 0
        self._end = 0
        self._taken_in_turn = -1
        """The last turn in which frames were taken out of the buffer."""
        self._first_bytes = _SMALL_BUFFER
        self._granted = 0
        self._deadline_ms = 0
        self._answers: deque[Answer] = deque()
        self._tls = sock if isinstance(sock, TlsChannel) else None
        self._more: asyncio.Handle | None = None
        """Due: plain bytes of TLS that found no room when they were received."""
        self._out = Outbox() if self._tls is None else TlsOutbox(self._tls)
        self._held_bytes = 0
        """By answers that are not in `_out` yet, and by requests until they have one."""
        self._kept_bytes = 0
        """By the requests."""
        self.slow_reads = 0
        """Reads under way whose size is not known yet: no other begins behind them."""
        self.waiting_fetches = 0
        """Fetches that found too little and wait for more data."""
        self._parked: list[Parkable] = []
        self._pause_reasons = 0
        self._paused_ms = 0
        """Since when its own answers or its quota keep it from being read, 0 when they do not."""
        self._is_reading = False
        self._catching_up: asyncio.Handle | None = None
        """Under way from a pause to reading: never together with `_is_reading`."""
        self._is_writing = False
        self.is_closed = False

    # Life -----------------------------------------------------------------------------------------------------------
    def open(self) -> None:
        self._read_on()

    def overdue(self, now_ms: int, *, is_crowded: bool = False) -> str | None:
        """Why this connection should be closed by the reaper, if it should. `is_crowded`: others need its place."""
        limits = self._serving.limits
        idle_ms = now_ms - self.last_active_ms
        if self._deadline_ms and now_ms > self._deadline_ms and not self._pause_reasons:
            return f"a frame was not complete after {limits.read_timeout_ms} ms (connection.read.timeout.ms)"
        if self._paused_ms and (paused_ms := now_ms - self._paused_ms) > limits.read_timeout_ms:
            why = "its quota mutes it" if self.muted_until_ms else "its answers did not move"
            if self._granted and self._serving.budget.waiting_count:
                return f"unread requests hold {self._granted} bytes: {why}, for {paused_ms} ms"
            # What a client sent before it left is read when its pause ends. Kafka, too, ends it once it is idle.
            left_ms = limits.max_idle_ms if self.muted_until_ms and not is_crowded else limits.read_timeout_ms
            if idle_ms > left_ms > 0 and is_left(self.fd):
                return f"the client closed the connection, and {why}, for {idle_ms} ms"
        is_idle = not self._answers and not self.muted_until_ms
        if is_idle and idle_ms > limits.max_idle_ms > 0 and not (self._is_reading and has_unread(self.fd)):
            return f"idle for {idle_ms} ms (connections.max.idle.ms)"
        if self._out and idle_ms > limits.max_idle_ms > 0:
            return f"{self._out.size_bytes} answer bytes not taken for {idle_ms} ms"
        return None

    def close(self, reason: str, *, is_fault: bool = False) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self.fd)
        self._loop.remove_writer(self.fd)
        if self._more is not None:
            self._more.cancel()
        if self._control is not None:
            self._control.close()
            self._control = None  # which knows this connection
        self._out.abandon()
        for release in [answer.let_go() for answer in self._answers]:
            if release is not None:
                release()
        self._answers.clear()
        self._parked.clear()
        self._serving.budget.kept_bytes -= self._kept_bytes
        self._kept_bytes = 0
        # First out of the line, or its own release would serve it once more.
        self._serving.budget.abandon(self)
        self._return_grant()
        if self._buffer is not None:
            # Batches of this turn may still be views of it: let the tick use them first.
            self._turn.free_after_turn(self._buffer)
            self._buffer = None
        self.sock.close()
        self._on_closed(self, reason, is_fault)

    def identify(self, principal: Principal) -> None:
        """Its client has proven who it is."""
        self.info = replace(self.info, principal=principal)
        self.rights = self._serving.rights.of(principal, self.info.peer)

    def close_soon(self, reason: str) -> None:
        """After what is being sent now."""
        self._loop.call_soon(self.close, reason)

    # Reading --------------------------------------------------------------------------------------------------------
    def _on_readable(self) -> None:
        if self._taken_in_turn == self._turn.number:
            # The loop polled again within the turn and would keep polling: stop reading this connection until the next
            # turn.
            self._pause(_PAUSED_BY_TURN)
            self._turn.read_after_turn(self)
            return
        buffer = self._buffer
        if buffer is None:
            buffer = self._take_first_buffer()
        elif self._start == self._end:
            self._start = self._end = 0
        elif self._end == buffer.capacity or (self._start > 0 and buffer.capacity - self._end < 4096):
            if not self._make_room(buffer):
                return
            buffer = self._buffer or buffer
        try:
            count = self.sock.recv_into(buffer.view[self._end :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"read failed: {error.strerror}")
            return
        if count == 0:
            self.close("the client closed the connection")
            return
        self._end += count
        if self._end == buffer.capacity:
            self._first_bytes = _FIRST_BUFFER
        self._serving.stats.received_bytes += count
        self.last_active_ms = self._turn.steady_ms
        self._take_frames_or_close(buffer)
        if self._tls is not None and self._tls.has_more and self._is_reading:
            self._read_more_soon()

    def _read_more_soon(self) -> None:
        if self._more is None:
            self._more = self._loop.call_soon(self._read_more)

    def _read_more(self) -> None:
        self._more = None
        if self._is_reading and not self.is_closed and self._tls is not None and self._tls.has_more:
            self._on_readable()

    def _take_first_buffer(self) -> Buffer:
        size = self._first_bytes
        if size > _SMALL_BUFFER:
            if self._serving.budget.take_if_free(size):
                self._granted = size
            else:
                size = _SMALL_BUFFER
        self._start = self._end = 0
        self._buffer = self._serving.pool.lend(size)
        return self._buffer

    def _take_frames_or_close(self, buffer: Buffer) -> None:
        try:
            self._take_frames(buffer)
        except MalformedFrame as error:
            if isinstance(error, OtherProtocol):
                self._serving.stats.turned_away[TurnedAway.OTHER_PROTOCOL] += 1
            self.close(str(error), is_fault=True)
        except Exception as fault:  # one request's must not leave its connection waiting forever (F48)
            self.turn_failed(fault)

    def turn_failed(self, error: Exception) -> None:
        """Its requests or its answers met a fault."""
        log.error("request failed", peer=self.info.peer, error=str(error), exc_info=error)
        self.close(f"a fault in the node: {error}")

    def _take_frames(self, buffer: Buffer) -> None:
        view = buffer.view
        start = begin = self._start
        end = self._end
        turn, limits = self._turn, self._serving.limits
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(view, start)
            if size < 8 or size > self.max_frame_bytes:
                limit = "socket.request.max.bytes"
                if self.max_frame_bytes < limits.max_frame_bytes:
                    limit = "sasl.server.max.receive.size, before a login"
                if (other := other_protocol(size)) is not None:
                    raise OtherProtocol(other)
                raise MalformedFrame(
                    f"frame of {size} bytes; from 8 to {self.max_frame_bytes} are allowed ({limit}): "
                    "close the connection"
                )
            frame_end = start + 4 + size
            if frame_end > end:
                break
            if self._pause_reasons:
                # What came with the last read waits in the buffer until the line of answers is shorter.
                self._start = start
                return
            self._start = frame_end
            self._taken_in_turn = turn.number
            frame = view[start + 4 : frame_end]
            header = decode_request_header(frame)
            self._dispatch(self, header, frame)
            if self.is_closed:
                return
            start = frame_end
            if len(self._answers) > _MAX_WAITING_ANSWERS:
                self._pause(_PAUSED_BY_ANSWERS)
            if self._out.size_bytes + self._held_bytes > _HIGH_WATER_BYTES or self._keeps_too_much:
                self._pause(_PAUSED_BY_WRITES)
        self._start = start
        if start == end:
            self._deadline_ms = 0
            turn.free_when_idle(self)
        elif start != begin or not self._deadline_ms:  # each frame has its own time
            self._deadline_ms = turn.steady_ms + limits.read_timeout_ms

    def _make_room(self, buffer: Buffer) -> bool:
        """Move the unfinished frame to the front, or to a larger buffer that it is allowed to have."""
        kept = self._end - self._start
        needed = 4 + int(_SIZE.unpack_from(buffer.view, self._start)[0]) if kept >= 4 else 0
        if needed <= buffer.capacity or (kept < buffer.capacity and self._start > 0):
            buffer.view[0:kept] = buffer.view[self._start : self._end]  # `data` would be set from a fresh copy
            self._start, self._end = 0, kept
            return True
        # Grow with what really came, at most fourfold: a length alone gets no memory.
        capacity = min(self._serving.pool.capacity_for(needed), buffer.capacity * 4)
        extra = capacity - self._granted
        if not self._serving.budget.reserve(self, extra, lambda: self._grow(capacity)):
            self._pause(_PAUSED_BY_BUDGET)
            return False
        self._granted += extra
        self._move_to(capacity)
        return True

    def _grow(self, capacity: int) -> None:
        if self.is_closed:
            self._serving.budget.release(self, capacity - self._granted)
            return
        self._granted = capacity
        self._move_to(capacity)
        self._resume(_PAUSED_BY_BUDGET)

    def _move_to(self, capacity: int) -> None:
        old = self._buffer
        assert old is not None
        new = self._serving.pool.lend(capacity)
        kept = self._end - self._start
        new.view[:kept] = old.view[self._start : self._end]
        self._turn.free_after_turn(old)
        self._buffer, self._start, self._end = new, 0, kept

    def _return_grant(self) -> None:
        if self._granted:
            granted, self._granted = self._granted, 0
            self._serving.budget.release(self, granted)

    def give_back_buffer(self) -> None:
        """Called at the end of a turn, whose batches are used up: a connection without unread bytes holds no memory.

        A large buffer stays while large frames keep coming, because growing again costs copies: but only if the
        client's requests are answered within the turn, and while no connection waits for room. Answers that wait, for a
        flush or for replicas, wait without it.
        """
        buffer = self._buffer
        if buffer is None or self.is_closed:
            return
        if self._start != self._end:
            self._shrink(buffer)
            return
        serving = self._serving
        if (
            buffer.capacity > _FIRST_BUFFER
            and not self._answers
            and not serving.budget.waiting_count
            and self._turn.steady_ms - self.last_active_ms <= _KEPT_MS
        ):
            return
        serving.pool.give_back(buffer)
        self._buffer = None
        self._start = self._end = 0
        self._return_grant()

    def _shrink(self, buffer: Buffer) -> None:
        """Keep unread bytes in no more memory than they need: a client that continues slowly must not hold what its
        last large frame took."""
        serving = self._serving
        kept = self._end - self._start
        capacity = serving.pool.capacity_for(kept)
        if 4 * capacity > buffer.capacity or self._pause_reasons & _PAUSED_BY_BUDGET:
            return
        smaller = serving.pool.lend(capacity)
        smaller.view[:kept] = buffer.view[self._start : self._end]
        serving.pool.give_back(buffer)
        self._buffer, self._start, self._end = smaller, 0, kept
        needed = capacity if capacity > _SMALL_BUFFER else 0
        if self._granted > needed:
            unneeded, self._granted = self._granted - needed, needed
            serving.budget.release(self, unneeded)

    def _pause(self, reason: int) -> None:
        self._pause_reasons |= reason
        if reason & _PAUSED_BY_ITSELF and not self._paused_ms:
            self._paused_ms = self._turn.steady_ms
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self.fd)
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None

    def _resume(self, reason: int) -> None:
        self._pause_reasons &= ~reason
        if not self._pause_reasons & _PAUSED_BY_ITSELF:
            self._paused_ms = 0
        if self._pause_reasons or self.is_closed or self._is_reading or self._catching_up is not None:
            return
        if self._deadline_ms and reason != _PAUSED_BY_TURN:
            # The client is not to blame for the time it was not read.
            self._deadline_ms = self._turn.steady_ms + self._serving.limits.read_timeout_ms
        if self._buffer is not None and self._end > self._start:
            self._catching_up = self._loop.call_soon(self._take_left_over)
        else:
            self._read_on()

    def mute(self, until_ms: int) -> None:
        """Do not read until then (`MutedConnections`)."""
        self.muted_until_ms = until_ms
        self._pause(_PAUSED_BY_QUOTA)

    def unmute(self) -> None:
        self.muted_until_ms = 0
        self.last_active_ms = self._turn.steady_ms  # idle from now on
        self._resume(_PAUSED_BY_QUOTA)

    @property
    def throttle_ms(self) -> int:
        """How long its client has to wait, as answers say."""
        return max(0, self.muted_until_ms - self._turn.monotonic_ms()) if self.muted_until_ms else 0

    def turn_ended(self) -> None:
        """Called after a turn within which there was more to read."""
        self._resume(_PAUSED_BY_TURN)

    def _take_left_over(self) -> None:
        """The frames that were read before the pause. The socket is read again only after the turn that uses them."""
        self._catching_up = None
        if self._buffer is None or self.is_closed:
            return
        self._take_frames_or_close(self._buffer)
        if not self._pause_reasons and not self.is_closed:
            self._turn.request()
            self._catching_up = self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._catching_up = None
        if not self.is_closed:
            self._is_reading = True
            self._loop.add_reader(self.fd, self._on_readable)
            if self._tls is not None and self._tls.has_more:
                self._read_more_soon()

    def run_control(self, work: Callable[[], Awaitable[None]]) -> None:
        """Work off one more control request, after those before it."""
        self._control = self._control or ControlQueue(self._loop, self.close)
        self._control.add(work)

    # Answering ------------------------------------------------------------------------------------------------------
    def expect_answer(self, answer: Answer) -> None:
        """Take the next place in the line of answers."""
        self._answers.append(answer)

    def is_first(self, answer: Answer) -> bool:
        return bool(self._answers) and self._answers[0] is answer

    def has_room_for(self, answer: Answer, *, is_waiting: bool) -> bool:
        """Whether this answer may read its data, or wait for some, now: always true of the first in line once all
        before it is sent."""
        if self.is_next(answer):
            return True
        return (
            self.slow_reads == 0
            and (is_waiting or self.waiting_fetches < _MAX_WAITING_FETCHES)
            and self.may_hold_more
            and not self._serving.are_answers_full()
        )

    def is_next(self, answer: Answer) -> bool:
        """Whether all before it is sent."""
        return not self._out and self.is_first(answer)

    @property
    def may_hold_more(self) -> bool:
        """Whether its client has left less than it may of what was made for it."""
        return self._out.size_bytes + self._held_bytes < _HIGH_WATER_BYTES

    def park(self, answer: Parkable) -> None:
        """There was no room: `answer.unpark()` is called once there may be."""
        self._parked.append(answer)

    def hold(self, answer: Answer, size_bytes: int) -> None:
        """This answer holds `size_bytes` from now on, until it is sent."""
        if answer.kept_bytes:
            self._count_kept(answer, 0)
        self._held_bytes += size_bytes - answer.held_bytes
        answer.held_bytes = size_bytes

    def keep(self, answer: Answer, size_bytes: int) -> None:
        """This answer's request waits in `size_bytes`, until `hold` reports the answer's size."""
        self.hold(answer, size_bytes)
        self._count_kept(answer, size_bytes)

    def _count_kept(self, answer: Answer, size_bytes: int) -> None:
        more_bytes = size_bytes - answer.kept_bytes
        answer.kept_bytes = size_bytes
        self._kept_bytes += more_bytes
        self._serving.budget.kept_bytes += more_bytes

    @property
    def _keeps_too_much(self) -> bool:
        return self._kept_bytes > _CROWDED_BYTES and self._serving.budget.is_crowded

    def wake_parked(self) -> None:
        """Room was made: resume parked requests, the first in the queue before all others."""
        while self._parked and not self.is_closed:
            first = self._answers[0] if self._answers else None
            place = next((place for place, parked in enumerate(self._parked) if parked is first), 0)
            woken = self._parked[place]
            if not woken.has_room():
                return
            del self._parked[place]
            if woken.unpark():
                return

    def answer_ready(self) -> None:
        """Some answer in the line got its buffers: send, at the end of this turn, all that are ready at the head."""
        if not self.in_send_list and not self.is_closed:
            self.in_send_list = True
            self._turn.send(self)

    def send_ready(self) -> None:
        self.in_send_list = False
        if self.is_closed:
            return
        answers = self._answers
        while answers and (buffers := answers[0].buffers) is not None:
            answer = answers.popleft()
            self._held_bytes -= answer.held_bytes
            release = answer.let_go()
            if not buffers:
                if release is not None:
                    release()
                continue
            self._out.add(buffers, release)
        if answers and (begin := answers[0].on_first) is not None:
            begin()
        if self._out and not self._is_writing:
            self._send()
        if self._pause_reasons & _PAUSED_BY_ANSWERS and len(answers) <= _MAX_WAITING_ANSWERS // 2:
            self._resume(_PAUSED_BY_ANSWERS)
        self.wake_parked()

    def _send(self) -> None:
        out, serving = self._out, self._serving
        if serving.sends.is_used_up and out.size_bytes > LITTLE_BYTES:
            self._send_next_turn()
            return
        try:
            sent = out.send(self.sock, _TURN_BYTES)
            serving.stats.sent_bytes += sent
            serving.sends.use(sent)
        except (OSError, StratalogError) as error:
            self.close(f"write failed: {error}")
            return
        if out:
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self.fd, self._on_writable)
            if self._out.size_bytes + self._held_bytes > _HIGH_WATER_BYTES:
                self._pause(_PAUSED_BY_WRITES)
        elif self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self.fd)
        if (
            self._pause_reasons & _PAUSED_BY_WRITES
            and self._out.size_bytes + self._held_bytes <= _HIGH_WATER_BYTES // 2
            and not self._keeps_too_much
        ):
            self._resume(_PAUSED_BY_WRITES)

    def _send_next_turn(self) -> None:
        """All connections together have sent enough in this turn. The client is not to blame for that."""
        self.last_active_ms = self._turn.steady_ms
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self.fd)
        if self._out.size_bytes + self._held_bytes > _HIGH_WATER_BYTES:
            self._pause(_PAUSED_BY_WRITES)
        self.answer_ready()

    def _on_writable(self) -> None:
        self.last_active_ms = self._turn.steady_ms
        self._send()
        self.wake_parked()


_PAUSED_BY_BUDGET, _PAUSED_BY_ANSWERS, _PAUSED_BY_WRITES, _PAUSED_BY_TURN, _PAUSED_BY_QUOTA = 1, 2, 4, 8, 16
_PAUSED_BY_ITSELF = _PAUSED_BY_ANSWERS | _PAUSED_BY_WRITES | _PAUSED_BY_QUOTA
