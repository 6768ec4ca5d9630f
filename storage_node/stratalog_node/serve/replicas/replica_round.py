"""One fetch round of a follower until it is answered: held until something moved, or the next round came.

Data that is not in the page cache is read beside the rounds (`replica_cold_reads.py`). Lives on the event loop.
"""

from __future__ import annotations

import asyncio

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import ReplicaFetch, SegmentAnswer
from stratalog.machines.following.fetch_rounds import SegmentName
from stratalog.telemetry.logs import logger
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.fetching.fetch_scheduler import FetchScheduler
from stratalog_node.serve.replicas.replica_answer import ReplicaAnswer
from stratalog_node.serve.replicas.replica_cold_reads import SEGMENT_BYTES, Found
from stratalog_node.serve.replicas.replica_session import ReplicaSession
from stratalog_node.shards.copies.local_copy import NotCached
from stratalog_node.shards.read.reading import ReadBuffer

log = logger(__name__)

_LOOKS = 500
"""Segments that one check of a round covers: 2 ms."""


class ReplicaRound(ReplicaAnswer):
    __slots__ = (
        "_is_done",
        "_is_overdue",
        "_is_queued",
        "_request",
        "_scheduler",
        "_session",
        "_timer",
    )

    def __init__(
        self, scheduler: FetchScheduler, connection: Connection, correlation_id: int, request: ReplicaFetch
    ) -> None:
        super().__init__(connection, correlation_id)
        self._scheduler = scheduler
        self._request = request
        self._session: ReplicaSession | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_done = False
        self._is_overdue = request.max_wait_ms <= 0
        self._is_queued = False

    @property
    def weight(self) -> int:
        """The cost of one check, in partitions."""
        return 1 + (len(self._session.asked) if self._session is not None and self._timer is None else 1)

    def begin(self, session: ReplicaSession) -> None:
        """Look at what it names, after all that came in this turn."""
        self._session = session
        self.collect_soon()

    def collect_soon(self) -> None:
        if not self._is_queued and not self._is_done:
            self._is_queued = True
            self._scheduler.retry(self)

    def retry(self) -> None:
        self._is_queued = False
        if not self._is_done:
            self._collect()

    def fail(self, error: Exception) -> None:
        log.error("a follower's fetch failed", peer=self._connection.info.peer, error=str(error), exc_info=error)
        self._connection.close(f"Fetch failed: {error}")

    # Looking --------------------------------------------------------------------------------------------------------
    def _collect(self) -> None:
        session = self._session
        assert session is not None
        asked, reader = session.asked, self._scheduler.reader
        left = reader.room_bytes(min(self._request.max_bytes, self._scheduler.limits.fetch_max_bytes))
        answers: list[SegmentAnswer[ReadBuffer]] = []
        postponed: list[SegmentName] = []
        for name in asked.take_ready(_LOOKS):
            if left <= 0:
                postponed.append(name)
                continue
            found = session.find(name)
            if not isinstance(found, Found):
                session.cold.forget(name)
                if found is not None:
                    answers.append(found)
                continue
            read = session.cold.take_result(name, found.offset)
            if isinstance(read, ErrorCode):
                answers.append(session.refuse_unreadable(name, read))
                continue
            if read is None:
                try:
                    most = min(left, SEGMENT_BYTES)
                    read = reader.read_hot(found.shard, found.offset, most, for_socket=True, where=found.where)
                except NotCached:
                    session.cold.ask(name, found)
                    continue
            self._reads.append(read)
            left -= read.size_bytes
            answers.append(session.answer(name, found, read.buffers, read.size_bytes))
        if postponed:
            asked.put_back(postponed)
        if answers:
            self.finish(answers)
        elif asked.has_ready:
            self.collect_soon()
        elif self._is_overdue:
            self.finish()
        elif self._timer is None:
            self._timer = self._scheduler.loop.call_later(self._request.max_wait_ms / 1000, self._expire)

    # Answering ------------------------------------------------------------------------------------------------------
    def _expire(self) -> None:
        """Nothing moved, but perhaps what is committed."""
        self._is_overdue = True
        self.finish()
        self._scheduler.turn.request()

    def end(self) -> None:
        """The next round came: what this one waits for is that one's."""
        self.finish()

    def finish(self, answers: list[SegmentAnswer[ReadBuffer]] | None = None, *, error_code: int = 0) -> None:
        if self._is_done:
            return
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        session = self._session
        answered = [*(answers or ()), *(session.high_watermarks() if session is not None else ())]
        session_id = session.asked.session_id if session is not None else 0
        self._scheduler.stats.fetch_requests += 1
        self._send(answered, error_code, session_id)

    def _abandon(self) -> None:
        """The connection is gone."""
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        super()._abandon()
