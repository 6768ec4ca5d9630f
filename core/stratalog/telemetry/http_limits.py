"""What an HTTP port takes at most, and what it counts. No HTTP library here."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.event_loop.turned_away import OF_HTTP, TurnedAway
from stratalog.telemetry.metrics import counter, counters, gauge

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one port, as those of the Kafka port are."""

    max_connections: int = 256
    max_connections_per_ip: int = 64
    request_timeout_s: float = 30.0
    """The longest time that head, body and answer of a request may each make no progress."""
    max_idle_s: float = 120.0
    """A connection without a request for this long is closed."""
    max_head_bytes: int = 16 * KIB
    max_body_bytes: int = 1 * MIB
    max_bodies_bytes: int = 16 * MIB
    """Of all requests together."""
    setting: str = "http.max.connections"
    """What a person changes to let more connections in."""


@dataclass(slots=True)
class HttpStats:
    connections: int = gauge("HTTP connections open now, or whose request is still worked on.")
    accepted: int = counter("HTTP connections accepted.")
    turned_away: dict[TurnedAway, int] = field(
        default_factory=lambda: dict.fromkeys(OF_HTTP, 0),
        metadata=counters("HTTP clients that were turned away, by reason.", "reason"),
    )
    closed_for_fault: int = counter("HTTP connections closed because head, body or reader were too slow or too large.")
    handshakes: int = gauge("TLS handshakes of HTTP connections under way.")
    handshakes_failed: int = counter("TLS handshakes of HTTP connections that failed or took too long.")
    foreign: int = counter(
        "HTTP requests refused because a page of another site made them, or under a foreign host name."
    )
    unauthorized: int = counter("HTTP requests refused because they did not show the token.")
    forbidden: int = counter("HTTP requests refused because the role of their sender does not suffice.")
