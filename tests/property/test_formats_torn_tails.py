"""However a log's tail is damaged, it ends where the last batch ends that is whole and continues the one before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.batches.batch_scan import scan_whole_batches
from stratalog.formats.batches.record_batch import parse_header, scan_valid_prefix
from stratalog.formats.disk.journal import JOURNAL_HEADER_BYTES, encode_entry_header, scan_journal
from support.format_strategies import batch_runs
from support.stored_samples import IDENTITY

EPOCH = IDENTITY.epoch
runs = batch_runs(base_offset=40, epoch=EPOCH)


def ends_of(pieces):
    """Where each piece ends, beginning with 0."""
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return ends


@given(runs)
def test_a_whole_tail_is_taken_whole(batches):
    found = scan_valid_prefix(b"".join(batches), 40, EPOCH)
    assert (found.end_position, found.reason, found.wanted_bytes) == (ends_of(batches)[-1], None, 0)
    assert [header for _, header in found.headers] == [parse_header(batch) for batch in batches]
    assert found.next_offset == parse_header(batches[-1]).end_offset


@given(runs, st.data())
def test_a_cut_tail_ends_at_the_last_whole_batch(batches, draw):
    data = b"".join(batches)
    cut = draw.draw(st.integers(0, len(data)))
    found = scan_valid_prefix(data[:cut], 40, EPOCH)
    assert found.end_position == max(end for end in ends_of(batches) if end <= cut)
    assert (found.reason is None) == (cut in ends_of(batches))
    assert len(found.headers) == ends_of(batches).index(found.end_position)
    assert found.wanted_bytes == 0 or found.end_position + found.wanted_bytes > cut
    assert (found.wanted_bytes > 0) == (found.reason is not None)


@given(runs, st.data())
def test_one_flipped_bit_ends_the_log_before_its_batch(batches, draw):
    data = bytearray(b"".join(batches))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << draw.draw(st.integers(0, 7))
    found = scan_valid_prefix(data, 40, EPOCH)
    assert found.end_position == max(end for end in ends_of(batches) if end <= at)
    assert found.reason is not None


@given(runs, st.binary(min_size=1, max_size=200))
def test_whatever_follows_a_log_is_not_mistaken_for_a_batch(batches, junk):
    data = b"".join(batches)
    found = scan_valid_prefix(data + junk, 40, EPOCH)
    assert found.end_position == len(data)
    assert found.reason is not None


@given(runs, st.integers(1, 300))
def test_a_scan_in_windows_finds_what_a_scan_at_once_finds(batches, window):
    data = b"".join(batches)[:-1]
    at_once = scan_valid_prefix(data, 40, EPOCH)
    at, next_offset, size = 0, 40, window
    while True:
        piece = data[at : at + size]
        found = scan_valid_prefix(piece, next_offset, EPOCH, position=at)
        at, next_offset = at + found.end_position, found.next_offset
        size = max(window, found.wanted_bytes)
        if found.wanted_bytes > len(data) - at or (found.reason and not found.wanted_bytes):
            break
    assert (at, next_offset) == (at_once.end_position, at_once.next_offset)


@given(runs, st.data())
def test_the_fast_scan_ends_where_the_careful_one_does(batches, draw):
    data = bytearray(b"".join(batches))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= draw.draw(st.integers(0, 255))
    del data[draw.draw(st.integers(at, len(data))) :]
    careful = scan_valid_prefix(data, 40, EPOCH)
    fast = scan_whole_batches(data, base_offset=40, epoch=EPOCH)
    assert list(fast.positions) == [*(place for place, _ in careful.headers), careful.end_position]
    assert list(fast.base_offsets) == [header.base_offset for _, header in careful.headers]
    assert fast.end_offset == careful.next_offset


entries = st.lists(st.tuples(st.integers(0, 9_999), st.binary(max_size=60)), min_size=1, max_size=5)


def journal_of(written, number=7):
    return [encode_entry_header(number, IDENTITY.key, at, [payload]) + payload for at, payload in written]


@given(entries, st.data())
def test_a_cut_journal_gives_its_whole_entries_and_says_why_it_ends(written, draw):
    pieces = journal_of(written)
    data = b"".join(pieces)
    cut = draw.draw(st.integers(0, len(data)))
    found = scan_journal(data[:cut], 7, source="journal/7")
    assert found.end_position == max(end for end in ends_of(pieces) if end <= cut)
    assert [(e.position, bytes(e.payload)) for e in found.entries] == written[: len(found.entries)]
    assert len(found.entries) == ends_of(pieces).index(found.end_position)
    if cut not in ends_of(pieces):
        assert found.reason is not None
        assert found.reason.startswith("journal/7: at byte ")
        assert int(found.reason.split()[3].rstrip(":")) >= JOURNAL_HEADER_BYTES + found.end_position
        assert found.wanted_bytes > cut - found.end_position


@given(entries, st.data())
def test_one_flipped_bit_ends_the_journal_before_its_entry(written, draw):
    pieces = journal_of(written)
    data = bytearray(b"".join(pieces))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << draw.draw(st.integers(0, 7))
    found = scan_journal(data, 7, source="journal/7")
    assert found.end_position == max(end for end in ends_of(pieces) if end <= at)
    assert found.reason is not None


@given(entries, entries)
def test_what_an_earlier_life_of_the_file_left_behind_is_not_replayed(written, earlier):
    new, old = b"".join(journal_of(written)), b"".join(journal_of(earlier, number=6))
    found = scan_journal(new + old, 7, source="journal/7")
    assert found.end_position == len(new)
    assert found.reason is not None
    assert "entry is of journal 6, this is journal 7" in found.reason


@given(entries, st.integers(1, 4096))
def test_zeros_after_the_last_entry_end_the_journal(written, size):
    data = b"".join(journal_of(written))
    found = scan_journal(data + bytes(size), 7, source="journal/7")
    assert found.end_position == len(data)
    assert found.reason is not None
    assert "found zeros" in found.reason or "cut short" in found.reason
