"""One other node: a connection to it while anything is asked of it, and the rounds over that.

What is asked is gathered within a turn of the loop and sent at its end. A connection that ends is made anew, after ever
longer pauses; a round that is not answered in time ends its connection. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import (
    ReplicaFetch,
    SegmentAnswer,
    SegmentAsk,
    decode_replica_answer,
    encode_replica_fetch,
)
from stratalog.machines.fetch_rounds import (
    FetchRounds,
    RoundAnswered,
    SegmentName,
    SegmentUnwanted,
    SegmentWanted,
    SessionLost,
    TurnEnded,
)
from stratalog.machines.token_bucket import TokenBucket
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.replication.peer_protocol import PeerProtocol
from stratalog_node.replication.stats import ReplicationStats

log = logger(__name__)

_CONNECT_S = 3.0
_ANSWER_S = 5.0
"""Beyond what a round may be held."""
_ROUND_BYTES = 8 << 20
_SEGMENT_BYTES = 1 << 20
_MAX_WAIT_MS = 500
_CATCH_UP_S = 0.05
"""How often who waits for its share of catching up looks again."""
_SESSION_ENDED = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


@dataclass(frozen=True, slots=True)
class Asker:
    """This node's present life, as its peers know it."""

    node_id: int
    token: int


class Peer:
    def __init__(
        self,
        node_id: int,
        asker: Asker,
        address: Callable[[], tuple[str, int] | None],
        take: Callable[[int, SegmentAnswer[memoryview]], None],
        lost: Callable[[int], None],
        catch_up: TokenBucket,
        stats: ReplicationStats,
        steady_ms: Callable[[], int],
        largest_batch_bytes: int,
    ) -> None:
        """`take` is given each segment's answer, whose bytes are good until it returns; `lost` hears that what was
        asked may not be answered."""
        self.node_id = node_id
        self._asker = asker
        self._address = address
        self._take = take
        self._lost = lost
        self._stats = stats
        self._steady_ms = steady_ms
        self._most_bytes = _ROUND_BYTES + largest_batch_bytes + (1 << 20)
        self._rounds = FetchRounds(catch_up)
        self._loop = asyncio.get_running_loop()
        self._protocol: PeerProtocol | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._is_due = False
        self._deadline: asyncio.TimerHandle | None = None
        self._correlation_id = 0

    # What is asked --------------------------------------------------------------------------------------------------
    def want(self, name: SegmentName, offset: int, *, is_throttled: bool) -> None:
        self._rounds.step(SegmentWanted(name, offset, is_throttled), self._steady_ms())
        self.soon()

    def unwant(self, name: SegmentName) -> None:
        self._rounds.step(SegmentUnwanted(name), self._steady_ms())
        self.soon()

    def soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        if self._protocol is None:
            if self._task is None and self._rounds.has_wants:
                self._task = self._loop.create_task(self._stay_connected())
            return
        for round_ in self._rounds.step(TurnEnded(), self._steady_ms()):
            self._correlation_id += 1
            request = ReplicaFetch(
                self._asker.node_id,
                self._asker.token,
                _MAX_WAIT_MS,
                _ROUND_BYTES,
                round_.session_id,
                round_.session_epoch,
                [SegmentAsk(*name, offset, _SEGMENT_BYTES) for name, offset in round_.asks],
                list(round_.forgotten),
            )
            frame = encode_replica_fetch(self._correlation_id, f"node-{self._asker.node_id}", request)
            self._protocol.send(frame)
            self._await_answer()
        if self._rounds.waits_for_room:
            self._loop.call_later(_CATCH_UP_S, self.soon)

    def _await_answer(self) -> None:
        if self._deadline is None and self._protocol is not None:
            patience_s = _MAX_WAIT_MS / 1000 + _ANSWER_S
            reason = f"no answer within {patience_s} s"
            self._deadline = self._loop.call_later(patience_s, self._protocol.close, reason)

    # The connection -------------------------------------------------------------------------------------------------
    async def _stay_connected(self) -> None:
        backoff = Backoff()
        while self._rounds.has_wants:
            if await self._connect():
                self.soon()
                rounds = self._stats.rounds
                await self._ended.wait()
                if self._stats.rounds != rounds:
                    backoff = Backoff()
            self._lost(self.node_id)
            await backoff.pause()
        self._task = None

    async def _connect(self) -> bool:
        address = self._address()
        if address is None:
            return False
        self._ended.clear()
        protocol = PeerProtocol(self._most_bytes, self._answered, self._connection_lost)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._loop.create_connection(lambda: protocol, *address)
        except OSError as error:  # a timeout is one
            self._stats.connections_lost += 1
            log.debug("another node cannot be reached", node=self.node_id, error=str(error))
            return False
        if self._ended.is_set():
            return False
        self._protocol = protocol
        return True

    def _connection_lost(self, reason: str) -> None:
        self._protocol = None
        self._end_patience()
        self._rounds.step(SessionLost(), self._steady_ms())
        self._stats.connections_lost += 1
        self._ended.set()
        log.info("connection to another node ended", node=self.node_id, reason=reason)

    def _end_patience(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _answered(self, frame: memoryview) -> None:
        _, answer = decode_replica_answer(frame)
        self._end_patience()
        if answer.error_code in _SESSION_ENDED:
            self._rounds.step(SessionLost(), self._steady_ms())
            self.soon()
            return
        if answer.error_code:
            # It does not know this life yet, or a later one began: ask again, less often.
            protocol = self._protocol
            if protocol is not None:
                protocol.close(f"error {answer.error_code}: the peer does not take this node's token")
            return
        self._stats.rounds += 1
        told, refused = [], []
        for segment in answer.segments:
            name = SegmentName(*segment[:3])
            if segment.error_code:
                refused.append(name)
            elif segment.records_bytes:
                told.append((name, segment.records_bytes))
        event = RoundAnswered(answer.session_id, tuple(told), tuple(refused))
        self._rounds.step(event, self._steady_ms())
        for segment in answer.segments:
            self._take(self.node_id, segment)
        if self._rounds.in_flight:
            self._await_answer()
        self.soon()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._protocol is not None:
            self._protocol.close("this node stops following it")
        self._end_patience()
