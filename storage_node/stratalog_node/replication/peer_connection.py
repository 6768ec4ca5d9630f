"""A connection to another node for questions beside replication: many at a time, answered in their order.

It begins by showing this node's token, whatever is asked first: when clients have used up the other node's connections,
it accepts only those of nodes (`serve/connections/connection_places.py`), and a question that any client may ask does
not show the token. It is opened for the first question, and kept until the other end closes it. It is closed when it is
silent while an answer is due, because all later answers would wait as well. An answer that arrives slowly is not
interrupted; the next reads ask for less. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.log_ends import decode_ends_answer, encode_ends_request
from stratalog.kafka.replica_fetch import FINAL_EPOCH, NO_SESSION, ReplicaFetch, SegmentAsk, encode_replica_fetch
from stratalog.machines.reading.answer_size import AnswerSize
from stratalog.model.errors import Unavailable
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.peer_protocol import PeerProtocol

CONNECT_S = 1.0
_TOKEN_SHOWN: Final = 0
"""The correlation id of the request that asks for nothing: no question has it."""


class PeerConnection:
    def __init__(
        self, node_id: int, asker: Asker, address: Callable[[], tuple[str, int] | None], most_bytes: int
    ) -> None:
        """`most_bytes`: of one answer."""
        self._node_id = node_id
        self._asker = asker
        self._address = address
        self._most_bytes = most_bytes
        self._size = AnswerSize(most_bytes)
        self._protocol: PeerProtocol | None = None
        self._is_ended = False
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._correlation_id = 0

    async def ask(self, ask: SegmentAsk, timeout_s: float) -> bytes:
        """The answer's frame, without its size; of at most as many bytes as the link carries in about a second.
        `timeout_s`: how long nothing may come. Raises: Unavailable."""
        ask = ask._replace(max_bytes=min(ask.max_bytes, self._size.size_bytes))
        request = ReplicaFetch(self._asker.node_id, self._asker.token, 0, ask.max_bytes, NO_SESSION, FINAL_EPOCH, [ask])
        return await self._send(lambda number, client: encode_replica_fetch(number, client, request), timeout_s)

    async def ask_ends(self, asked: Mapping[str, Sequence[int]], timeout_s: float) -> dict[tuple[str, int], int]:
        """The ends of these shards, topic -> shards; those that the node does not lead are left out.
        Raises: Unavailable."""
        frame = await self._send(lambda number, client: encode_ends_request(number, client, asked), timeout_s)
        try:
            return decode_ends_answer(frame)
        except MalformedFrame as error:
            raise Unavailable(f"node {self._node_id}: {error}") from error

    async def _send(self, encode: Callable[[int, str], bytes], timeout_s: float) -> bytes:
        """`encode` makes the request, with its size, of a correlation id and a client's name."""
        protocol = await self._connected()
        self._correlation_id = number = self._correlation_id + 1
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        protocol.send(encode(number, f"node-{self._asker.node_id}"))
        left_s = timeout_s
        try:
            while left_s > 0:
                await asyncio.wait((answered,), timeout=left_s)
                if answered.done():
                    return answered.result()
                left_s = timeout_s - protocol.silent_ms / 1_000
            protocol.close(f"nothing came for {timeout_s} s while an answer was due")
            raise Unavailable(f"node {self._node_id} sent nothing for {timeout_s} s while an answer was due")
        finally:
            self._waiting.pop(number, None)
            answered.cancel()

    async def _connected(self) -> PeerProtocol:
        async with self._connecting:
            if self._protocol is not None:
                return self._protocol
            address = self._address()
            if address is None:
                raise Unavailable(f"node {self._node_id} has no address yet")
            self._is_ended = False
            protocol = PeerProtocol(self._most_bytes, self._answered, self._lost)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._asker.connect(protocol, self._node_id, address)
            except Exception as error:  # an OSError, or another: what was registered as an address may be none (F48)
                why = str(error) or type(error).__name__
                raise Unavailable(f"node {self._node_id} cannot be reached: {why}") from error
            if self._is_ended:
                raise Unavailable(f"node {self._node_id} closes the connection at once")
            self._protocol = protocol
            token = ReplicaFetch(self._asker.node_id, self._asker.token, 0, 0, NO_SESSION, FINAL_EPOCH, [])
            protocol.send(encode_replica_fetch(_TOKEN_SHOWN, f"node-{self._asker.node_id}", token))
            return protocol

    def _answered(self, frame: memoryview) -> None:
        number = int.from_bytes(frame[:4], "big", signed=True)
        if self._protocol is not None and number != _TOKEN_SHOWN:
            self._size.answered(len(frame), self._protocol.answer_ms)
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(bytes(frame))  # the buffer is used again

    def _lost(self, reason: str) -> None:
        self._protocol, self._is_ended = None, True
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(Unavailable(f"the connection to node {self._node_id} ended: {reason}"))

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close("this node stops")
