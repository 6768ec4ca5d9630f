"""The Kafka listener of a node: accepts, dispatches, and drives the loop turn.

One turn: connections read, once each, and dispatch; then `tick` flushes the shards, lets woken fetches look again, and
sends every answer that is ready, one `sendmsg` per connection. Lives on the event loop; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.frames import RequestHeader
from stratalog.kafka.produce import TopicRecords
from stratalog.model.errors import Unavailable
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge, histogram
from stratalog_node.buffers import BufferPool
from stratalog_node.serve.answer import Answer
from stratalog_node.serve.api.p18_api_versions import fallback_response
from stratalog_node.serve.byte_budget import ByteBudget
from stratalog_node.serve.connection import Connection
from stratalog_node.serve.context import ConnectionInfo, NodeServices
from stratalog_node.serve.control import ControlDesk
from stratalog_node.serve.fetch import PendingFetch
from stratalog_node.serve.produce import PendingProduce, PendingSingle, ProduceHandler
from stratalog_node.serve.registry import Api, Registry
from stratalog_node.shards.directory import ShardDirectory
from stratalog_node.shards.reading import ShardReader
from stratalog_node.turn import Turn

log = logger(__name__)

_PRODUCE, _FETCH, _API_VERSIONS = 0, 1, 18
_BACKLOG = 1024
_REAP_S = 1.0
_ACCEPTS_PER_TURN = 64
_ACCEPT_RETRY_S = 0.5
_TELL_EVERY_MS = 10_000
_LOOKS_PER_TURN = 2_000
"""So many partitions may fetches look at in a turn, whoever woke them: 5 to 15 ms."""


@dataclass(frozen=True, slots=True)
class ServeLimits:
    max_frame_bytes: int
    max_connections: int
    max_connections_per_ip: int
    read_timeout_ms: int
    max_idle_ms: int
    fetch_max_bytes: int

    @classmethod
    def of(cls, settings: ProcessSettings, most_connections: int) -> ServeLimits:
        """`most_connections`: so many descriptors are there for clients, whatever the settings say."""
        return cls(
            settings.socket_request_max_bytes,
            min(settings.max_connections, most_connections),
            settings.max_connections_per_ip,
            settings.connection_read_timeout_ms,
            settings.connections_max_idle_ms,
            settings.fetch_max_bytes,
        )


@dataclass(slots=True)
class ServeStats:
    received_bytes: int = counter("Bytes received from clients.")
    sent_bytes: int = counter("Bytes sent to clients.")
    produce_requests: int = counter("Produce requests.")
    fetch_requests: int = counter("Fetch requests answered.")
    control_requests: int = counter("Requests of all other keys.")
    produce_errors: int = counter("Batches refused.")
    control_errors: int = counter("Control requests that failed inside and closed their connection.")
    reads_unavailable: int = counter("Fetch reads that could not be served now.")
    accepted: int = counter("Connections accepted.")
    refused: int = counter("Connections refused for a limit.")
    closed_for_fault: int = counter("Connections closed for malformed, oversized or slow frames.")
    connections: int = gauge("Connections open now.")
    control_duration: Histogram = field(
        default_factory=Histogram, metadata=histogram("Time from a control request's dispatch to its answer.")
    )


class KafkaServer:
    def __init__(
        self,
        services: NodeServices,
        shards: ShardDirectory,
        registry: Registry,
        turn: Turn,
        pool: BufferPool,
        reader: ShardReader,
        *,
        most_connections: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = ServeLimits.of(services.settings, most_connections)
        self.stats = ServeStats()
        self.pool = pool
        self.budget = ByteBudget(services.settings.queued_max_request_bytes)
        self.turn = turn
        self._services = services
        self._shards = shards
        self._registry = registry
        self._reader = reader
        self._produce = ProduceHandler(self, shards.by_name)
        self._control = ControlDesk(self, services)
        self._apis: dict[int, Api] = {api.key: api for api in registry.all()}
        self._connections: set[Connection] = set()
        self._per_ip: dict[str, int] = {}
        self._listeners: list[socket.socket] = []
        self._looking_again: deque[PendingFetch] = deque()
        self._looks_left = _LOOKS_PER_TURN
        self._this_turn: list[tuple[PendingProduce | PendingSingle, int, Sequence[TopicRecords]]] = []
        self._reaper: asyncio.TimerHandle | None = None
        self._told_refused_ms = self.turn.steady_ms - _TELL_EVERY_MS
        turn.after_shards.append(self._after_shards)

    # Listening ------------------------------------------------------------------------------------------------------
    def open(self, sock: socket.socket, advertised: tuple[str, int]) -> None:
        """Take connections on a bound socket; `advertised` is what Metadata tells clients that come through it."""
        sock.listen(_BACKLOG)
        self._listeners.append(sock)
        self.loop.add_reader(sock.fileno(), self._accept, sock, *advertised)
        if self._reaper is None:
            self._reap()

    def _accept(self, listener: socket.socket, host: str, port: int) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("cannot accept connections now", error=error.strerror, retry_s=_ACCEPT_RETRY_S)
                # The listener stays readable: looking on would keep the loop busy with nothing.
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(_ACCEPT_RETRY_S, self._accept_again, listener, host, port)
                return
            peer_ip = str(address[0])
            if len(self._connections) >= self.limits.max_connections or (
                self._per_ip.get(peer_ip, 0) >= self.limits.max_connections_per_ip
            ):
                sock.close()
                self._refused(peer_ip)
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            info = ConnectionInfo(f"{peer_ip}:{address[1]}", host, port)
            connection = Connection(sock, self, info, self.turn.steady_ms)
            self._connections.add(connection)
            self._per_ip[peer_ip] = self._per_ip.get(peer_ip, 0) + 1
            self.stats.accepted += 1
            self.stats.connections = len(self._connections)
            connection.open()

    def _refused(self, peer_ip: str) -> None:
        self.stats.refused += 1
        if self.turn.steady_ms - self._told_refused_ms >= _TELL_EVERY_MS:  # a flood must not fill the log
            self._told_refused_ms = self.turn.steady_ms
            log.warning(
                "connections refused",
                peer=peer_ip,
                open=len(self._connections),
                most=self.limits.max_connections,
                refused=self.stats.refused,
                limit="max.connections",
            )

    def _accept_again(self, listener: socket.socket, host: str, port: int) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener.fileno(), self._accept, listener, host, port)

    def forget(self, connection: Connection, reason: str, *, is_fault: bool) -> None:
        self._connections.discard(connection)
        peer_ip = connection.info.peer.rpartition(":")[0]
        left = self._per_ip.get(peer_ip, 1) - 1
        if left:
            self._per_ip[peer_ip] = left
        else:
            self._per_ip.pop(peer_ip, None)
        self.stats.connections = len(self._connections)
        if is_fault:
            self.stats.closed_for_fault += 1
            log.warning("connection closed", peer=connection.info.peer, reason=reason)
        else:
            log.debug("connection closed", peer=connection.info.peer, reason=reason)

    def _reap(self) -> None:
        """Once a second: the clock of an idle node, and connections that are slow, half-open or idle."""
        self.turn.read_clocks()
        has_idle = False
        for connection in list(self._connections):
            reason = connection.overdue(self.turn.steady_ms)
            if reason is not None:
                connection.close(reason, is_fault=not reason.startswith("idle"))
            elif self.turn.steady_ms - connection.last_active_ms > _REAP_S * 1000:
                # After the next turn: batches of this one may still lie in the buffer.
                self.turn.free_when_idle(connection)
                has_idle = True
        self._control.untaken.shed(self.turn.steady_ms)
        if has_idle:
            self.turn.request()
        self._reaper = self.loop.call_later(_REAP_S, self._reap)

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        for sock in self._listeners:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self._listeners.clear()
        self.turn.run()
        for connection in list(self._connections):
            connection.close("the node is stopping")
        await asyncio.sleep(0)

    # Dispatch -------------------------------------------------------------------------------------------------------
    def dispatch(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        api = self._apis.get(header.api_key)
        if api is None or not api.min_version <= header.api_version <= api.max_version:
            self._refuse_version(connection, header)
            return
        self.turn.request()
        if api.key == _PRODUCE:
            self._produce.handle(connection, header, frame)
        elif api.key == _FETCH:
            fetch = PendingFetch(self, connection, header, self._reader, self._shards.by_name)
            connection.expect_answer(fetch)
            fetch.start(frame)
        else:
            self._control.take(connection, api, header, frame)

    def _refuse_version(self, connection: Connection, header: RequestHeader) -> None:
        if header.api_key != _API_VERSIONS:
            connection.close(
                f"key {header.api_key} v{header.api_version} from {header.client_id!r} is not served "
                "(ApiVersions says what is)",
                is_fault=True,
            )
            return
        answer = Answer()
        answer.buffers = [fallback_response(self._registry, header.correlation_id)]
        connection.expect_answer(answer)
        connection.answer_ready()
        self.turn.request()

    @property
    def shard_count(self) -> int:
        """Shards that may be fetched from here."""
        return self._shards.count

    def missing_shard_error(self, topic: str, shard: int) -> int:
        """Unknown here: is it being created (retriable), or is there no such shard?"""
        known = self._services.catalog.topic(topic)
        if known is not None and 0 <= shard < known.shard_count:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # The turn -------------------------------------------------------------------------------------------------------
    def _after_shards(self) -> None:
        self._looks_left = _LOOKS_PER_TURN
        if self._looking_again:
            self._look_again()
        if self._this_turn:
            for pending, timeout_ms, topics in self._this_turn:
                if not pending.is_finished:
                    pending.await_acknowledgement(timeout_ms, topics)
            self._this_turn.clear()

    def may_look(self, weight: int) -> bool:
        """Whether a fetch may look at so many partitions now, which are then taken off the turn's: not once they are
        used up, and not past others that wait for theirs."""
        if self._looks_left <= 0 or self._looking_again:
            return False
        self._looks_left -= weight
        return True

    def _look_again(self) -> None:
        fetches = self._looking_again
        while fetches and self._looks_left > 0:
            fetch = fetches.popleft()
            weight = fetch.weight  # a look may decode the request, which names less than its bytes let fear
            try:
                fetch.look_again()
            except Exception as error:  # one fetch's fault must not take the turn of all others (F48)
                fetch.fail(error)
            self._looks_left -= weight
        if fetches:
            self.turn.request()

    def to_look_again(self, fetch: PendingFetch) -> None:
        self._looking_again.append(fetch)
        self.turn.request()

    def await_turn(
        self, pending: PendingProduce | PendingSingle, timeout_ms: int, topics: Sequence[TopicRecords]
    ) -> None:
        """A produce request that is usually answered by this turn's flush; if not, it gets a timer."""
        self._this_turn.append((pending, timeout_ms, topics))


def bind(host: str, port: int) -> socket.socket:
    """A socket with its address taken; it refuses connections until opened. Raises: Unavailable (address in use)."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}; choose another --listen") from error
    return sock


def data_apis() -> list[Api]:
    """Produce and Fetch: served by the connection itself. Produce is advertised from 0 although 0-2 are refused,
    because older librdkafka turns compression off otherwise (trap 1 of docs/kafka.md)."""
    return [
        Api(_PRODUCE, "Produce", 3, 11, None, advertised_min=0),
        Api(_FETCH, "Fetch", 4, 12, None),
    ]
