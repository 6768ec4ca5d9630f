"""The Kafka listener of a node: accepts, dispatches, and closes connections that overstay.

In a turn of the loop each connection reads once and dispatches; the work that this queued runs at the turn's end
(`turn.py`). Lives on the event loop; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import NamedTuple

from stratalog.event_loop.patience import TimedChecks
from stratalog.event_loop.tls_channel import TlsChannel
from stratalog.event_loop.tls_handshakes import PortWords, TlsHandshakes
from stratalog.event_loop.tls_sessions import ServerContext
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.kafka import replica_fetch
from stratalog.kafka.frames import RequestHeader
from stratalog.kafka.produce import NodeEndpoint
from stratalog.machines.quotas.usage import ClientUsage
from stratalog.machines.rights.members import why_not_of_cluster
from stratalog.machines.rights.principal_names import name_of, parse_name_rules
from stratalog.model.errors import InvalidRequest
from stratalog.model.listeners import INTERNAL, Listener, SecurityProtocol
from stratalog.model.members import Member
from stratalog.model.rights import NODE, USER, Principal
from stratalog.telemetry.bounded_lines import BoundedLines
from stratalog.telemetry.logs import logger
from stratalog_node.buffers import BufferPool
from stratalog_node.serve.api.audited import ClientAudit
from stratalog_node.serve.api.p18_api_versions import fallback_response
from stratalog_node.serve.connections.answer import Answer
from stratalog_node.serve.connections.byte_budget import ByteBudget
from stratalog_node.serve.connections.client_quotas import QuotasOfClients
from stratalog_node.serve.connections.client_rights import RightsOfClients
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.connection_places import ConnectionPlaces, NewConnections, may_be_a_node
from stratalog_node.serve.connections.context import ConnectionInfo, NodeServices
from stratalog_node.serve.connections.control import ControlRequests
from stratalog_node.serve.connections.logins import OF_LOGINS, VERSIONS, Logins
from stratalog_node.serve.connections.registry import Api, Registry
from stratalog_node.serve.connections.send_share import SendShare
from stratalog_node.serve.connections.serving import ServeLimits, ServeStats, Serving
from stratalog_node.serve.fetching.fetch import NEEDS as FETCH_NEEDS
from stratalog_node.serve.fetching.fetch import PendingFetch
from stratalog_node.serve.fetching.fetch_scheduler import FetchScheduler
from stratalog_node.serve.fetching.read_replicas import ReadReplicas
from stratalog_node.serve.producing.produce import NEEDS as PRODUCE_NEEDS
from stratalog_node.serve.producing.produce import ProduceHandler
from stratalog_node.serve.replicas.replica_requests import ReplicaRequests
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.read.reading import ShardReader
from stratalog_node.turn import Turn

log = logger(__name__)

_PRODUCE, _FETCH, _API_VERSIONS = 0, 1, 18
_OF_REPLICAS = (replica_fetch.FETCH, replica_fetch.VERSION)
"""Served to followers alone, and not advertised."""
_BACKLOG = 4_096
"""The kernel may allow fewer. Connections beyond it wait for seconds, by the timers of their clients' kernels."""
_REAP_S = 1.0
_ACCEPTS_PER_TURN = 64
_ACCEPT_RETRY_S = 0.5
_OLD_RIGHTS = "the rules that this node has are older than authorizer.metadata.max.age.ms"
_LIMITS = {
    TurnedAway.FULL: "max.connections",
    TurnedAway.ADDRESS: "max.connections.per.ip",
    TurnedAway.RATE: "connection_creation_rate",
    TurnedAway.TRIAL: "max.connections, max.connections.per.ip or connection_creation_rate",
    TurnedAway.OLD_RIGHTS: "authorizer.metadata.max.age.ms",
}
_WORDS = PortWords("set security.protocol=SSL or SASL_SSL there", "ssl.client.auth=required")


class ClientView(NamedTuple):
    """One connection, for who looks at the node."""

    client_id: str | None
    """None before its first request, and where it names none."""
    peer: str
    listener: str
    principal: Principal
    idle_ms: int


