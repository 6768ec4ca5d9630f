"""TLS handshakes of new connections: their costly steps run in a thread, so that no client waits for another's.

A handshake costs its port up to a millisecond of CPU, which OpenSSL spends without the interpreter's lock. Those that
have received something take their next steps together, address by address in turn: how many others one address has
begun delays no other address. Limits: the number under way, the bytes and the time of each, and what a hello may ask
for (`tls_hello.py`). Only the time counts in which this port waits for the client, not that in which it has a step to
take itself, or bytes to read. Where there are too many, the oldest one of the address with the most ends, so that one
address cannot keep the others out. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from stratalog.event_loop.patience import has_unread
from stratalog.event_loop.tls_channel import TlsChannel
from stratalog.event_loop.tls_hello import HelloRefused
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.model.addresses import source_of

MOST_AT_ONCE: Final = 2_048
_MOST_BYTES: Final = 40 << 10
"""A hello of 8 KiB and 32 KiB of certificates, as Java takes. OpenSSL takes 100 KiB, and keeps 13 bytes for each of
them as long as the connection lasts."""
_MOST_CERTIFICATES: Final = 10
"""That a client shows, its own among them, as in Java: each that it shows takes 4 KiB."""
_RECEIVED_AT_ONCE: Final = 8 << 10
"""What comes behind the last step waits in OpenSSL, and is decrypted at once."""
_STEPS_AT_ONCE: Final = 16
TIMEOUT_MS: Final = 10_000
GRACE_MS: Final = 1_000
"""A handshake has it before it makes room for another connection."""
_CANDIDATES: Final = 16
"""Of those from which one is to end, the oldest ones: as many as a port may wait for in vain."""


class Shaking(Protocol):
    """A connection whose handshake is under way. Its end takes its descriptor off the loop, closes the channel and
    calls `TlsHandshakes.forget`."""

    @property
    def is_closed(self) -> bool: ...

    def close(self, reason: str, *, is_fault: bool = False) -> None: ...

    def turn_failed(self, error: Exception) -> None:
        """Close it: a fault of this process met it."""
        ...


class HandshakeStats(Protocol):
    handshakes: int
    """Under way."""
    handshakes_failed: int
    turned_away: dict[TurnedAway, int]


@dataclass(frozen=True, slots=True)
class PortWords:
    """What the log tells a person about this port's clients."""

    no_tls: str
    """What to do about a client that speaks no TLS."""
    client_auth: str
    """The setting by which the port asks for certificates."""


_Connection = TypeVar("_Connection", bound=Shaking)


class _Handshake(Generic[_Connection]):
    __slots__ = (
        "_asked_ms",
        "_earlier_ms",
        "_flight_ms",
        "_has_come",
        "address",
        "channel",
        "connection",
        "received_bytes",
    )

    def __init__(self, connection: _Connection, channel: TlsChannel, address: str) -> None:
        self.connection = connection
        self.channel = channel
        self.address = address
        self.received_bytes = 0
        self._asked_ms: int | None = None
        """Since when its client is waited for; None: the next step is the port's."""
        self._flight_ms = 0
        """For how long it was, since the port has sent something last; without the present wait."""
        self._earlier_ms = 0
        self._has_come = False
        """A part of what is waited for."""

    def wait(self, now_ms: int, *, has_sent: bool = False) -> None:
        """From now on the client has something to send. `has_sent`: the port has done its part."""
        if has_sent:
            self._earlier_ms, self._flight_ms = self._earlier_ms + self._flight_ms, 0
        self._asked_ms, self._has_come = now_ms, False

    def wait_for_reader(self, now_ms: int) -> None:
        """From now on the client has something to read, before it is read itself."""
        self._asked_ms, self._has_come = now_ms, True

    def received(self, count: int) -> None:
        self.received_bytes += count
        self._has_come = True

    def stop_waiting(self, now_ms: int) -> None:
        """The next step is the port's."""
        self._flight_ms = self.flight_ms(now_ms)
        self._asked_ms = None

    def flight_ms(self, now_ms: int) -> int:
        """How long the port has waited for its client, since it has sent something last."""
        return self._flight_ms + (0 if self._asked_ms is None else now_ms - self._asked_ms)

    def waited_ms(self, now_ms: int) -> int:
        """In the whole handshake."""
        return self._earlier_ms + self.flight_ms(now_ms)

    @property
    def is_client_late(self) -> bool:
        """It is the client that has not done its part. One that sends bit by bit is late, whatever lies unread."""
        return self._asked_ms is not None and (self._has_come or not has_unread(self.channel.fileno()))


