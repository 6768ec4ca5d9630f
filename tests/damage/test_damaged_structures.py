"""Every stored structure, damaged in every way of the corpus, is refused; the error names file, byte and reason."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from stratalog.formats.bucket.bundle import BUNDLE_HEADER_BYTES, BUNDLE_TRAILER_BYTES, decode_bundle_trailer
from stratalog.formats.bucket.part import PART_HEADER_BYTES, decode_part_header
from stratalog.formats.envelope import identify
from stratalog.model.errors import Corrupt
from support.damage_corpus import (
    Damage,
    flipped_bits,
    grown,
    lying_numbers,
    prefix_cuts,
    repeated_pages,
    zeroed_pages,
)
from support.stored_samples import MAY_GROW, SAMPLES, SEGMENT_SAMPLE, Sample

SOURCE = "segments/some/file"
every_structure = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
every_own_structure = pytest.mark.parametrize("sample", SAMPLES[1:], ids=lambda sample: sample.name)


def assert_refused(sample: Sample, damages: Iterable[Damage]) -> int:
    """Each damage is refused, and the error says where; returns how many there were."""
    count = 0
    for words, data in damages:
        try:
            sample.read(data, SOURCE)
        except Corrupt as error:
            assert error.source == SOURCE, words
            assert 0 <= error.position <= max(len(data), len(sample.data)), f"{words}: {error}"
            assert error.reason, words
            assert str(error) == f"{SOURCE}: at byte {error.position}: {error.reason}"
        else:
            pytest.fail(f"{sample.name}, {words}: was read as if nothing were wrong")
        count += 1
    return count


def all_lies(sample: Sample) -> Iterator[Damage]:
    """Lies in each structure of the sample that has a CRC of its own."""
    match sample.name:
        case "part":
            starts = [0, decode_part_header(sample.data, source=SOURCE).index_position]
            ends = [PART_HEADER_BYTES, len(sample.data)]
        case "bundle":
            tail = len(sample.data) - BUNDLE_TRAILER_BYTES
            trailer = decode_bundle_trailer(sample.data[tail:], source=SOURCE, object_size=len(sample.data))
            starts, ends = [0, trailer.directory_position, tail], [BUNDLE_HEADER_BYTES, tail, len(sample.data)]
        case _:
            starts, ends = [0], [len(sample.data)]
    for start, end in zip(starts, ends, strict=True):
        yield from lying_numbers(sample.data, start, end)


@every_structure
def test_an_undamaged_structure_is_read(sample: Sample) -> None:
    sample.read(sample.data, SOURCE)


@every_structure
def test_every_cut_is_refused(sample: Sample) -> None:
    damages = (damage for damage in prefix_cuts(sample.data) if sample.name != "batch" or damage[1])
    assert assert_refused(sample, damages) >= len(sample.data) - 1


@every_structure
def test_every_flipped_bit_is_refused(sample: Sample) -> None:
    assert assert_refused(sample, flipped_bits(sample.data)) == len(sample.data) * 8


@every_structure
@pytest.mark.parametrize("page_bytes", [1, 16, 64, 512, 4096])
def test_every_zeroed_page_is_refused(sample: Sample, page_bytes: int) -> None:
    assert assert_refused(sample, zeroed_pages(sample.data, page_bytes)) > 0


@every_structure
@pytest.mark.parametrize("page_bytes", [16, 64])
def test_every_misdirected_write_is_refused(sample: Sample, page_bytes: int) -> None:
    assert_refused(sample, repeated_pages(sample.data, page_bytes))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.name not in MAY_GROW], ids=lambda sample: sample.name)
def test_bytes_that_follow_are_refused(sample: Sample) -> None:
    assert_refused(sample, grown(sample.data))


@every_own_structure
def test_numbers_that_lie_under_a_right_crc_are_refused_or_harmless_and_allocate_nothing(sample: Sample) -> None:
    """With the CRC made again only the checks between the fields are left.

    A lie may pass where it claims nothing that can be checked, such as another creation time; but nothing is ever
    raised other than Corrupt, and what is claimed is not allocated.
    """
    tracemalloc.start()
    try:
        for words, data in all_lies(sample):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                sample.read(data, SOURCE)
            except Corrupt as error:
                assert error.source == SOURCE, words
            grew = tracemalloc.get_traced_memory()[1] - before
            assert grew < 1 << 20, f"{words}: allocated {grew} bytes"
    finally:
        tracemalloc.stop()


def reader_of(sample: Sample) -> str:
    """All manifests have one."""
    return "manifest" if sample.name.endswith("manifest") else sample.name


@every_own_structure
def test_one_structure_is_never_mistaken_for_another(sample: Sample) -> None:
    for other in SAMPLES[1:]:
        if reader_of(other) != reader_of(sample):
            with pytest.raises(Corrupt) as refused:
                sample.read(other.data, SOURCE)
            words = identify(other.data)
            assert words is not None
            if len(other.data) >= len(sample.data):
                assert f"found {words.words}" in refused.value.reason


def test_a_segment_file_cut_inside_a_batch_is_refused_and_one_cut_after_a_batch_is_a_shorter_log() -> None:
    whole = SEGMENT_SAMPLE.read(SEGMENT_SAMPLE.data, SOURCE)
    assert isinstance(whole, list)
    ends = {512, *(at + header.size_bytes for at, header in whole)}
    for size in range(len(SEGMENT_SAMPLE.data)):
        if size in ends:
            SEGMENT_SAMPLE.read(SEGMENT_SAMPLE.data[:size], SOURCE)
        else:
            assert_refused(SEGMENT_SAMPLE, [(f"cut to {size} bytes", SEGMENT_SAMPLE.data[:size])])


def test_every_flipped_bit_of_a_segment_file_is_refused() -> None:
    assert_refused(SEGMENT_SAMPLE, flipped_bits(SEGMENT_SAMPLE.data))


@pytest.mark.parametrize("page_bytes", [16, 512, 4096])
def test_every_zeroed_page_of_a_segment_file_is_refused(page_bytes: int) -> None:
    assert_refused(SEGMENT_SAMPLE, zeroed_pages(SEGMENT_SAMPLE.data, page_bytes))