class _ListensAt(NamedTuple):
    """A listener of this node."""

    announced: Listener
    protocol: SecurityProtocol
    tls: Callable[[], ServerContext] | None
    """What the next connection speaks TLS with; None: plain text."""


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
        member: Member | None = None,
        metadata_age_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`member`: as which nodes know this one, where they prove to each other who they are; None: they show tokens
        alone. `metadata_age_ms`: how old the metadata may be that this node has."""
        settings = services.settings
        self._metadata_age_ms = metadata_age_ms
        self._most_age_ms = settings.authorizer_metadata_max_age_ms if settings.has_authorizer else 0
        self._has_old_rights = False
        self.loop = asyncio.get_running_loop()
        self.turn = turn
        self.limits = ServeLimits.of(settings, most_connections)
        self.stats = ServeStats()
        self.budget = ByteBudget(settings.queued_max_request_bytes)
        catalog = services.catalog

        def endpoints_of(node_ids: Iterable[int], listener: str) -> list[NodeEndpoint]:
            known = [node for node_id in node_ids if (node := catalog.node(node_id)) is not None]
            found = ((node, node.address(listener)) for node in known)
            return [NodeEndpoint(node.node_id, *place, node.rack) for node, place in found if place is not None]

        self.serving = Serving(
            self.loop,
            turn,
            self.limits,
            self.stats,
            pool,
            self.budget,
            SendShare(turn),
            lambda: reader.is_full,
            shards.leader_of,
            endpoints_of,
            RightsOfClients(catalog.rights.authorizer if settings.has_authorizer else None, services.audit),
        )
        self._advertised = registry.advertised()
        self._readers = ReadReplicas(
            services.node_id,
            services.catalog,
            settings.read_replica_min_bytes,
            self.stats,
            lambda: turn.steady_ms,
        )
        lag = services.control.lag(services.catalog, services.meta)
        self.quotas = QuotasOfClients(self.loop, turn, catalog.quotas, settings)
        self._arrivals = NewConnections(self.loop, turn, catalog.quotas, settings)
        self._fetches = FetchScheduler(
            self.serving, services.catalog, shards, reader, self._readers, self.quotas, lag.catch_up
        )
        self._places = ConnectionPlaces(self.limits)
        self._member = member
        self._replicas = ReplicaRequests(
            services.catalog, shards, self._fetches, self._proved, are_certain=member is not None
        )
        self._produce = ProduceHandler(self.serving, services.catalog, shards.by_name, lag.catch_up)
        self._control = ControlRequests(self.serving, services, self.quotas, ClientAudit(services.audit))
        self._apis: dict[int, Api] = {api.key: api for api in registry.all()}
        self._connections: dict[Connection, None] = {}
        self._clients: dict[Connection, str | None] = {}
        """As the newest request of each named itself."""
        self.logins = Logins(self.serving, settings, catalog.rights.credential, services.audit)
        self._handshakes = TlsHandshakes(self.loop, self.stats, self._secured, _WORDS, turn.monotonic_ms)
        self._checks = TimedChecks(self.loop.time, _REAP_S)
        self._name_rules = parse_name_rules(settings.ssl_principal_mapping_rules)
        self._listeners: list[socket.socket] = []
        self._reaper: asyncio.TimerHandle | None = None
        self._lines = BoundedLines(
            log, lambda: turn.steady_ms, "stratalog_kafka_turned_away_total counts those that are turned away by reason"
        )

    # Listening ------------------------------------------------------------------------------------------------------
    def open(
        self,
        sock: socket.socket,
        announced: Listener,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        tls: Callable[[], ServerContext] | None = None,
    ) -> None:
        """Take connections on a bound socket; `announced` is what Metadata tells clients that come through it. `tls`:
        what the next connection speaks TLS with, where the protocol has it."""
        assert tls is not None or not protocol.is_tls, "a listener with TLS has a certificate"
        at = _ListensAt(announced, protocol, tls if protocol.is_tls else None)
        # What is accepted inherits both.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.limits.send_buffer_bytes >= 0:  # docs/decisions/0005
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_bytes)
        sock.listen(_BACKLOG)
        self._listeners.append(sock)
        self.loop.add_reader(sock.fileno(), self._accept, sock, at)
        if self._reaper is None:
            self._reap()
            self._control.begin()

    def _accept(self, listener: socket.socket, at: _ListensAt) -> None:
        announced = at.announced
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("cannot accept connections now", error=error.strerror, retry_s=_ACCEPT_RETRY_S)
                # The listener stays readable: looking on would keep the loop busy with nothing.
                self._pause_listener(listener, at, _ACCEPT_RETRY_S)
                return
            self._admit(sock, str(address[0]), int(address[1]), at)
            pause_ms = self._arrivals.pause_ms(is_internal=may_be_a_node(announced.name))
            if pause_ms:
                self._pause_listener(listener, at, pause_ms / 1_000)
                return

    def _admit(self, sock: socket.socket, peer_ip: str, peer_port: int, at: _ListensAt) -> None:
        """A connection was accepted: open it if there is room for it, and its address may open one now."""
        announced = at.announced
        if self._has_old_rights and not may_be_a_node(announced.name):
            sock.close()
            self._refused(peer_ip, TurnedAway.OLD_RIGHTS)
            return
        if self._places.is_full:
            self._handshakes.make_room()
        has_room = self._places.has_room(peer_ip)
        wait_ms = self._arrivals.wait_ms(peer_ip) if has_room else 0
        if (not has_room or wait_ms) and not may_be_a_node(announced.name):
            if wait_ms:
                self._arrivals.end_later(sock, wait_ms)
            else:
                sock.close()
            is_full = TurnedAway.FULL if self._places.is_full else TurnedAway.ADDRESS
            self._refused(peer_ip, TurnedAway.RATE if wait_ms else is_full)
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        info = ConnectionInfo(f"{peer_ip}:{peer_port}", announced.host, announced.port, announced.name)
        channel = TlsChannel(sock, at.tls()) if at.tls is not None else None
        connection = self.connection(channel or sock, info)
        self._connections[connection] = None
        self.stats.accepted += 1
        self.stats.connections = len(self._connections)
        if at.protocol.is_sasl:
            self.logins.begin(connection, at.protocol)
        if channel is None:
            connection.open()
        else:
            self._handshakes.begin(connection, channel, peer_ip)
        if has_room and not wait_ms:
            self._places.take_client(connection, peer_ip)
        elif (last := self._places.take_on_trial(connection, self.turn.steady_ms)) is not None:
            self._end_trial(last)

    def connection(self, sock: socket.socket | TlsChannel, info: ConnectionInfo) -> Connection:
        """One of this listener's, not open yet."""
        return Connection(sock, self.serving, info, self.dispatch, self.forget)

    def _secured(self, connection: Connection, channel: TlsChannel) -> None:
        """The TLS handshake of a connection is done."""
        certificate = channel.tls.getpeercert(binary_form=True)
        if certificate:
            try:
                principal = self._principal_of(connection, certificate)
            except InvalidRequest as error:
                connection.close(str(error), is_fault=True)
                return
            connection.identify(principal)
            if principal.type == NODE:
                self._places.proved(connection)
        self.logins.secured(connection)
        connection.open()

    def _proved(self, connection: Connection, node_id: int) -> None:
        """It has shown the token of a living node, which only nodes know."""
        self._places.proved(connection)
        if connection.info.principal.type != NODE:
            connection.identify(Principal(NODE, str(node_id)))

    def _principal_of(self, connection: Connection, certificate: bytes) -> Principal:
        """The principal that a verified certificate proves. Raises: InvalidRequest for one without a name here."""
        from stratalog.tls.subjects import member_of, subject_of  # with a library that plain text does not need

        own = self._member
        if own is not None and connection.info.listener == INTERNAL and (shown := member_of(certificate)) is not None:
            if (why := why_not_of_cluster(own, shown)) is not None:
                raise InvalidRequest(why)
            return shown.principal
        subject = subject_of(certificate)
        name = name_of(self._name_rules, subject)
        if name is None:
            raise InvalidRequest(f"no rule of ssl.principal.mapping.rules gives {subject!r} a name")
        return Principal(USER, name)

    def clients(self) -> list[ClientView]:
        """The connected clients. Cost: a check of each connection."""
        now_ms = self.turn.steady_ms
        return [
            ClientView(
                self._clients.get(one),
                one.info.peer,
                one.info.listener,
                one.info.principal,
                max(0, now_ms - one.last_active_ms),
            )
            for one in self._connections
        ]

    def _refused(self, peer_ip: str, why: TurnedAway) -> None:
        self.stats.turned_away[why] += 1
        self._lines.warning(
            "connection refused",
            peer=peer_ip,
            open=len(self._connections),
            most=self.limits.max_connections,
            limit=_LIMITS[why],
        )

    def _end_trial(self, connection: Connection) -> None:
        """No client may open one more, and no node's token was shown."""
        self._refused(connection.info.peer.rpartition(":")[0], TurnedAway.TRIAL)
        connection.close(f"refused: {_LIMITS[TurnedAway.TRIAL]}")

    def _pause_listener(self, listener: socket.socket, at: _ListensAt, pause_s: float) -> None:
        self.loop.remove_reader(listener.fileno())
        self.loop.call_later(pause_s, self._accept_again, listener, at)

    def _accept_again(self, listener: socket.socket, at: _ListensAt) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener.fileno(), self._accept, listener, at)

    def forget(self, connection: Connection, reason: str, is_fault: bool) -> None:
        self._connections.pop(connection, None)
        self._clients.pop(connection, None)
        self._replicas.forget(connection)
        self._readers.forget(connection)
        self._places.forget(connection)
        self._handshakes.forget(connection)
        self.logins.forget(connection)
        self.quotas.forget(connection)
        self.stats.connections = len(self._connections)
        if is_fault:
            self.stats.closed_for_fault += 1
            self._lines.warning("connection closed", peer=connection.info.peer, reason=reason)
        else:
            log.debug("connection closed", peer=connection.info.peer, reason=reason)

    def _end_old_rights(self) -> None:
        """Close the connections of clients while the rules may be older than they may be. Nodes stay connected."""
        age_ms = self._metadata_age_ms() if self._most_age_ms else 0
        has_old = age_ms > self._most_age_ms
        if has_old != self._has_old_rights:
            self._has_old_rights = has_old
            say = log.warning if has_old else log.info
            what = "clients are turned away: the meta service is not heard of, and rules may have changed"
            say(what if has_old else "clients are served again", metadata_age_ms=age_ms, most_ms=self._most_age_ms)
        if has_old:
            for connection in [*self._connections]:
                is_client = connection in self._clients or not may_be_a_node(connection.info.listener)
                if is_client and connection.info.principal.type != NODE:
                    self.stats.turned_away[TurnedAway.OLD_RIGHTS] += 1
                    connection.close(_OLD_RIGHTS)

    def _reap(self) -> None:
        """Once a second: the clock of an idle node, and connections that are slow, half-open or idle."""
        self.turn.read_clocks()
        self._end_old_rights()
        is_late = self._checks.is_late()
        if not is_late:
            for connection in self._places.overdue(self.turn.steady_ms):
                self._end_trial(connection)
            self._handshakes.end_overdue()
            self.logins.end_overdue(self.turn.steady_ms)
        has_idle = False
        is_crowded = self._places.is_crowded
        for connection in list(self._connections):
            reason = None if is_late else connection.overdue(self.turn.steady_ms, is_crowded=is_crowded)
            if reason is not None:
                connection.close(reason, is_fault=not reason.startswith("idle"))
            elif self.turn.steady_ms - connection.last_active_ms > _REAP_S * 1000:
                # After the next turn: batches of this one may still lie in the buffer.
                self.turn.free_when_idle(connection)
                has_idle = True
        self._control.unsent_answers.shed(self.turn.steady_ms)
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
        self.quotas.close()
        self._arrivals.close()
        await self._handshakes.close()
        await self._control.end()
        await self._produce.close()
        await asyncio.sleep(0)

    # Dispatch -------------------------------------------------------------------------------------------------------
    def dispatch(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        if self._places.on_trial and connection in self._places.on_trial:
            is_of_replicas = (header.api_key, header.api_version) == _OF_REPLICAS
            if not is_of_replicas or not self._replicas.handle(connection, header, frame):
                self._end_trial(connection)
            return
        api = self._apis.get(header.api_key)
        is_served = api is not None and api.min_version <= header.api_version <= api.max_version
        is_login = connection.login is not None or header.api_key in OF_LOGINS
        if is_login and self.logins.takes(connection, header, frame, is_served=is_served):
            self.turn.request()
            return
        if api is None or not is_served:
            is_of_replicas = (header.api_key, header.api_version) == _OF_REPLICAS
            # Nodes ask each other by the internal listener: whoever shows a token elsewhere is none of them.
            is_taken = is_of_replicas and connection.info.listener == INTERNAL
            if not is_taken or not self._replicas.handle(connection, header, frame):
                self._refuse_version(connection, header)
            return
        if self._has_old_rights and connection.info.principal.type != NODE:
            self.stats.turned_away[TurnedAway.OLD_RIGHTS] += 1
            connection.close(_OLD_RIGHTS)
            return
        self.turn.request()
        self._clients[connection] = header.client_id
        quotas = self.quotas
        is_counted = quotas.is_on and connection.info.principal.type == USER
        usage = connection.usage = quotas.usage_of(connection, header) if is_counted else None
        if api.key == _PRODUCE:
            if usage is None:
                self._produce.handle(connection, header, frame)
            else:
                self._produce_counted(connection, usage, header, frame)
        elif api.key == _FETCH:
            fetch = PendingFetch(self._fetches, connection, header)
            connection.expect_answer(fetch)
            fetch.start(frame)
        else:
            self._control.handle(connection, api, header, frame)

    def _produce_counted(
        self, connection: Connection, usage: ClientUsage, header: RequestHeader, frame: memoryview
    ) -> None:
        """Of a client with quotas. It is muted before its answer is made, which says for how long."""
        self.quotas.received(connection, usage, len(frame))
        begin_ns = perf_counter_ns()
        self._produce.handle(connection, header, frame)
        self.quotas.worked(connection, usage, perf_counter_ns() - begin_ns)

    def _refuse_version(self, connection: Connection, header: RequestHeader) -> None:
        if header.api_key != _API_VERSIONS:
            self.stats.turned_away[TurnedAway.OTHER_PROTOCOL] += 1
            connection.close(
                f"key {header.api_key} v{header.api_version} from {header.client_id!r} is not served "
                "(ApiVersions says what is)",
                is_fault=True,
            )
            return
        answer = Answer()
        answer.buffers = [fallback_response(self._advertised, header.correlation_id)]
        connection.expect_answer(answer)
        connection.answer_ready()
        self.turn.request()


def data_apis() -> list[Api]:
    """Produce, Fetch and logins: served by the connection itself. Produce is advertised from 0 although 0-2 are
    refused, because older librdkafka turns compression off otherwise (trap 1 of docs/kafka.md). SaslHandshake is
    advertised from 0 although 0 is refused, because librdkafka 2.0 does not log in otherwise."""
    return [
        Api(_PRODUCE, "Produce", 3, 11, None, advertised_min=0, needs=PRODUCE_NEEDS),
        Api(_FETCH, "Fetch", 4, 12, None, needs=FETCH_NEEDS),
        *(Api(key, name, *VERSIONS[key], None, advertised_min=0, needs=()) for key, name in OF_LOGINS.items()),
    ]
