"""One other node as this one asks it: whatever its address is and whatever it answers, it is asked again, and costs
little."""

from __future__ import annotations

import asyncio
import time
import uuid
from asyncio import TimerHandle
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import Context

import pytest
from structlog.testing import capture_logs

from stratalog.kafka.frames import decode_request_header
from stratalog.kafka.replica_fetch import ReplicaFetch, SegmentAnswer, decode_replica_fetch, encode_replica_answer
from stratalog.machines.following.fetch_rounds import SegmentName
from stratalog.machines.token_bucket import TokenBucket
from stratalog_node.replication import peer as peer_module
from stratalog_node.replication.peer import Asker, Peer
from stratalog_node.replication.peer_protocol import PeerProtocol
from stratalog_node.replication.stats import ReplicationStats
from support.waiting import eventually

NAME = SegmentName(uuid.UUID(int=7), 0, 0)
Answers = Callable[[int, ReplicaFetch], list[bytes]]
"""Of a round, by its correlation id: the frames that go back, none for a round that is held."""


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def answer(correlation_id: int, *segments: SegmentAnswer[bytes], error_code: int = 0) -> bytes:
    return b"".join(bytes(piece) for piece in encode_replica_answer(correlation_id, error_code, 5, segments))


class Served:
    """A peer that follows a script, and what came to it."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.rounds = 0
        self.connections = 0
        self.address = ("", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                header = decode_request_header(memoryview(frame))
                self.rounds += 1
                request = decode_replica_fetch(memoryview(frame), header.body_position)
                for piece in self.answers(header.correlation_id, request):
                    writer.write(piece)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()


class Asking:
    """A peer as a node has it, and what it was given of it."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        self.stats = ReplicationStats()
        self.address = address
        self.taken: list[SegmentAnswer[memoryview]] = []
        self.lost = 0
        self.bucket = TokenBucket(1e9, 1e9, steady_ms())
        self.peer = Peer(
            3, Asker(2, 99), lambda: self.address, self._take, self._lost, self.bucket, self.stats, steady_ms
        )

    def _take(self, node_id: int, given: SegmentAnswer[memoryview]) -> int:
        self.taken.append(given)
        return given.records_bytes

    def _lost(self, node_id: int) -> None:
        self.lost += 1


@asynccontextmanager
async def asked(answers: Answers) -> AsyncIterator[tuple[Asking, Served]]:
    served = Served(answers)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.address = server.sockets[0].getsockname()
    asking = Asking(served.address)
    try:
        asking.peer.want(NAME, 0, is_throttled=False)
        yield asking, served
    finally:
        await asking.peer.close()
        server.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(peer_module, "_MAX_WAIT_MS", 20)
    monkeypatch.setattr(peer_module, "_ANSWER_S", 0.05)
    yield


@pytest.mark.fault("node-registered-invalid-address")
@pytest.mark.parametrize(
    "address", [("127.0.0.1", 70_000), ("a" * 70, 1), ("\0", 1), ("", 0), None], ids=["port", "label", "nul", "no", "-"]
)
async def test_an_invalid_address_is_tried_again_until_it_is_corrected(address: tuple[str, int] | None) -> None:
    async with asked(lambda number, _: [answer(number, SegmentAnswer(*NAME, 0, 0, 0, [b"abc"], 3))]) as (_, served):
        asking = Asking(address)
        with capture_logs() as lines:
            asking.peer.want(NAME, 0, is_throttled=False)
            await eventually(lambda: asking.stats.connections_lost >= 3)
        told = [line for line in lines if line["event"] == "another node cannot be reached"]
        assert len(told) == 1 and told[0]["error"], "the cause, once"
        assert (asking.stats.unreached_peers, asking.lost >= 2) == (1, True), "who has another to ask turns there"
        asking.address = served.address
        await eventually(lambda: asking.taken)
        assert asking.stats.unreached_peers == 0
        await asking.peer.close()


@pytest.mark.fault("peer-answers-once-data")
async def test_a_peer_that_neither_holds_a_round_nor_gives_anything_is_asked_ever_less_often() -> None:
    async with asked(lambda number, _: [answer(number)]) as (asking, served):
        await eventually(lambda: asking.stats.vain_rounds >= 4)
        assert served.rounds <= 8 and served.connections == 1


