"""Which connections a node's listeners take, and how fast: those of clients up to `max.connections`, those of other
nodes always.

Clients and nodes may come in by the same listener, so a connection is a client's until it shows the token of a living
node (KIP-402 tells them apart by listener alone). Where clients fill the limits, the internal listener still takes a
few connections on trial: each must show a token with its first request, and soon; a newer one takes the place of the
oldest. So no number of clients keeps a follower from its leader.
Lives on the event loop. Cost: a lookup for each connection.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from stratalog.machines.quotas.connection_rates import ConnectionRates
from stratalog.machines.quotas.rates import Windows
from stratalog.machines.quotas.table import QuotaTable
from stratalog.model.listeners import INTERNAL
from stratalog.model.rights import host_of
from stratalog.settings.process import ProcessSettings
from stratalog.settings.units import INT32_MAX
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.serving import ServeLimits
from stratalog_node.turn import Turn

MOST_ON_TRIAL: Final = 16
"""Beyond what clients may have. A node sends its first request at once, so it needs its place for a moment."""
TRIAL_MS: Final = 5_000
MOST_HELD: Final = 64
"""Connections that wait for their end; beyond that the oldest is closed."""


class ConnectionPlaces:
    """Invariant: a connection is a client's, a node's, or on trial."""

    def __init__(self, limits: ServeLimits) -> None:
        self._limits = limits
        self._clients: dict[Connection, str] = {}
        """With the address that each came from."""
        self._per_ip: dict[str, int] = {}
        self._nodes: set[Connection] = set()
        self.on_trial: dict[Connection, int] = {}
        """Oldest first, with the time until which each must show a token."""

    def has_room(self, peer_ip: str) -> bool:
        """For one more client."""
        limits = self._limits
        return (
            len(self._clients) < limits.max_connections and self._per_ip.get(peer_ip, 0) < limits.max_connections_per_ip
        )

    @property
    def is_full(self) -> bool:
        """For clients of any address."""
        return len(self._clients) >= self._limits.max_connections

    @property
    def is_crowded(self) -> bool:
        """Clients have more than half of all places."""
        return 2 * len(self._clients) > self._limits.max_connections

    def take_client(self, connection: Connection, peer_ip: str) -> None:
        self._clients[connection] = peer_ip
        self._per_ip[peer_ip] = self._per_ip.get(peer_ip, 0) + 1

    def take_on_trial(self, connection: Connection, now_ms: int) -> Connection | None:
        """Returns: the one that has to go for it."""
        self.on_trial[connection] = now_ms + TRIAL_MS
        return next(iter(self.on_trial)) if len(self.on_trial) > MOST_ON_TRIAL else None

    def proved(self, connection: Connection) -> None:
        """It has shown the token of a living node: it counts against no limit of clients."""
        if connection not in self._nodes:
            self.forget(connection)
            self._nodes.add(connection)

    def overdue(self, now_ms: int) -> list[Connection]:
        """On trial for too long."""
        return [connection for connection, until_ms in self.on_trial.items() if now_ms >= until_ms]

    def forget(self, connection: Connection) -> None:
        self._nodes.discard(connection)
        self.on_trial.pop(connection, None)
        peer_ip = self._clients.pop(connection, None)
        if peer_ip is not None:
            left = self._per_ip[peer_ip] - 1
            if left:
                self._per_ip[peer_ip] = left
            else:
                del self._per_ip[peer_ip]


class NewConnections:
    """How fast clients may open connections: each address by its quota (connection_creation_rate, KIP-612), and all
    together (`max.connection.creation.rate`).

    A connection that an address may not open now is held unread for a moment and then closed, so that a client that
    tries again at once is slowed down. Cost: one test of an attribute where no address has a quota.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turn: Turn, table: QuotaTable, settings: ProcessSettings
    ) -> None:
        self._loop = loop
        self._now_ms = turn.monotonic_ms
        self._table = table
        self._is_limited = settings.max_connection_creation_rate < INT32_MAX
        self._is_internal_limited = self._is_limited and not settings.further_listeners
        windows = Windows(settings.quota_window_num, 1_000 * settings.quota_window_size_seconds)
        self._rates = ConnectionRates(settings.max_connection_creation_rate, windows)
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}

    def pause_ms(self, *, is_internal: bool) -> int:
        """One more was accepted. Returns: how long its listener is to take no other. `is_internal`: of the listener by
        which nodes reach each other, too; it does not count where clients have others."""
        if not (self._is_internal_limited if is_internal else self._is_limited):
            return 0
        return self._rates.add(self._now_ms())

    def wait_ms(self, ip: str) -> int:
        """0 if this address may open one now; else how long it has to wait."""
        if not self._table.limits_addresses:
            return 0
        address = host_of(ip)
        limit = self._table.of_address(address)
        return 0 if limit is None else self._rates.add_of(address, limit, self._now_ms())

    def end_later(self, sock: socket.socket, wait_ms: int) -> None:
        """Hold it unread until then."""
        if len(self._held) >= MOST_HELD:
            self._end(next(iter(self._held)))
        self._held[sock] = self._loop.call_later(wait_ms / 1_000, self._end, sock)

    def close(self) -> None:
        for sock in list(self._held):
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        self._held.pop(sock).cancel()
        sock.close()


def may_be_a_node(listener: str) -> bool:
    """Nodes reach each other by the internal listener alone."""
    return listener == INTERNAL
