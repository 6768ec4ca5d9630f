"""What all connections of the Kafka listener and their requests share: limits, counters, memory, the turn.

It is created before the connections and never changes: a connection knows this, but not the listener that accepted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from stratalog.event_loop.turned_away import OF_KAFKA, TurnedAway
from stratalog.kafka.produce import NodeEndpoint
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.metrics import counter, counters, gauge, histogram
from stratalog_node.buffers import BufferPool
from stratalog_node.serve.connections.byte_budget import ByteBudget
from stratalog_node.serve.connections.client_rights import RightsOfClients
from stratalog_node.serve.connections.send_share import SendShare
from stratalog_node.turn import Turn

_OF_NODES = 64
"""Descriptors that are kept for connections of other nodes, which count against no limit of clients."""


@dataclass(frozen=True, slots=True)
class ServeLimits:
    max_frame_bytes: int
    max_connections: int
    max_connections_per_ip: int
    read_timeout_ms: int
    max_idle_ms: int
    fetch_max_bytes: int
    send_buffer_bytes: int
    """Asked of the kernel for each connection; below 0 nothing is asked."""

    @classmethod
    def of(cls, settings: ProcessSettings, most_connections: int) -> ServeLimits:
        """`most_connections`: the number of descriptors that are available for connections, whatever the settings
        say."""
        return cls(
            settings.socket_request_max_bytes,
            min(settings.max_connections, max(1, most_connections - _OF_NODES)),
            settings.max_connections_per_ip,
            settings.connection_read_timeout_ms,
            settings.connections_max_idle_ms,
            settings.fetch_max_bytes,
            settings.socket_send_buffer_bytes,
        )


@dataclass(slots=True)
class ServeStats:
    received_bytes: int = counter("Bytes received from clients.")
    sent_bytes: int = counter("Bytes sent to clients.")
    produce_requests: int = counter("Produce requests.")
    fetch_requests: int = counter("Fetch requests answered.")
    replica_cold_reads: int = counter("Reads for followers that had to go to the disk.")
    replica_cold_bytes: int = counter("Bytes of batches read from the disk for followers.")
    sealed_reads: int = counter("Questions of other nodes for sealed segments, answered or refused.")
    sent_away: int = counter(
        "Partitions of fetches that were sent to another replica, which names the reader's rack first."
    )
    sent_back: int = counter(
        "Partitions of fetches that were sent back to their leader: the next offsets are not sealed here."
    )
    control_requests: int = counter("Requests of all other keys.")
    produce_errors: int = counter("Batches refused.")
    control_errors: int = counter(
        "Control requests that failed on a fault in this process and closed their connection."
    )
    reads_unavailable: int = counter("Fetch reads that could not be served now.")
    accepted: int = counter("Connections accepted.")
    turned_away: dict[TurnedAway, int] = field(
        default_factory=lambda: dict.fromkeys(OF_KAFKA, 0),
        metadata=counters("Clients that were turned away, by reason.", "reason"),
    )
    closed_for_fault: int = counter("Connections closed for malformed, oversized or slow frames.")
    connections: int = gauge("Connections open now.")
    handshakes: int = gauge("TLS handshakes under way.")
    handshakes_failed: int = counter("TLS handshakes that failed, took too long or were one too many.")
    control_duration: Histogram = field(
        default_factory=Histogram, metadata=histogram("Time from a control request's dispatch to its answer.")
    )


@dataclass(frozen=True, slots=True)
class Serving:
    loop: asyncio.AbstractEventLoop
    turn: Turn
    limits: ServeLimits
    stats: ServeStats
    pool: BufferPool
    budget: ByteBudget
    """The budget for frames that are being received."""
    sends: SendShare
    are_answers_full: Callable[[], bool]
    """Whether what clients have not taken yet is all that they may have of this node."""
    leader_of: Callable[[str, int], tuple[int, int] | None]
    """Which other node leads a shard, and its epoch, as far as this one knows."""
    endpoints_of: Callable[[Iterable[int], str], Sequence[NodeEndpoint]]
    """Where clients of a listener reach these nodes. Leaves out unknown nodes, and those without such a listener."""
    rights: RightsOfClients = field(default_factory=lambda: RightsOfClients(None))
