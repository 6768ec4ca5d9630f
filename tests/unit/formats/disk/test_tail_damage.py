"""After the whole batches of a file, a write that was cut off is recognised, and any wrong bit is damage."""

from __future__ import annotations

import random

import pytest

from stratalog.formats.batches.record_batch import scan_valid_prefix
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.disk.tail_damage import PAGE_BYTES, Tail, TailKind, judge_tail
from support.stored_samples import EPOCH, batch_of

BASE = 1_000
BATCHES = [batch_of(BASE + 3 * at, 3, value=b"value-%d" % at) for at in range(5)]
DATA = b"".join(BATCHES)
END = BASE + 15
ROOM = bytes(5_000)


def judged(data: bytes) -> tuple[Tail, int]:
    """With the offset at which the whole batches end."""
    whole = scan_valid_prefix(data, BASE, EPOCH)

    def read(position: int, size_bytes: int) -> bytes:
        assert position + size_bytes <= len(data), "reads behind the end"
        return data[position : position + size_bytes]

    return judge_tail(read, whole.end_position, len(data), whole.next_offset, EPOCH), whole.next_offset


@pytest.mark.parametrize("room", [b"", ROOM], ids=["", "with room ahead"])
def test_a_file_that_ends_with_a_batch_is_clean(room: bytes) -> None:
    assert judged(DATA + room) == (Tail(TailKind.CLEAN, END), END)


def test_a_write_that_was_cut_off_with_its_file_is_torn_wherever_that_was() -> None:
    for size in range(len(DATA) + 1):
        tail, end = judged(DATA[:size])
        assert tail.kind is not TailKind.DAMAGED, f"cut after {size} bytes"
        assert tail.seen_offset == end


def test_a_write_that_was_cut_off_within_the_room_ahead_is_torn_where_a_page_ends() -> None:
    large = batch_of(END, 3, value=b"v" * 9_000)
    pages = range(PAGE_BYTES - (SEGMENT_HEADER_BYTES + len(DATA)) % PAGE_BYTES, len(large), PAGE_BYTES)
    assert len(pages) >= 6
    for size in pages:
        assert judged(DATA + large[:size] + ROOM * 10) == (Tail(TailKind.TORN, END), END)
        tail, _ = judged(DATA + large[: size - 9] + ROOM * 10)
        assert tail == Tail(TailKind.TORN, END), "the page may have ended in zeros"
    tail, _ = judged(DATA + large[:-9] + ROOM * 10)
    assert tail == Tail(TailKind.DAMAGED, END + 3), "no write is cut off within a page"


@pytest.mark.fault("nodes-killed-bit-flips")
@pytest.mark.parametrize("room", [b"", ROOM], ids=["", "with room ahead"])
def test_a_flipped_bit_anywhere_is_damage_and_the_batches_behind_it_are_seen(room: bytes) -> None:
    for at in range(len(DATA)):
        for bit in range(8):
            data = bytearray(DATA + room)
            data[at] ^= 1 << bit
            tail, end = judged(bytes(data))
            is_in_last = at >= len(DATA) - len(BATCHES[-1])
            assert tail.kind is TailKind.DAMAGED, f"byte {at}, bit {bit}"
            assert end < tail.seen_offset <= END
            assert is_in_last or tail.seen_offset == END, f"byte {at}, bit {bit}"


def test_a_batch_that_is_overwritten_with_zeros_is_damage() -> None:
    begin = len(BATCHES[0])
    data = DATA[:begin] + bytes(len(BATCHES[1])) + DATA[begin + len(BATCHES[1]) :]
    assert judged(data) == (Tail(TailKind.DAMAGED, END), BASE + 3)


def test_two_damaged_batches_hide_nothing_between_or_behind_them() -> None:
    data = bytearray(DATA)
    data[len(BATCHES[0]) + 70] ^= 1
    data[len(BATCHES[0]) + len(BATCHES[1]) + len(BATCHES[2]) + 70] ^= 1
    assert judged(bytes(data)) == (Tail(TailKind.DAMAGED, END), BASE + 3)


def test_batches_of_another_segment_behind_a_torn_one_prove_nothing() -> None:
    other = batch_of(END + 5, 2, epoch=EPOCH + 1)
    tail, end = judged(DATA[:-7] + other)
    assert (tail.kind, tail.seen_offset) == (TailKind.DAMAGED, end + 3), "but no torn write leaves that"


def test_a_large_tail_of_noise_is_judged_in_windows() -> None:
    noise = random.Random(7).randbytes(3 << 20)
    tail, _ = judged(DATA + noise + batch_of(END + 1, 4))
    assert tail == Tail(TailKind.DAMAGED, END + 5)
