"""The answer to a fetch of another node: holds what was read for it until it was sent, or its connection is gone.

Lives on the event loop.
"""

from __future__ import annotations

from stratalog.kafka.replica_fetch import SegmentAnswer, encode_replica_answer
from stratalog_node.serve.connections.answer import Answer
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.shards.read.reading import Read, ReadBuffer


class ReplicaAnswer(Answer):
    __slots__ = ("_connection", "_correlation_id", "_reads")

    def __init__(self, connection: Connection, correlation_id: int) -> None:
        super().__init__()
        self._connection = connection
        self._correlation_id = correlation_id
        self._reads: list[Read] = []
        self.release = self._abandon

    def _send(self, answers: list[SegmentAnswer[ReadBuffer]], error_code: int, session_id: int) -> None:
        self.buffers = encode_replica_answer(self._correlation_id, error_code, session_id, answers)
        self.release = self._give_back
        if self._connection.is_closed:
            self._give_back()
            return
        self._connection.hold(self, sum(map(len, self.buffers)))
        self._connection.answer_ready()

    def _give_back(self) -> None:
        reads, self._reads = self._reads, []
        for read in reads:
            read.give_back()

    def _abandon(self) -> None:
        """The connection is gone before the answer was ready."""
        self._give_back()
