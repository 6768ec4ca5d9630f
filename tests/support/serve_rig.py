"""The real Kafka server over the shards of a `ShardRig`, and clients at the other end of a socket pair."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from typing import Any, cast

from stratalog_node.serve.api import control_apis
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.context import ConnectionInfo, NodeServices
from stratalog_node.serve.connections.control_state import ControlState
from stratalog_node.serve.connections.registry import Registry
from stratalog_node.serve.server import KafkaServer, data_apis
from stratalog_node.topic_changes import TopicChanges
from support import kafka_oracle
from support.no_groups import NoGroups
from support.raw_client import FETCH_VERSION, PRODUCE_VERSION, Fetched, Produced, RawClient
from support.shard_rig import NODE_ID, ShardRig
from support.waiting import eventually

_BY_PAIR = ConnectionInfo("pair:1", "localhost", 9092)


class WireClient(RawClient):
    """A client that does not block the loop; `RawClient`'s frames, awaited I/O."""

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.connection = connection
        self._correlation_ids = itertools.count(1)

    async def write(self, data: bytes, timeout: float = 60.0) -> None:
        """A node that does not read on takes only what fits into the buffers of the sockets, and then this waits."""
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def read_frame(self, timeout: float = 10.0) -> bytes:
        async with asyncio.timeout(timeout):
            head = await self._exactly(4)
            (size,) = struct.unpack(">i", head)
            return head + await self._exactly(size)

    async def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = await asyncio.get_running_loop().sock_recv(self.socket, min(count, 1 << 20))
            if not part:
                raise ConnectionError("closed by the node")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    async def is_closed(self) -> bool:
        """Whether the node closes the connection soon; what it still sends is passed over."""
        try:
            async with asyncio.timeout(10):
                while await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20):
                    pass
        except ConnectionError:
            pass
        return True

    async def produced(self) -> Produced:
        (answer,) = await self.produced_all()
        return answer

    async def produced_all(self) -> list[Produced]:
        answer = kafka_oracle.decode_response(0, PRODUCE_VERSION, await self.read_frame())
        return [
            Produced(result.error_code, result.base_offset, result.log_append_time_ms, result.error_message)
            for topic in answer.responses
            for result in topic.partition_responses
        ]

    async def fetched(self) -> list[Fetched]:
        answer = kafka_oracle.decode_response(1, FETCH_VERSION, await self.read_frame())
        return [
            Fetched(result.error_code, result.high_watermark, result.log_start_offset, bytes(result.records or b""))
            for topic in answer.responses
            for result in topic.partitions
        ]

    def produce_many(self, batches: list[tuple[str, int, bytes]], *, acks: int = -1, timeout_ms: int = 10_000) -> bytes:
        """One request with (topic, partition, batch) entries in this order."""
        request = kafka_oracle.request_class(0)
        topic_data = request.TopicProduceData
        topics = []
        for name, entries in itertools.groupby(batches, key=lambda entry: entry[0]):
            partitions = [
                topic_data.PartitionProduceData(version=PRODUCE_VERSION, index=index, records=batch)
                for _, index, batch in entries
            ]
            topics.append(topic_data(version=PRODUCE_VERSION, name=name, partition_data=partitions))
        return self.frame(
            0, PRODUCE_VERSION, transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=topics
        )

    def close(self) -> None:
        self.socket.close()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        return listener.accept()[0], theirs


class ServeRig(ShardRig):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.server: KafkaServer
        self._clients: list[WireClient] = []

    async def start(self) -> None:
        await super().start()
        registry = Registry([*data_apis(), *control_apis()])
        services = NodeServices(
            NODE_ID,
            self.context.cluster_id,
            self.settings,
            cast(Any, self.meta),
            self.catalog,
            self.shards,
            self.local.disk,
            cast(Any, NoGroups()),
            TopicChanges(cast(Any, self.meta), self.settings),
            ControlState(registry.advertised()),
        )
        self.server = KafkaServer(
            services, self.shards, registry, self.turn, self.pool, self.reader, most_connections=100_000
        )
        self.server._reap()

    async def _end_tasks(self) -> None:
        await self.server.close()
        for client in self._clients:
            client.close()
        self._clients.clear()
        await super()._end_tasks()

    def connect(
        self,
        *,
        send_buffer: int | None = None,
        receive_buffer: int | None = None,
        is_tcp: bool = False,
        info: ConnectionInfo = _BY_PAIR,
    ) -> WireClient:
        """`is_tcp`: over loopback, whose buffers take megabytes at once, as those of a socket pair do not."""
        ours, theirs = _tcp_pair() if is_tcp else socket.socketpair()
        if send_buffer is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        if receive_buffer is not None:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        ours.setblocking(False)
        connection = self.server.connection(ours, info)
        self.server._connections[connection] = None
        connection.open()
        client = WireClient(theirs, connection)
        self._clients.append(client)
        return client

    async def nothing_is_held(self) -> None:
        """Every buffer, grant, pin, timer and place in a line was given back."""
        await eventually(lambda: not self._held(), timeout=5)

    def _held(self) -> dict[str, Any]:
        held: dict[str, Any] = {
            "lent buffers": self.pool.lent_bytes,
            "budget": self.server.budget.used_bytes,
            "waiting for budget": self.server.budget.waiting_count,
            "outstanding reads": self.reader.outstanding_bytes,
            "outstanding slices": self.reader.outstanding_slices,
            "pins": [str(file.path) for file in self.context.descriptors._open if file.pins],
            "waiters": [shard.key for shard in self.shards.all() if shard.waiters],
            "waiting answers": [shard.key for shard in self.shards.all() if shard.chain.waiting_count],
        }
        return {name: what for name, what in held.items() if what}
