"""Answers of a peer as they come off a socket: in any pieces, one buffer, and no more of it than was asked for."""

from __future__ import annotations

import random

from stratalog_node.replication.peer_protocol import PeerProtocol


class Wire:
    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.frames: list[bytes] = []
        self.reasons: list[str] = []
        self.protocol = PeerProtocol(most_bytes, lambda frame: self.frames.append(bytes(frame)), self.reasons.append)

    def receive(self, data: bytes) -> None:
        while data:
            buffer = self.protocol.get_buffer(-1)
            size = min(len(buffer), len(data))
            assert size, "a buffer without room"
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_frames_come_whole_however_they_were_cut() -> None:
    for seed in range(30):
        dice = random.Random(seed)
        bodies = [dice.randbytes(dice.choice([1, 7, 1_000, 70_000, 300_000])) for _ in range(6)]
        stream = b"".join(map(framed, bodies))
        wire = Wire()
        while stream:
            size = dice.choice([1, 3, 4, 1_000, 100_000])
            wire.receive(stream[:size])
            stream = stream[size:]
        assert wire.frames == bodies


def test_a_size_beyond_what_was_asked_for_gets_no_memory() -> None:
    for size in (101, 2**31 - 1, 2**32 - 1, 0):
        wire = Wire(most_bytes=100)
        wire.receive(size.to_bytes(4, "big"))
        assert len(wire.reasons) == 1 and not wire.frames


def test_an_answer_that_cannot_be_used_ends_the_connection_and_nothing_else() -> None:
    wire = Wire()

    def refuse(frame: memoryview) -> None:
        raise ValueError("nonsense")

    wire.protocol._on_frame = refuse
    wire.receive(framed(b"x"))
    assert wire.reasons == ["an answer that cannot be used: nonsense"]
