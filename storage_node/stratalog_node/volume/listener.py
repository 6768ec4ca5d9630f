"""Serves the data in a retired node's directory to other nodes: Fetch without a session, as replicas speak it.

A client must show the token of its node's life, which only nodes know, and where nodes have certificates, its node's;
connections of Kafka clients are closed. Until a
connection has shown a token it is on trial: for `TRIAL_S` at most, and among `MOST_ON_TRIAL` at most; the oldest one on
trial makes way. So connections without a token cannot keep a node out.
The questions of a connection are answered one after another. Lives on the event loop.
Memory: one answer for each connection, whose number is limited.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from stratalog.event_loop.patience import TimedChecks
from stratalog.event_loop.task_set import TaskSet
from stratalog.event_loop.tls_handshakes import PortWords
from stratalog.event_loop.tls_sessions import ServerContext
from stratalog.event_loop.tls_transports import Arrival, TlsTransports
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import decode_request_header
from stratalog.kafka.replica_fetch import (
    FETCH,
    NO_SESSION,
    VERSION,
    ReplicaFetch,
    SegmentAnswer,
    SegmentAsk,
    decode_replica_fetch,
    encode_replica_answer,
)
from stratalog.machines.rights.members import may_replicate
from stratalog.model.rights import Principal
from stratalog.telemetry.bounded_lines import BoundedLines
from stratalog.telemetry.logs import logger
from stratalog_node.volume.sealed_files import VolumeStats

log = logger(__name__)

_SIZE_BYTES = 4
_MOST_REQUEST_BYTES = 64 << 10
_MOST_SEGMENTS = 16
_MOST_CONNECTIONS = 1_024
"""Limit for connections of nodes."""
MOST_ON_TRIAL = 64
TRIAL_S = 5.0
FAREWELL_S = 5.0
_CHECK_EVERY_S = 1.0
_ACCEPT_RETRY_S = 0.5
_WORDS = PortWords("set security.inter.broker.protocol=SSL there", "security.inter.broker.protocol=SSL")


class VolumeListener:
    def __init__(
        self,
        answer: Callable[[SegmentAsk], Awaitable[SegmentAnswer[bytes]]],
        is_node: Callable[[int, int], bool],
        stats: VolumeStats,
    ) -> None:
        """`is_node`: whether this is the token of that node's present life."""
        self._lines = BoundedLines(
            log,
            lambda: int(1_000 * asyncio.get_running_loop().time()),
            "stratalog_volume_turned_away_total counts those that are turned away by reason",
        )
        self._answer = answer
        self._is_node = is_node
        self._stats = stats
        self._connections = TaskSet()
        self._on_trial: dict[asyncio.StreamWriter, float] = {}
        """Oldest first, with the time until which each must show a token."""
        self._checking: asyncio.TimerHandle | None = None
        """While there are any on trial."""
        self._checks = TimedChecks(asyncio.get_running_loop().time, _CHECK_EVERY_S)
        self._server: asyncio.Server | None = None
        self._tasks = TaskSet()
        self._arrivals: dict[asyncio.BaseProtocol, Arrival] = {}
        """Their handshakes are under way."""
        self._transports: TlsTransports | None = None
        """None: plain text."""
        self._principal_of: Callable[[bytes], Principal | None] | None = None
        """None: nodes show tokens alone."""
        self._is_closed = False

    async def open(
        self,
        listening: socket.socket,
        tls: Callable[[], ServerContext] | None = None,
        principal_of: Callable[[bytes], Principal | None] = lambda certificate: None,
    ) -> None:
        """`tls`: what the next connection speaks TLS with; `principal_of`: the principal that its
        certificate (DER) proves."""
        # What is accepted inherits it: a node whose machine is gone says nothing, and would keep its place.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if tls is None:
            self._server = await asyncio.start_server(self._accept, sock=listening, limit=_MOST_REQUEST_BYTES)
        else:
            self._principal_of = principal_of
            listening.setblocking(False)
            listening.listen(MOST_ON_TRIAL)
            transports = TlsTransports(
                self._stats,
                _WORDS,
                shutdown_timeout_s=TRIAL_S,
                most_at_once=MOST_ON_TRIAL,
                timeout_ms=int(TRIAL_S * 1_000),
            )
            self._transports = transports
            self._tasks.start(self._accept_with_tls(listening, tls, transports))

    async def _accept_with_tls(
        self, listening: socket.socket, tls: Callable[[], ServerContext], transports: TlsTransports
    ) -> None:
        """A server of asyncio would show the certificate of its start forever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:
                log.error("cannot accept connections now", error=error.strerror, retry_s=_ACCEPT_RETRY_S)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            self._shake_hands(sock, str(address[0]), tls(), transports)

    def _shake_hands(
        self, sock: socket.socket, peer_ip: str, context: ServerContext, transports: TlsTransports
    ) -> None:
        reader = asyncio.StreamReader(limit=_MOST_REQUEST_BYTES)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._arrivals.pop(protocol, None)
            self._accept(reader, writer)

        def failed(reason: str) -> None:
            self._arrivals.pop(protocol, None)
            self._lines.info("no handshake of TLS", peer=peer_ip, error=reason)

        protocol = asyncio.StreamReaderProtocol(reader, accept)
        self._arrivals[protocol] = transports.begin(sock, context, peer_ip, protocol, failed)

    async def close(self) -> None:
        self._is_closed = True
        if self._checking is not None:
            self._checking.cancel()
        await self._tasks.cancel()
        for arrival in list(self._arrivals.values()):
            arrival.close("the process is stopping")
        if self._transports is not None:
            await self._transports.close()
        if self._server is not None:
            self._server.close()
        await self._connections.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed or len(self._connections) - len(self._on_trial) >= _MOST_CONNECTIONS:
            self._stats.turned_away[TurnedAway.FULL] += 1
            writer.close()
            return
        loop = asyncio.get_running_loop()
        self._on_trial[writer] = loop.time() + TRIAL_S
        if len(self._on_trial) > MOST_ON_TRIAL:
            self._end_trial(next(iter(self._on_trial)))
        if self._checking is None:
            self._checks = TimedChecks(loop.time, _CHECK_EVERY_S)
            self._checking = loop.call_later(_CHECK_EVERY_S, self._check_trials)
        self._connections.start(self._serve(reader, writer))

    def _check_trials(self) -> None:
        """End the trials that are over, unless what their clients sent may be unread."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [] if self._checks.is_late() else [one for one, until in self._on_trial.items() if until <= now]
        for writer in late:
            self._end_trial(writer)
        self._checking = loop.call_later(_CHECK_EVERY_S, self._check_trials) if self._on_trial else None

    def _end_trial(self, writer: asyncio.StreamWriter) -> None:
        """Unless it has shown a token."""
        if writer in self._on_trial:
            del self._on_trial[writer]
            self._stats.turned_away[TurnedAway.TRIAL] += 1
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stats.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(_SIZE_BYTES), "big", signed=True)
                if not 0 < size <= _MOST_REQUEST_BYTES:
                    raise MalformedFrame(f"a request of {size} bytes")
                writer.writelines(await self._answered(memoryview(await reader.readexactly(size)), writer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except MalformedFrame as error:
            self._stats.turned_away[TurnedAway.OTHER_PROTOCOL] += 1
            self._lines.info("a connection is closed", peer=str(writer.get_extra_info("peername")), error=str(error))
        except OSError as error:  # of TLS, too: what came could not be decrypted, or was too much without any data
            self._lines.info("a connection is closed", peer=str(writer.get_extra_info("peername")), error=str(error))
        except Exception:  # a fault costs one connection, not the process (F48)
            log.exception("a read for another node failed")
        finally:
            self._stats.connections -= 1
            self._on_trial.pop(writer, None)
            await self._end(writer)

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        """What it was answered may still be on its way, for `FAREWELL_S` at most."""
        writer.close()
        try:
            async with asyncio.timeout(FAREWELL_S):
                await writer.wait_closed()
        except OSError:  # a TimeoutError among them
            pass
        finally:
            writer.transport.abort()

    async def _answered(self, frame: memoryview, writer: asyncio.StreamWriter) -> list[bytes]:
        """Raises: MalformedFrame for what no node asks here."""
        header = decode_request_header(frame)
        if (header.api_key, header.api_version) != (FETCH, VERSION):
            raise MalformedFrame(
                f"request {header.api_key} version {header.api_version}: this is a retired node's directory, which "
                "other nodes read; clients ask them"
            )
        request = decode_replica_fetch(frame, header.body_position, _MOST_SEGMENTS)
        if not request.is_sealed_read:
            raise MalformedFrame("a follower: nothing is written here, so there is nothing to follow")
        code, answers = await self._answers(request, writer)
        return encode_replica_answer(header.correlation_id, code, NO_SESSION, answers)

    async def _answers(
        self, request: ReplicaFetch, writer: asyncio.StreamWriter
    ) -> tuple[int, list[SegmentAnswer[bytes]]]:
        if not self._is_node(request.replica_id, request.token):
            return ErrorCode.BROKER_ID_NOT_REGISTERED, []  # perhaps it registered a moment ago: it asks again
        if not self._is_certain(request.replica_id, writer):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, []
        self._on_trial.pop(writer, None)
        return 0, [await self._answer(ask) for ask in request.asks[:1]]

    def _is_certain(self, replica_id: int, writer: asyncio.StreamWriter) -> bool:
        if self._principal_of is None:
            return True
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        principal = self._principal_of(certificate or b"")
        return principal is not None and may_replicate(principal, replica_id)
