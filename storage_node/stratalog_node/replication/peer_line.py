"""A connection to another node for reads of sealed segments: many questions at a time, answered in their order.

Made when something is asked, and kept until the other end closes it. An answer that does not come in time ends it, for
all that come behind it would wait as well. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratalog.kafka.replica_fetch import FINAL_EPOCH, NO_SESSION, ReplicaFetch, SegmentAsk, encode_replica_fetch
from stratalog.model.errors import Unavailable
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.peer_protocol import PeerProtocol

CONNECT_S = 1.0


class PeerLine:
    def __init__(
        self, node_id: int, asker: Asker, address: Callable[[], tuple[str, int] | None], most_bytes: int
    ) -> None:
        """`most_bytes`: of one answer."""
        self._node_id = node_id
        self._asker = asker
        self._address = address
        self._most_bytes = most_bytes
        self._protocol: PeerProtocol | None = None
        self._is_ended = False
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._correlation_id = 0

    async def ask(self, ask: SegmentAsk, timeout_s: float) -> bytes:
        """The answer's frame, without its size. Raises: Unavailable."""
        protocol = await self._connected()
        self._correlation_id = number = self._correlation_id + 1
        request = ReplicaFetch(self._asker.node_id, self._asker.token, 0, ask.max_bytes, NO_SESSION, FINAL_EPOCH, [ask])
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        protocol.send(encode_replica_fetch(number, f"node-{self._asker.node_id}", request))
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            protocol.close(f"no answer within {timeout_s} s")
            raise Unavailable(f"node {self._node_id} did not answer within {timeout_s} s") from None
        finally:
            self._waiting.pop(number, None)

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
                    await asyncio.get_running_loop().create_connection(lambda: protocol, *address)
            except Exception as error:  # an OSError, or another: what was registered as an address may be none (F48)
                why = str(error) or type(error).__name__
                raise Unavailable(f"node {self._node_id} cannot be reached: {why}") from error
            if self._is_ended:
                raise Unavailable(f"node {self._node_id} closes the connection at once")
            self._protocol = protocol
            return protocol

    def _answered(self, frame: memoryview) -> None:
        waiting = self._waiting.get(int.from_bytes(frame[:4], "big", signed=True))
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
