"""Settings of a process's doors: who it is, where it listens, what it tells of that, and what it takes from each.

The first part of `settings.process`, with all that is said there; a class of its own because of its length alone.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
        description="Identity of this node in the cluster; fixed for the life of its data directory.",
    )
    broker_rack: str = Field(
        default="",
        max_length=255,
        description="Where this node stands (a rack, a zone): replicas are spread over racks, and consumers that name "
        "theirs are served from it; empty means nowhere in particular.",
    )
    listeners: FurtherListeners = Field(
        default="",
        description="Listeners for Kafka clients beside the one of --listen, which is named internal and is where "
        "nodes reach each other: NAME://HOST:PORT, with commas between.",
    )
    advertised_listeners: AdvertisedListeners = Field(
        default="",
        description="What clients are told to connect to: HOST:PORT for those that come in where --listen says, "
        "NAME://HOST:PORT for those that come in by a further listener, with commas between. Of a listener that is not "
        "named here they are told where it listens.",
    )
    metrics_listen: Address = Field(
        default="127.0.0.1:9644",
        description="HOST:PORT of metrics, health, status page and the admin API (keep it private where there is "
        "no auth.token.file); port 0 takes a free one, empty turns it off.",
    )
    metrics_max_series: int = Field(
        default=1_000,
        ge=10,
        le=100_000,
        description="Most topics, shards and groups that have series of their own on the metrics page, of each kind; "
        "those that need attention come first, and stratalog_metric_left_out counts the others.",
    )
    meta_listen: Address = Field(
        default="",
        description="HOST:PORT where the embedded meta service serves its HTTP API; port 0 takes a free one, empty "
        "keeps it inside the process.",
    )
    auth_token_file: str = Field(
        default="",
        max_length=4096,
        description="File with the token that the HTTP ports ask for (metrics.listen, meta.listen and the --listen of "
        "a meta service), and that this process shows to the others; empty: whoever reaches them may ask. Read again "
        "when it changes; of several lines each opens, and the first is shown. Probes (/healthz, /readyz) need none.",
    )
    auth_metrics_enable: bool = Field(
        default=True,
        description="Whether /metrics asks for the token, too, where there is one.",
    )
    node_lease_ms: int = Field(
        default=2 * SECOND_MS,
        ge=100,
        le=1 * HOUR_MS,
        description="How long a node that is not heard of counts as alive, by a meta service of its own process; nodes "
        "send heartbeats a quarter of it apart.",
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="Lowest level of the lines written to the log.")

    # Limits of requests and connections -------------------------------------------------------------------------
    message_max_bytes: int = Field(
        default=1_048_588,
        ge=128,
        le=1 * GIB,
        description="Largest record batch, in bytes as sent, that is taken.",
    )
    socket_request_max_bytes: int = Field(
        default=100 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Largest request frame; a longer one closes its connection.",
    )
    queued_max_request_bytes: int = Field(
        default=64 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="Bytes of all requests in flight; above it connections are not read (one larger request is still "
        "read, alone). As much again may wait in answers, other than records, that clients do not take; above it "
        "connections that take nothing are closed.",
    )
    fetch_max_bytes: int = Field(
        default=55 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Most bytes one Fetch response carries, whatever the client asks for.",
    )
    socket_send_buffer_bytes: int = Field(
        default=512 * KIB,
        ge=-1,
        le=1 * GIB,
        description="Bytes of answers that the kernel is asked to hold for a connection, -1 to leave it to the "
        "kernel; it takes twice as much, at most twice net.core.wmem_max, and no client gets more in one round trip.",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most client connections at a time; one more is closed at once. A quarter of the process's open "
        "files is never exceeded.",
    )
    max_connections_per_ip: int = Field(
        default=INT32_MAX,
        ge=1,
        le=INT32_MAX,
        description="Most client connections at a time from one address.",
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
        description="A frame that has begun must be complete within this time, or its connection is closed.",
    )

    http_max_connections: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="Most connections at a time of an admin port (metrics.listen); one more is closed at once. A "
        "sixteenth of the process's open files is never exceeded.",
    )
    http_max_connections_per_ip: int = Field(
        default=64,
        ge=1,
        le=INT32_MAX,
        description="Most connections at a time of an admin port from one address.",
    )
    meta_max_connections: int = Field(
        default=4_096,
        ge=64,
        le=INT32_MAX,
        description="Most connections at a time of the meta service's port (meta.listen); one more is closed at once. "
        "A node has up to 34. A quarter of the process's open files is never exceeded.",
    )
    meta_max_connections_per_ip: int = Field(
        default=1_024,
        ge=64,
        le=INT32_MAX,
        description="Most connections at a time of the meta service's port from one address, behind which many nodes "
        "may be.",
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
        description="An HTTP request's head, its body, and the reading of its answer may each stand still for this "
        "long; then its connection is closed.",
    )
    http_allowed_hosts: HostNames = Field(
        default="",
        description="Names, with commas, under which the HTTP ports may be asked beside IP addresses, localhost and "
        "the name they listen on; one that begins with a dot stands for all that end so "
        "(.stratalog.svc.cluster.local). Others are refused, for a web page may be behind them.",
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
