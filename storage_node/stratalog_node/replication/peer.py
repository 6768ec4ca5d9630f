"""The connection to one other node while anything is requested from it, and the fetch rounds over it.

Requests are gathered within a turn of the loop and sent at its end. A lost connection is opened again after increasing
pauses. A connection that is silent while a round waits for its answer is closed. An answer that arrives slowly is not
interrupted, and the rounds behind it ask for less (`machines/reading/answer_size.py`). Lives on the event loop.

A faulty peer can end only its own connection, and cannot cause requests without a pause: there is one answer for each
round, in order, naming no more segments than were requested, and an immediate answer without data delays the next
round.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.replica_fetch import (
    ReplicaAnswer,
    ReplicaFetch,
    SegmentAnswer,
    SegmentAsk,
    decode_replica_answer,
    encode_replica_fetch,
)
from stratalog.machines.backoff import longest_pause
from stratalog.machines.following.fetch_rounds import (
    FetchRounds,
    RoundAnswered,
    SegmentName,
    SegmentUnwanted,
    SegmentWanted,
    SessionLost,
    TurnEnded,
    segment_name,
)
from stratalog.machines.reading.answer_size import AnswerSize
from stratalog.machines.token_bucket import TokenBucket
from stratalog.model.batch import LARGEST_BATCH_BYTES
from stratalog.model.errors import Unavailable
from stratalog.telemetry.logs import logger
from stratalog.tls.outgoing import why_no_tls
from stratalog_node.backoff import Backoff
from stratalog_node.replication.dial_pace import DialPace
from stratalog_node.replication.peer_protocol import PeerProtocol
from stratalog_node.replication.stats import ReplicationStats

log = logger(__name__)

_CONNECT_S = 3.0
_ANSWER_S = 5.0
"""Beyond what a round may be held."""
_ROUND_BYTES = 8 << 20
_MOST_BYTES = _ROUND_BYTES + (1 << 20) + LARGEST_BATCH_BYTES
"""Limit for one answer: names, the requested batches, and one batch beyond them. The first batch is sent whatever its
size, and it may be larger than this node's own `socket.request.max.bytes`: while that is changed node by node, other
nodes have another value. So this limit must not depend on it, or one such batch would block all requests to that
node."""
_SEGMENT_BYTES = 1 << 20
_MAX_WAIT_MS = 500
_CATCH_UP_S = 0.05
"""How often a request that waits for its share of catch-up bandwidth checks again."""
_VAIN_S = 0.02
_LONGEST_VAIN_S = 1.0
_SESSION_ENDED = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


@dataclass(frozen=True, slots=True)
class Asker:
    """This node's present life, as its peers know it."""

    node_id: int
    token: int
    tls: Callable[[int], ssl.SSLContext] | None = None
    """What the next connection to a node speaks TLS with, which that node alone passes; None: plain text."""
    pace: DialPace = field(default_factory=DialPace)
    """Of connections with TLS."""

    async def connect(self, protocol: PeerProtocol, node_id: int, address: tuple[str, int]) -> None:
        """The caller limits the time, which includes the handshake. Raises: Unavailable, or anything else."""
        tls = None
        if self.tls is not None:
            await self.pace.next()
            tls = self.tls(node_id)
        try:
            await asyncio.get_running_loop().create_connection(lambda: protocol, *address, ssl=tls)
        except OSError as error:
            why = why_no_tls(error)
            if why is None and tls is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError):
                why = "it ends the handshake of TLS: compare security.inter.broker.protocol of both nodes"
            if why is None:
                raise
            raise Unavailable(why) from error


