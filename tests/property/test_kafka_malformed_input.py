"""Whatever bytes arrive, decoding ends quickly with a request or with MalformedFrame."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.kafka import messages
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.fetch import decode_fetch
from stratalog.kafka.frames import decode_request_header
from stratalog.kafka.produce import decode_produce
from support.kafka_oracle import SERVED, filled, frame_of, request_class, unknown_tags

ALL = [(key, version) for key, (low, high) in SERVED.items() for version in range(low, high + 1)]

LENGTHS = [bytes((n,)) for n in (0, 1, 2, 3, 127)] + [
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x01",
    b"\x00\x00\x00\x01",
    b"\xff\xff",
    b"ab",
]
"""What lengths and counts are made of: small ones, huge ones, negative ones, in every notation."""


def decode(key: int, version: int, frame: memoryview, position: int) -> None:
    try:
        if key == 0:
            decode_produce(frame, position, version)
        elif key == 1:
            decode_fetch(frame, position, version)
        else:
            messages.decode_request(key, version, frame, position)
    except MalformedFrame:
        pass


@settings(max_examples=400, deadline=None)
@given(which=st.sampled_from(ALL), body=st.binary(max_size=200))
# Each of these made kio's native reader allocate 250 GB and abort the process.
@example((37, 2), bytes.fromhex("8080ff807fffff02020001008002028001027f805c"))
@example((2, 8), bytes.fromhex("800000009f807f01cefff0807f0000027f02007f9d0179027f0200017f027f0000010100"))
@example((35, 4), bytes.fromhex("b58c80b77f7f8000007f0000ff02803702"))
def test_random_bytes_decode_or_are_malformed(which: tuple[int, int], body: bytes) -> None:
    decode(*which, memoryview(body), 0)


@settings(max_examples=600, deadline=None)
@given(which=st.sampled_from(ALL), body=st.lists(st.sampled_from(LENGTHS), max_size=12).map(b"".join))
def test_lengths_and_counts_anywhere_decode_or_are_malformed(which: tuple[int, int], body: bytes) -> None:
    decode(*which, memoryview(body), 0)


@settings(max_examples=600, deadline=None)
@given(
    which=st.sampled_from(ALL),
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_requests_decode_or_are_malformed(which: tuple[int, int], edits: list[tuple[int, int]]) -> None:
    data = bytearray(frame_of(filled(request_class(which[0]), which[1], "full"))[4:])
    position = decode_request_header(memoryview(data)).body_position
    for at, value in edits:
        if len(data) > position:
            data[position + at % (len(data) - position)] = value
    decode(*which, memoryview(data), position)


@settings(max_examples=200, deadline=None)
@given(header=st.binary(max_size=40))
@example(b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\x0f")
def test_random_headers_decode_or_are_malformed(header: bytes) -> None:
    try:
        decoded = decode_request_header(memoryview(header))
    except MalformedFrame:
        return
    assert decoded.body_position <= len(header)


@pytest.mark.parametrize(("key", "version"), [(key, high) for key, (_, high) in SERVED.items()])
def test_truncation_at_every_byte_is_malformed_or_complete(key: int, version: int) -> None:
    message = filled(request_class(key), version, "full")
    with unknown_tags():
        data = frame_of(message)[4:]
    position = decode_request_header(memoryview(data)).body_position
    step = max(1, (len(data) - position) // 200)
    for length in range(position, len(data), step):
        decode(key, version, memoryview(data)[:length], position)


@pytest.mark.parametrize(("key", "version"), ALL)
def test_counts_and_lengths_of_two_billion_allocate_nothing(key: int, version: int) -> None:
    tracemalloc.start()
    try:
        for fill in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff"):
            for lead in range(0, 40, 3):
                decode(key, version, memoryview(b"\x00" * lead + fill * 40), 0)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
