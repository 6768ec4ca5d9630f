"""Settings of a process's doors: who it is, where it listens, what it tells of that, and what it takes from each.

The first part of `settings.process`, with all that is said there; a class of its own because of its length alone.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stratalog.model.batch import LARGEST_BATCH_BYTES
from stratalog.model.listeners import INTERNAL, Listener, check_told, parse_listeners, told_of
from stratalog.settings.addresses import Address, AdvertisedListeners, FurtherListeners, HostNames
from stratalog.settings.choices import LogLevel
from stratalog.settings.units import DAY_MS, GIB, HOUR_MS, INT32_MAX, INT64_MAX, KIB, MIB, MINUTE_MS, SECOND_MS
from stratalog.settings.wrong_values import key_of


class DoorSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=key_of, populate_by_name=True)

    # The node and its doors -------------------------------------------------------------------------------------
    node_id: int = Field(
        default=1,
        ge=0,
        le=INT32_MAX,
        description="Id of this node in the cluster; fixed for the life of its data directory.",
    )
    broker_rack: str = Field(
        default="",
        max_length=255,
        description="Rack or zone of this node. Replicas are spread over racks, and consumers that name their rack "
        "are served from it. Empty: none.",
    )
    listeners: FurtherListeners = Field(
        default="",
        description="Further listeners for Kafka clients, besides --listen, which is named internal and is used by "
        "other nodes: NAME://HOST:PORT, separated by commas.",
    )
    advertised_listeners: AdvertisedListeners = Field(
        default="",
        description="Addresses that clients are given to connect to: HOST:PORT for the listener of --listen, "
        "NAME://HOST:PORT for a further listener, separated by commas. A listener that is not named here advertises "
        "the address it listens on.",
    )
    metrics_listen: Address = Field(
        default="127.0.0.1:9644",
        description="HOST:PORT for metrics, health, the UI and the admin API (keep it private unless "
        "auth.token.file is set). Port 0 picks a free port; empty turns it off.",
    )
    metrics_max_series: int = Field(
        default=1_000,
        ge=10,
        le=100_000,
        description="Maximum number of topics, of shards and of groups with their own series on the metrics page. "
        "Those that need attention come first; stratalog_metric_left_out counts the others.",
    )
    meta_listen: Address = Field(
        default="",
        description="HOST:PORT for the HTTP API of the embedded meta service. Port 0 picks a free port; empty keeps "
        "the service inside the process.",
    )
    auth_token_file: str = Field(
        default="",
        max_length=4096,
        description="File with the token that the HTTP ports require (metrics.listen, meta.listen and the --listen "
        "of a meta service), and that this process sends to the others. Empty: no token is needed. The file is read "
        "again when it changes. Any of its lines is accepted; the first one is sent. Probes (/healthz, /readyz) "
        "need no token.",
    )
    auth_metrics_enable: bool = Field(
        default=True,
        description="Whether /metrics also requires the token, if there is one.",
    )
    node_lease_ms: int = Field(
        default=2 * SECOND_MS,
        ge=100,
        le=1 * HOUR_MS,
        description="How long a node without heartbeats counts as alive, if the meta service runs as a separate "
        "process. Nodes send a heartbeat every quarter of this time.",
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="Lowest level that is logged.")

    # Limits of requests and connections -------------------------------------------------------------------------
    message_max_bytes: int = Field(
        default=1_048_588,
        ge=128,
        le=1 * GIB,
        description="Largest record batch that is accepted, in bytes as sent.",
    )
    socket_request_max_bytes: int = Field(
        default=100 * MIB,
        ge=1 * KIB,
        le=LARGEST_BATCH_BYTES,
        description="Largest request frame; a larger one closes its connection.",
    )
    queued_max_request_bytes: int = Field(
        default=64 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="Bytes of all requests in flight. Above it, connections are not read (one larger request is "
        "still read, alone). The same number of bytes may wait in answers, other than records, that clients do not "
        "read; above it, connections that read nothing are closed.",
    )
    fetch_max_bytes: int = Field(
        default=55 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Maximum bytes in one Fetch response, whatever the client asks for.",
    )
    socket_send_buffer_bytes: int = Field(
        default=512 * KIB,
        ge=-1,
        le=1 * GIB,
        description="Size of the kernel's send buffer for a connection; -1 leaves it to the kernel. The kernel uses "
        "twice this value, at most twice net.core.wmem_max, and no client gets more in one round trip.",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of client connections; further ones are closed at once. Connections of other "
        "nodes do not count. Never more than a quarter of the process's open files, less 64 for other nodes.",
    )
    max_connections_per_ip: int = Field(
        default=INT32_MAX,
        ge=1,
        le=INT32_MAX,
        description="Maximum number of client connections from one address.",
    )
    connections_max_idle_ms: int = Field(
        default=10 * MINUTE_MS,
        ge=100,
        le=INT64_MAX,
        description="A connection without a request for this long is closed.",
    )
    connection_read_timeout_ms: int = Field(
        default=30 * SECOND_MS,
        ge=10,
        le=1 * HOUR_MS,
        description="Time in which a frame that has begun must be complete; otherwise its connection is closed.",
    )

    http_max_connections: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="Maximum number of connections to the admin port (metrics.listen); a further one takes the place "
        "of the one that has been idle longest. Never more than a sixteenth of the process's open files.",
    )
    http_max_connections_per_ip: int = Field(
        default=64,
        ge=1,
        le=INT32_MAX,
        description="Maximum number of connections to the admin port from one address.",
    )
    meta_max_connections: int = Field(
        default=4_096,
        ge=64,
        le=INT32_MAX,
        description="Maximum number of connections to the port of the meta service (meta.listen); a further one takes "
        "the place of the one that has been idle longest. A node opens up to 34. Never more than a quarter of the "
        "process's open files.",
    )
    meta_max_connections_per_ip: int = Field(
        default=1_024,
        ge=64,
        le=INT32_MAX,
        description="Maximum number of connections to the port of the meta service from one address. Many nodes may "
        "share an address.",
    )
    http_max_idle_ms: int = Field(
        default=2 * MINUTE_MS,
        ge=100,
        le=1 * DAY_MS,
        description="An HTTP connection without a request for this long is closed.",
    )
    http_request_timeout_ms: int = Field(
        default=30 * SECOND_MS,
        ge=10,
        le=1 * HOUR_MS,
        description="Longest pause while an HTTP request's head or body arrives, or its answer is read; then the "
        "connection is closed.",
    )
    http_allowed_hosts: HostNames = Field(
        default="",
        description="Host names, separated by commas, that HTTP requests may use, besides IP addresses, localhost "
        "and the name that the port listens on. A name that begins with a dot allows all names that end in it "
        "(.stratalog.svc.cluster.local). Other names are refused, because a malicious web page may be behind them.",
    )

    @model_validator(mode="after")
    def _told(self) -> Self:
        check_told(self.further_listeners, self.told_listeners)
        return self

    @property
    def further_listeners(self) -> tuple[Listener, ...]:
        """Beside the internal one, which is where --listen says."""
        return parse_listeners(self.listeners)

    @property
    def told_listeners(self) -> tuple[Listener, ...]:
        """What others are told of listeners, of those where it is not simply where they listen."""
        return parse_listeners(self.advertised_listeners)

    def advertised(self, listening: tuple[str, int]) -> tuple[str, int]:
        """Where others find what listens there for the inside. Port 0 stands for the port there."""
        told = told_of(Listener(INTERNAL, *listening), self.told_listeners)
        return told.host, told.port