class _Ready(Generic[_Connection]):
    """Those that take their next step, oldest first within an address."""

    def __init__(self) -> None:
        self._of: dict[str, deque[_Handshake[_Connection]]] = {}
        """The address whose turn is next comes first. None is empty."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, handshake: _Handshake[_Connection]) -> None:
        self._of.setdefault(handshake.address, deque()).append(handshake)

    def remove_oldest(self, at_most: int) -> list[_Handshake[_Connection]]:
        """Leaves out those that are closed."""
        taken: list[_Handshake[_Connection]] = []
        while self._of and len(taken) < at_most:
            address = next(iter(self._of))
            waiting = self._of.pop(address)
            handshake = waiting.popleft()
            if waiting:
                self._of[address] = waiting
            if not handshake.connection.is_closed:
                taken.append(handshake)
        return taken


class TlsHandshakes(Generic[_Connection]):
    """Of one port. Invariant: each one under way waits for its socket, waits in `_ready`, or is in the thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stats: HandshakeStats,
        on_open: Callable[[_Connection, TlsChannel], None],
        words: PortWords,
        now_ms: Callable[[], int],
        *,
        most_at_once: int = MOST_AT_ONCE,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """`on_open` gets each connection whose handshake is done; `now_ms` is monotonic."""
        self._now_ms = now_ms
        self._words = words
        self._most_at_once = most_at_once
        self._timeout_ms = timeout_ms
        self._loop = loop
        self._stats = stats
        self._on_open = on_open
        self._under_way: dict[_Connection, _Handshake[_Connection]] = {}
        """Oldest first."""
        self._addresses: dict[str, int] = {}
        self._ready: _Ready[_Connection] = _Ready()
        self._worker: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tls")

    def __len__(self) -> int:
        """Those under way."""
        return len(self._under_way)

    def begin(self, connection: _Connection, channel: TlsChannel, address: str) -> None:
        if len(self._under_way) >= self._most_at_once:
            oldest = self._late_of_most(-1) or self._oldest_of_most(1)[0]
            words = f"{self._most_at_once} TLS handshakes are under way, most of them from {oldest.address}"
            self._fail(oldest, words, why=TurnedAway.HANDSHAKES)
        address = source_of(address)
        handshake = _Handshake(connection, channel, address)
        handshake.wait(self._now_ms())
        self._under_way[connection] = handshake
        self._addresses[address] = self._addresses.get(address, 0) + 1
        self._stats.handshakes = len(self._under_way)
        self._loop.add_reader(channel.fileno(), self._on_readable, handshake)

    def forget(self, connection: _Connection) -> None:
        """The connection is closed."""
        handshake = self._under_way.pop(connection, None)
        if handshake is None:
            return
        left = self._addresses[handshake.address] - 1
        if left:
            self._addresses[handshake.address] = left
        else:
            del self._addresses[handshake.address]
        self._stats.handshakes = len(self._under_way)

    def make_room(self) -> bool:
        """End one for a connection that finds no place. False: each came a moment ago, or its turn has not come."""
        late = self._late_of_most(GRACE_MS) if self._under_way else None
        if late is None:
            return False
        words = f"the client's part of the TLS handshake took {GRACE_MS} ms, and others need its place"
        self._fail(late, words, why=TurnedAway.MADE_ROOM)
        return True

    def end_overdue(self) -> None:
        now_ms = self._now_ms()
        for handshake in list(self._under_way.values()):
            if handshake.waited_ms(now_ms) > self._timeout_ms and handshake.is_client_late:
                self._fail(handshake, f"the client's part of the TLS handshake took {self._timeout_ms} ms")

    def waited_ms(self, connection: _Connection) -> int | None:
        """For how long the client's next step is waited for; None: the next step is the port's."""
        handshake = self._under_way.get(connection)
        return None if handshake is None or not handshake.is_client_late else handshake.flight_ms(self._now_ms())

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._executor.shutdown(wait=False)

    def _on_readable(self, handshake: _Handshake[_Connection]) -> None:
        try:
            count = handshake.channel.receive(_RECEIVED_AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(handshake, f"read failed: {error.strerror}")
            return
        except HelloRefused as refused:
            handshake.channel.refuse()
            self._fail(handshake, f"TLS handshake refused: {refused}", is_fault=True)
            return
        if not count:
            self._fail(handshake, "the client closed the connection during the TLS handshake")
            return
        handshake.received(count)
        if handshake.received_bytes > _MOST_BYTES:
            self._fail(handshake, f"more than {_MOST_BYTES} bytes came during the TLS handshake")
            return
        if not handshake.channel.has_step:
            return
        self._loop.remove_reader(handshake.channel.fileno())
        handshake.stop_waiting(self._now_ms())
        self._ready.add(handshake)
        if self._worker is None:
            self._worker = self._loop.create_task(self._work_off(), name="tls-handshakes")

    async def _work_off(self) -> None:
        try:
            while self._ready:
                steps = self._ready.remove_oldest(_STEPS_AT_ONCE)
                for one in steps:
                    one.channel.is_in_thread = True
                outcomes = await self._loop.run_in_executor(self._executor, _take_steps, [one.channel for one in steps])
                for one, outcome in zip(steps, outcomes, strict=True):
                    one.channel.is_in_thread = False
                    try:
                        self._took_step(one, outcome)
                    except Exception as fault:  # one connection's must not end those behind it
                        one.connection.turn_failed(fault)
        finally:
            self._worker = None

    def _took_step(self, handshake: _Handshake[_Connection], outcome: str | None) -> None:
        if handshake.connection.is_closed:
            return
        if outcome is not None and outcome != _UNFINISHED:
            meaning = _MEANINGS.get(outcome, "")
            why = TurnedAway.NO_TLS if meaning == _NO_TLS else TurnedAway.HANDSHAKE
            words = meaning.format(no_tls=self._words.no_tls, client_auth=self._words.client_auth)
            self._fail(handshake, f"TLS handshake failed: {outcome}{words}", is_fault=bool(meaning), why=why)
            return
        self._flush(handshake, is_done=outcome is None)

    def _flush(self, handshake: _Handshake[_Connection], *, is_done: bool) -> None:
        """Send this side's part, then wait for the other's, or open the connection."""
        channel = handshake.channel
        has_sent = channel.unsent_bytes > 0
        try:
            while channel.unsent_bytes:
                channel.flush()
        except (BlockingIOError, InterruptedError):
            handshake.wait_for_reader(self._now_ms())
            self._loop.add_writer(channel.fileno(), self._on_writable, handshake, is_done)
            return
        except OSError as error:
            self._fail(handshake, f"write failed: {error.strerror}")
            return
        if not is_done:
            handshake.wait(self._now_ms(), has_sent=has_sent)
            self._loop.add_reader(channel.fileno(), self._on_readable, handshake)
            return
        self.forget(handshake.connection)
        channel.handshake_done()
        self._on_open(handshake.connection, channel)

    def _on_writable(self, handshake: _Handshake[_Connection], is_done: bool) -> None:
        self._loop.remove_writer(handshake.channel.fileno())
        handshake.stop_waiting(self._now_ms())
        if not handshake.connection.is_closed:
            self._flush(handshake, is_done=is_done)

    def _fail(
        self,
        handshake: _Handshake[_Connection],
        reason: str,
        *,
        is_fault: bool = False,
        why: TurnedAway = TurnedAway.HANDSHAKE,
    ) -> None:
        self._stats.handshakes_failed += 1
        self._stats.turned_away[why] += 1
        handshake.connection.close(reason, is_fault=is_fault)

    def _late_of_most(self, grace_ms: int) -> _Handshake[_Connection] | None:
        """One of the address with the most whose client has kept the port waiting for longer than that."""
        now_ms = self._now_ms()
        oldest = self._oldest_of_most(_CANDIDATES)
        return next((one for one in oldest if one.flight_ms(now_ms) > grace_ms and one.is_client_late), None)

    def _oldest_of_most(self, at_most: int) -> list[_Handshake[_Connection]]:
        most = max(self._addresses.values())
        return list(islice((one for one in self._under_way.values() if self._addresses[one.address] == most), at_most))


_UNFINISHED: Final = ""
_NO_TLS: Final = " (the client speaks no TLS: {no_tls})"
_NOT_TRUSTED: Final = " (the client does not trust this port's certificate: give it the ca.crt of who issued that)"
_MEANINGS: Final = {
    "wrong version number": _NO_TLS,
    "http request": _NO_TLS,
    "record layer failure": _NO_TLS,
    "packet length too long": _NO_TLS,
    "tlsv1 alert unknown ca": _NOT_TRUSTED,
    "sslv3 alert bad certificate": _NOT_TRUSTED,
    "sslv3 alert certificate unknown": _NOT_TRUSTED,
    "ssl/tls alert bad certificate": _NOT_TRUSTED,
    "ssl/tls alert certificate unknown": _NOT_TRUSTED,
    "sslv3 alert certificate expired": " (the client says that this port's certificate has expired: renew it)",
    "unsupported protocol": " (the client speaks other versions of TLS than ssl.enabled.protocols)",
    "no shared cipher": " (the client and ssl.cipher.suites have none in common)",
    "peer did not return a certificate": " ({client_auth}, and the client shows no certificate)",
    "certificate verify failed": " (no authority that is trusted here has issued the client's certificate)",
}
"""OpenSSL's reason -> what it means for the person who reads the log: a setting, or a certificate."""


def _take_steps(channels: list[TlsChannel]) -> list[str | None]:
    """For each: why it failed, None if it is done, `_UNFINISHED` if it needs more of the client. Runs in the thread."""
    outcomes: list[str | None] = []
    for channel in channels:
        try:
            channel.tls.do_handshake()
            outcomes.append(_why_not(channel.tls))
        except ssl.SSLWantReadError:
            outcomes.append(_UNFINISHED)
        except Exception as error:  # of one client, whatever it is
            reason = getattr(error, "reason", None) or str(error)
            outcomes.append(str(reason).replace("_", " ").lower() or "unknown")
    return outcomes


def _why_not(tls: Any) -> str | None:
    """What is wrong with a handshake that OpenSSL has finished."""
    shown = tls._sslobj.get_unverified_chain()  # with Python 3.13 `SSLObject` has it, too
    if not shown or len(shown) <= _MOST_CERTIFICATES:
        return None
    return f"the client shows {len(shown)} certificates, more than {_MOST_CERTIFICATES}"
