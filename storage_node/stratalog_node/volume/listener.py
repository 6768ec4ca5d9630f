"""Serves the data in a retired node's directory to other nodes: Fetch without a session, as replicas speak it.

A client must show the token of its node's life, which only nodes know; connections of Kafka clients are closed. Until a
connection has shown a token it is on trial: for `TRIAL_S` at most, and among `MOST_ON_TRIAL` at most; the oldest one on
trial makes way. So connections without a token cannot keep a node out.
The questions of a connection are answered one after another. Lives on the event loop.
Memory: one answer for each connection, whose number is limited.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stratalog.event_loop.task_set import TaskSet
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


class VolumeListener:
    def __init__(
        self,
        answer: Callable[[SegmentAsk], Awaitable[SegmentAnswer[bytes]]],
        is_node: Callable[[int, int], bool],
        stats: VolumeStats,
    ) -> None:
        """`is_node`: whether this is the token of that node's present life."""
        self._answer = answer
        self._is_node = is_node
        self._stats = stats
        self._connections = TaskSet()
        self._on_trial: dict[asyncio.StreamWriter, None] = {}
        """Oldest first."""
        self._server: asyncio.Server | None = None
        self._is_closed = False

    async def open(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=_MOST_REQUEST_BYTES)

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        await self._connections.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed or len(self._connections) - len(self._on_trial) >= _MOST_CONNECTIONS:
            writer.close()
            return
        self._on_trial[writer] = None
        if len(self._on_trial) > MOST_ON_TRIAL:
            self._end_trial(next(iter(self._on_trial)))
        self._connections.start(self._serve(reader, writer))

    def _end_trial(self, writer: asyncio.StreamWriter) -> None:
        """Unless it has shown a token."""
        if writer in self._on_trial:
            del self._on_trial[writer]
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stats.connections += 1
        trial = asyncio.get_running_loop().call_later(TRIAL_S, self._end_trial, writer)
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
            log.info("a connection is closed", peer=str(writer.get_extra_info("peername")), error=str(error))
        except Exception:  # a fault costs one connection, not the process (F48)
            log.exception("a read for another node failed")
        finally:
            self._stats.connections -= 1
            trial.cancel()
            self._on_trial.pop(writer, None)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

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
        self._on_trial.pop(writer, None)
        return 0, [await self._answer(ask) for ask in request.asks[:1]]