class Peer:
    def __init__(
        self,
        node_id: int,
        asker: Asker,
        address: Callable[[], tuple[str, int] | None],
        take: Callable[[int, SegmentAnswer[memoryview]], int],
        lost: Callable[[int], None],
        catch_up: TokenBucket,
        stats: ReplicationStats,
        steady_ms: Callable[[], int],
    ) -> None:
        """`take` is given each segment's answer, whose bytes are good until it returns, and says how many of them are
        of use; `lost` hears that what was asked may not be answered."""
        self.node_id = node_id
        self._asker = asker
        self._address = address
        self._take = take
        self._lost = lost
        self._stats = stats
        self._steady_ms = steady_ms
        self._rounds = FetchRounds(catch_up)
        self._size = AnswerSize(_ROUND_BYTES)
        self._loop = asyncio.get_running_loop()
        self._protocol: PeerProtocol | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._is_due = False
        self._deadline: asyncio.TimerHandle | None = None
        self._correlation_id = 0
        self._sent: deque[tuple[int, int]] = deque()
        """Correlation id and time of each round that is not answered."""
        self._first_of_session = 0
        self._most_named = 0
        """Segments that this connection's peer may name."""
        self._rounds_answered = 0
        self._vain = 0
        """Rounds in a row that were answered at once, with nothing."""
        self._resting: asyncio.TimerHandle | None = None
        self._catching_up: asyncio.TimerHandle | None = None
        """The one timer that looks whether what is throttled has its share again."""
        self._is_closing = False
        self._trouble: str | None = None
        """Why it is not reached, as it was logged."""

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
        if self._is_closing:
            return
        if self._protocol is None:
            if self._task is None and self._rounds.has_wants:
                self._task = self._loop.create_task(self._stay_connected())
            return
        if self._resting is not None:
            return
        try:
            self._send_rounds(self._protocol)
        except Exception as fault:  # a round that was noted and not sent would be waited for without an end
            log.error("a fetch request to another node cannot be sent", peer=self.node_id, exc_info=True)
            self._protocol.close(f"a fault in the node, see its log: {fault}")

    def _send_rounds(self, protocol: PeerProtocol) -> None:
        for round_ in self._rounds.step(TurnEnded(), self._steady_ms()):
            self._correlation_id += 1
            request = ReplicaFetch(
                self._asker.node_id,
                self._asker.token,
                _MAX_WAIT_MS,
                self._size.size_bytes,
                round_.session_id,
                round_.session_epoch,
                [SegmentAsk(*name, offset, _SEGMENT_BYTES) for name, offset in round_.asks],
                list(round_.forgotten),
            )
            frame = encode_replica_fetch(self._correlation_id, f"node-{self._asker.node_id}", request)
            self._sent.append((self._correlation_id, self._steady_ms()))
            self._most_named = max(self._most_named, self._rounds.named)
            protocol.send(frame)
            self._await_answer()
        if self._catching_up is None and self._rounds.waits_for_room:
            self._catching_up = self._loop.call_later(_CATCH_UP_S, self._catch_up_again)

    def _catch_up_again(self) -> None:
        self._catching_up = None
        self.soon()

    def _await_answer(self) -> None:
        """One timer looks now and then: to set it again with each round costs as much as the round's bookkeeping."""
        if self._deadline is None and self._sent:
            left_s = _MAX_WAIT_MS / 1000 + _ANSWER_S - self._silent_ms() / 1000
            self._deadline = self._loop.call_later(max(left_s, 0.001), self._look_for_answer)

    def _silent_ms(self) -> float:
        """How long the first round of those that wait has brought no byte."""
        waits_ms = self._steady_ms() - self._sent[0][1]
        return waits_ms if self._protocol is None else min(waits_ms, self._protocol.silent_ms)

    def _look_for_answer(self) -> None:
        self._deadline = None
        if self._protocol is None or not self._sent:
            return
        timeout_s = _MAX_WAIT_MS / 1000 + _ANSWER_S
        if self._silent_ms() >= timeout_s * 1000:
            self._protocol.close(f"nothing came for {timeout_s} s while an answer was due")
        else:
            self._await_answer()

    # The connection -------------------------------------------------------------------------------------------------
    async def _stay_connected(self) -> None:
        """While anything is asked of it, whatever goes wrong."""
        backoff = Backoff()
        try:
            while self._rounds.has_wants:
                if await self._serve_once():
                    backoff = Backoff()
                await backoff.pause()
        finally:
            self._task = None
            self._is_reached()  # else nothing asks whether it is reachable

    async def _serve_once(self) -> bool:
        """One connection, from its making to its end. Returns: whether it answered a round."""
        rounds = self._rounds_answered
        if await self._connect():
            self.soon()
            await self._ended.wait()
        try:
            self._lost(self.node_id)
        except Exception:  # one segment's fault must not keep all the others from being asked for (F48)
            log.error(
                "a replica could not handle the loss of the node that it reads from", peer=self.node_id, exc_info=True
            )
        return self._rounds_answered != rounds

    async def _connect(self) -> bool:
        address = self._address()
        if address is None:
            self._is_not_reached("its address is not known")
            return False
        self._ended.clear()
        protocol = PeerProtocol(_MOST_BYTES, self._answered, self._connection_lost)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._asker.connect(protocol, self.node_id, address)
        except TimeoutError:
            self._is_not_reached(f"{address[0]}:{address[1]} does not answer within {_CONNECT_S} s")
            return False
        except Exception as error:  # an OSError, or another: what was registered as an address may be none (F48)
            self._is_not_reached(str(error) or type(error).__name__)
            return False
        if self._ended.is_set():
            return False
        self._protocol = protocol
        return True

    def _is_not_reached(self, why: str) -> None:
        """Told once, and again when the cause is another."""
        self._stats.connections_lost += 1
        if self._trouble is None:
            self._stats.unreached_peers += 1
        if self._trouble != why:
            self._trouble = why
            log.warning("another node cannot be reached", peer=self.node_id, error=why)

    def _is_reached(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            self._stats.unreached_peers -= 1

    def _connection_lost(self, reason: str) -> None:
        self._protocol = None
        self._cancel_deadline()
        self._end_rest()
        self._sent.clear()
        self._most_named = 0
        self._rounds.step(SessionLost(), self._steady_ms())
        self._ended.set()
        if not self._is_closing:
            self._is_not_reached(reason)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_rest(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _answered(self, frame: memoryview) -> None:
        """Raises: MalformedFrame; the connection ends then."""
        # A segment may stand there with data and with a high watermark, and a topic takes room, too.
        correlation_id, answer = decode_replica_answer(frame, 4 * self._most_named + 4)
        if not self._sent or self._sent[0][0] != correlation_id:
            raise MalformedFrame(
                "an answer to a fetch request that was not sent, or in another order: close the connection"
            )
        _, sent_ms = self._sent.popleft()
        now_ms = self._steady_ms()
        if self._protocol is not None:
            self._size.answered(len(frame), self._protocol.answer_ms)
        if correlation_id < self._first_of_session:
            return  # of the session that is over
        if answer.error_code in _SESSION_ENDED:
            self._first_of_session = self._correlation_id + 1
            self._rounds.step(SessionLost(), self._steady_ms())
            self._rest()
            return
        if answer.error_code:
            # It does not know this life yet, or a later one began: ask again, less often.
            raise MalformedFrame(f"error {answer.error_code}: the peer refuses this node's token, or its certificate")
        self._stats.rounds += 1
        self._rounds_answered += 1
        self._is_reached()
        used_bytes, is_refused = self._take_all(answer)
        is_early = now_ms - sent_ms < _MAX_WAIT_MS // 2
        if used_bytes or is_refused or self._rounds.in_flight or not is_early:
            self._vain = 0
            self.soon()
        else:
            self._rest()

    def _take_all(self, answer: ReplicaAnswer) -> tuple[int, bool]:
        """Returns: how many bytes were of use, and whether something that is wanted was refused."""
        reported, refused = [], []
        for segment in answer.segments:
            name = segment_name(segment[:3])
            if segment.error_code:
                refused.append(name)
            elif segment.records_bytes:
                reported.append((name, segment.records_bytes))
        is_refused = any(self._rounds.wants(name) for name in refused)
        before = self._rounds.throttled_bytes
        self._rounds.step(RoundAnswered(answer.session_id, tuple(reported), tuple(refused)), self._steady_ms())
        self._stats.catch_up_bytes += self._rounds.throttled_bytes - before
        return sum(self._take(self.node_id, segment) for segment in answer.segments), is_refused

    def _rest(self) -> None:
        """The peer neither gives anything nor holds the round: the first time at once, then after longer and longer."""
        self._vain += 1
        if self._vain == 1:
            self.soon()
            return
        self._stats.vain_rounds += 1
        pause_s = longest_pause(self._vain - 1, _VAIN_S, _LONGEST_VAIN_S)
        self._resting = self._loop.call_later(pause_s, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.soon()

    async def close(self) -> None:
        self._is_closing = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._protocol is not None:
            self._protocol.close("this node stops following it")
        self._cancel_deadline()
        self._end_rest()