@pytest.mark.fault("peer-answers-once-data")
async def test_one_that_knows_no_session_ever_is_asked_ever_less_often() -> None:
    async with asked(lambda number, _: [answer(number, error_code=70)]) as (asking, served):
        await eventually(lambda: asking.stats.vain_rounds >= 4)
        assert served.rounds <= 8


@pytest.mark.fault("peer-answers-once-data")
async def test_answers_for_segments_not_requested_do_not_make_it_ask_more_often() -> None:
    other = SegmentName(uuid.UUID(int=8), 0, 0)
    async with asked(lambda number, _: [answer(number, SegmentAnswer(*other, 6, -1, -1))]) as (asking, served):
        await eventually(lambda: asking.stats.vain_rounds >= 4)
        assert served.rounds <= 8


HOSTILE: dict[str, Answers] = {
    "answers to no round": lambda number, _: [answer(number), answer(number)],
    "an answer to another round": lambda number, _: [answer(number + 1)],
    "more segments than were asked for": lambda number, _: [
        answer(number, *[SegmentAnswer(NAME.topic_id, shard, 0, 0, 1, 0) for shard in range(50)])
    ],
    "no frame": lambda number, _: [b"\xff" * 64],
    "a frame without an end": lambda number, _: [(8 << 20).to_bytes(4, "big") + bytes(1_000)],
    "no answer ever": lambda number, _: [],
    "bytes that say nothing": lambda number, _: [(40).to_bytes(4, "big") + number.to_bytes(4, "big") + b"\xff" * 36],
}


@pytest.mark.fault("peer-answers-rounds-sent")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("answers", HOSTILE.values(), ids=HOSTILE)
async def test_an_invalid_answer_ends_the_connection_and_nothing_else(answers: Answers) -> None:
    is_well = False

    def first_that(number: int, request: ReplicaFetch) -> list[bytes]:
        if not is_well:
            return answers(number, request)
        return [answer(number, SegmentAnswer(*NAME, 0, 0, 0, [b"abc"], 3))]

    async with asked(first_that) as (asking, served):
        await eventually(lambda: served.connections >= 2)
        assert not any(given.records_bytes for given in asking.taken)
        is_well = True
        await eventually(lambda: any(given.records_bytes for given in asking.taken))


async def test_rounds_beside_one_that_waits_for_its_share_set_no_timer_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each timer sets the next: after a minute of catching up the node does little else."""
    loop, delays = asyncio.get_running_loop(), list[float]()
    later = loop.call_later

    def noted(delay: float, work: Callable[..., object], *given: object, context: Context | None = None) -> TimerHandle:
        delays.append(delay)
        return later(delay, work, *given, context=context)

    monkeypatch.setattr(peer_module, "_CATCH_UP_S", 1_000.0)
    monkeypatch.setattr(loop, "call_later", noted)
    async with asked(lambda number, _: [answer(number, SegmentAnswer(*NAME, 0, 0, 0, [b"abc"], 3))]) as (asking, _):
        asking.bucket.consume(1e13, steady_ms())
        asking.peer.want(NAME._replace(shard=1), 0, is_throttled=True)
        for number in range(1, 20):
            await eventually(lambda number=number: len(asking.taken) >= number)
            asking.peer.want(NAME, number, is_throttled=False)
        assert delays.count(1_000.0) == 1


@pytest.mark.fault("peer-answers-rounds-sent")
async def test_a_large_answer_takes_memory_as_it_comes_and_gives_it_back() -> None:
    frames: list[int] = []
    protocol = PeerProtocol(64 << 20, lambda frame: frames.append(len(frame)), lambda reason: None)
    protocol.connection_made(asyncio.Transport())
    size = 40 << 20
    feed(protocol, size.to_bytes(4, "big"))
    assert len(protocol.get_buffer(-1)) < 128 << 10, "what it says of its size is a claim"
    left = size
    while left:
        left -= feed(protocol, bytes(min(left, 1 << 20)))
    assert frames == [size]
    assert len(protocol.get_buffer(-1)) < 128 << 10


def feed(protocol: PeerProtocol, data: bytes) -> int:
    """As a transport does: what there is room for, one time."""
    room = protocol.get_buffer(-1)
    size = min(len(room), len(data))
    room[:size] = data[:size]
    protocol.buffer_updated(size)
    return size
