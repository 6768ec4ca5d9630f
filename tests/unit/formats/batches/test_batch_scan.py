"""The fast scan of a fetched range says what the careful walk says, about good and about damaged bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.batches.batch_scan import check_batches, scan_batches
from stratalog.formats.batches.record_batch import walk
from stratalog.model.errors import Corrupt
from support.cold_data import batch_at

BATCHES = [batch_at(100, 3, epoch=5), batch_at(103, 1, epoch=5, codec=4), batch_at(104, 7, epoch=5)]
DATA = b"".join(BATCHES)


def walked(data: bytes, base_offset: int = 100, epoch: int = 5) -> list[tuple[int, int]]:
    found = walk(data, source="range", position=40, expected_base_offset=base_offset, epoch=epoch)
    return [(at, header.base_offset) for at, header in found]


def scanned(data: bytes, base_offset: int = 100, epoch: int = 5) -> list[tuple[int, int]]:
    places = scan_batches(data, base_offset=base_offset, epoch=epoch, source="range", position=40)
    assert places.positions[-1] == len(data)
    headers = check_batches(data, base_offset=base_offset, epoch=epoch, source="range")
    assert [header.base_offset for header in headers] == list(places.base_offsets)
    assert sum(header.size_bytes for header in headers) == len(data)
    return list(zip(places.positions, places.base_offsets, strict=False))


def test_a_good_range_gives_its_batches_and_its_end() -> None:
    assert scanned(DATA) == walked(DATA)
    assert scan_batches(DATA, base_offset=100, epoch=5, source="range").end_offset == 111


def test_an_empty_range_ends_where_it_begins() -> None:
    places = scan_batches(b"", base_offset=7, epoch=0, source="range")
    assert (list(places.base_offsets), list(places.positions), places.end_offset) == ([], [0], 7)


@pytest.mark.parametrize(("base_offset", "epoch"), [(99, 5), (101, 5), (100, 4)])
def test_another_place_in_the_log_is_refused(base_offset: int, epoch: int) -> None:
    with pytest.raises(Corrupt):
        scanned(DATA, base_offset, epoch)


@given(st.data())
def test_damage_is_refused_in_the_same_words(data: st.DataObject) -> None:
    damaged = bytearray(DATA)
    match data.draw(st.sampled_from(["flip", "cut", "zero", "swap"])):
        case "flip":
            damaged[data.draw(st.integers(0, len(DATA) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del damaged[data.draw(st.integers(1, len(DATA) - 1)) :]
        case "zero":
            at = data.draw(st.integers(0, len(DATA) - 1))
            damaged[at : at + 61] = bytes(len(damaged[at : at + 61]))
        case _:
            damaged = bytearray(b"".join([BATCHES[1], BATCHES[0], BATCHES[2]]))
    try:
        expected = walked(bytes(damaged))
    except Corrupt as error:
        with pytest.raises(Corrupt) as caught:
            scanned(bytes(damaged))
        assert str(caught.value) == str(error)
        with pytest.raises(Corrupt):
            check_batches(bytes(damaged), base_offset=100, epoch=5, source="range")
    else:
        assert scanned(bytes(damaged)) == expected
