"""What clients use is counted against their quotas, and who uses too much is muted: not read for a while (KIP-219).

Where no quota of users and client ids is set a request costs one test of an attribute (`is_on`). Else a connection
keeps what it is counted against (`Connection.usage`) until a quota, its client id or its user changes. Nothing is
counted of nodes that replicate.
Lives on the event loop. Cost: 4 us for each thing that is limited.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from stratalog.kafka.frames import RequestHeader
from stratalog.machines.quotas.rates import Windows
from stratalog.machines.quotas.table import QuotaTable
from stratalog.machines.quotas.usage import ClientUsage, UsageOfClients
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.turn import Turn

_SPARE: Final = 64
_PERCENT_PER_NS = 100 / 1e9
"""Of a second."""
_LONGEST: Final = 512
"""Characters of a name that count: no entity has a longer one, and what is kept of clients that are gone is bounded."""


@dataclass(slots=True)
class QuotaStats:
    late_produce: int = counter("Produce requests whose clients were muted (producer_byte_rate).")
    late_fetches: int = counter("Fetch requests whose clients were muted, nearly all of them answered with nothing.")
    late_requests: int = counter("Requests whose clients were muted for the time they took (request_percentage).")
    late_mutations: int = counter(
        "Requests to create or delete topics or partitions that were refused, or whose clients were muted "
        "(controller_mutation_rate)."
    )
    wait_ms: int = counter("Time for which connections were muted, in sum.")
    muted: int = gauge("Connections that are muted now.")


class MutedConnections:
    """Connections that are not read until a time. One timer for all of them. One that closes is forgotten at once,
    however long it had to wait.

    Invariant: the timer is due when the first of them is, or earlier. Cost: the logarithm of their number for each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic_ms: Callable[[], int], stats: QuotaStats) -> None:
        self.stats = stats
        self._loop = loop
        self._monotonic_ms = monotonic_ms
        self._until: dict[Connection, int] = {}
        self._line: list[tuple[int, int, Connection]] = []
        """By time; with entries of connections that are gone or wait longer by now."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def mute(self, connection: Connection, wait_ms: int) -> None:
        """For so long, unless it is muted for longer already."""
        now_ms = self._monotonic_ms()
        until_ms = now_ms + wait_ms
        if connection.is_closed or until_ms <= connection.muted_until_ms:
            return
        self.stats.wait_ms += until_ms - max(now_ms, connection.muted_until_ms)
        connection.mute(until_ms)
        self._until[connection] = until_ms
        self.stats.muted = len(self._until)
        if len(self._line) >= 2 * len(self._until) + _SPARE:
            self._line = [(until, next(self._numbers), one) for one, until in self._until.items()]
            heapq.heapify(self._line)
        else:
            heapq.heappush(self._line, (until_ms, next(self._numbers), connection))
        self._set_timer()

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        if self._until.pop(connection, None) is not None:
            self.stats.muted = len(self._until)
            if not self._until:
                self._line.clear()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        first_ms = self._line[0][0]
        if self._timer is not None:
            if self._timer_ms <= first_ms:
                return
            self._timer.cancel()
        self._timer_ms = first_ms
        wait_ms = max(0, first_ms - self._monotonic_ms())
        self._timer = self._loop.call_later(wait_ms / 1_000, self._let_go)

    def _let_go(self) -> None:
        self._timer = None
        now_ms = self._monotonic_ms()
        while self._line and self._line[0][0] <= now_ms:
            until_ms, _, connection = heapq.heappop(self._line)
            if self._until.get(connection) == until_ms:
                del self._until[connection]
                connection.unmute()
        self.stats.muted = len(self._until)
        if self._line:
            self._set_timer()


class QuotasOfClients:
    """What is counted of all connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turn: Turn, table: QuotaTable, settings: ProcessSettings
    ) -> None:
        self.stats = QuotaStats()
        self._table = table
        self._now_ms = turn.monotonic_ms
        windows = Windows(settings.quota_window_num, 1_000 * settings.quota_window_size_seconds)
        of_mutations = Windows(
            settings.controller_quota_window_num, 1_000 * settings.controller_quota_window_size_seconds
        )
        self._usage = UsageOfClients(table, windows, of_mutations)
        self._muted = MutedConnections(loop, turn.monotonic_ms, self.stats)

    @property
    def is_on(self) -> bool:
        """Whether any user or client id has a quota."""
        return self._table.limits_clients

    def usage_of(self, connection: Connection, header: RequestHeader) -> ClientUsage:
        """What the connection's next request is counted against."""
        user, client_id = connection.info.principal.name[:_LONGEST], (header.client_id or "")[:_LONGEST]
        usage = connection.usage
        if (
            usage is None
            or usage.revision != self._table.revision
            or usage.client_id != client_id
            or usage.user != user
        ):
            usage = self._usage.of(user, client_id, self._now_ms())
        return usage

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._muted.forget(connection)

    def close(self) -> None:
        self._muted.close()

    # Counting -------------------------------------------------------------------------------------------------------
    def received(self, connection: Connection, usage: ClientUsage, size_bytes: int) -> None:
        """A Produce request."""
        if usage.produced is not None and (wait_ms := usage.produced.use(size_bytes, self._now_ms())):
            self.stats.late_produce += 1
            self._muted.mute(connection, wait_ms)

    def may_send(self, connection: Connection, usage: ClientUsage, size_bytes: int, spent_ns: int) -> bool:
        """An answer to Fetch of this size, which took so long to make. False: its client has to wait first, and is
        answered with nothing; what is not sent is not counted. An answer that is larger than the quota ever allows at
        once, as one batch may be, is sent where it is the only one in all windows, and its client waits afterwards."""
        now_ms = self._now_ms()
        fetched = usage.fetched
        is_late = self.worked(connection, usage, spent_ns)
        wait_ms = 0 if fetched is None else fetched.use(size_bytes, now_ms)
        if not (wait_ms or is_late):
            return True
        self.stats.late_fetches += 1
        if wait_ms:
            self._muted.mute(connection, wait_ms)
        if fetched is not None:
            if not is_late and size_bytes > fetched.most_at_once and fetched.used == size_bytes:
                return True
            fetched.give_back(size_bytes, now_ms)
        return False

    def worked(self, connection: Connection, usage: ClientUsage, spent_ns: int) -> bool:
        """So long a request kept the event loop. Returns: whether its client has to wait for that."""
        if usage.requests is None:
            return False
        wait_ms = usage.requests.use(spent_ns * _PERCENT_PER_NS, self._now_ms())
        if wait_ms:
            self.stats.late_requests += 1
            self._muted.mute(connection, wait_ms)
        return wait_ms > 0

    def mutated(self, connection: Connection, wait_ms: int) -> None:
        """A request created or deleted partitions, or was refused to."""
        if wait_ms:
            self.stats.late_mutations += 1
            self._muted.mute(connection, wait_ms)
