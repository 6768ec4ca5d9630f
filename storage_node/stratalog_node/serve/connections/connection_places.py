"""Which connections a node's listeners take: those of clients up to `max.connections`, those of other nodes always.

Clients and nodes may come in by the same listener, so a connection is a client's until it shows the token of a living
node (KIP-402 tells them apart by listener alone). Where clients fill the limits, the internal listener still takes a
few connections on trial: each must show a token with its first request, and soon; a newer one takes the place of the
oldest. So no number of clients keeps a follower from its leader.
Lives on the event loop. Cost: a lookup for each connection.
"""

from __future__ import annotations

from typing import Final

from stratalog.model.listeners import INTERNAL
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.serving import ServeLimits

MOST_ON_TRIAL: Final = 16
"""Beyond what clients may have. A node sends its first request at once, so it needs its place for a moment."""
TRIAL_MS: Final = 5_000


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


def may_be_a_node(listener: str) -> bool:
    """Nodes reach each other by the internal listener alone."""
    return listener == INTERNAL
