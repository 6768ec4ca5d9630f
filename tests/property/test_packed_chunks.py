"""A packed chunk gives back its part, any range of it by the frames that cover it, and believes nothing of itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.packed_chunk import (
    MAX_PACK_DICTIONARY_BYTES,
    MAX_PACK_FRAME_BYTES,
    MAX_PACK_TABLE_BYTES,
    PACK_FRAME_BYTES,
    PACK_HEADER_BYTES,
    PREAMBLE_BYTES,
    Unpacking,
    decode_pack_header,
    is_worth_packing,
    pack_part,
    pack_to_size,
)
from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part
from stratalog.formats.envelope import Structure, seal_envelope, seal_fixed
from stratalog.formats.fields import FieldWriter
from stratalog.model.errors import Corrupt
from support.cold_data import batch_at, batches_from
from support.format_strategies import batch_runs
from support.packed_chunks import IDENTITY, layout_of, packed_sample, part_of, part_of_text, unpack_all, unpack_range


@cache
def varied() -> tuple[bytes, bytes]:
    """A part of records that share words and differ in the rest, so that a dictionary is worth its bytes."""
    told = random.Random(7)
    words = [told.randbytes(told.randrange(20, 200)).hex().encode() for _ in range(400)]
    batches, offset = [], 0
    while offset < 4_000:
        records = [
            Record(offset + n, 1_700_000_000_000 + offset, None, b",".join(told.choices(words, k=3))) for n in range(8)
        ]
        batches.append(encode_batch(records, base_offset=offset, epoch=2))
        offset += 8
    part = part_of(batches)
    packed = pack_part(part, source="made")
    assert packed is not None
    return part, packed


def test_a_packed_chunk_gives_back_its_part() -> None:
    for part, packed in (packed_sample(), varied()):
        assert len(packed) < len(part) and unpack_all(packed) == part
        check_part(unpack_all(packed), source="unpacked")


def test_a_dictionary_is_carried_where_it_spares_more_than_it_takes() -> None:
    dictionary = layout_of(varied()[1], "packed").dictionary
    assert dictionary is not None and dictionary.dict_id() and len(dictionary) <= len(varied()[0]) // 100
    assert layout_of(packed_sample()[1], "packed").dictionary is None


@given(st.data())
def test_any_range_is_read_by_the_frames_that_cover_it(data: st.DataObject) -> None:
    part, packed = data.draw(st.sampled_from([packed_sample(), varied()]))
    start = data.draw(st.integers(0, len(part) - 1))
    end = data.draw(st.integers(start + 1, min(len(part), start + 200_000)))
    assert unpack_range(packed, start, end) == part[start:end]
    layout = layout_of(packed, "packed")
    frames = layout.frames_of(start, end)
    covered = [(layout.part_start(frame), layout.part_ends[frame]) for frame in frames]
    assert all(begin < end and start < finish for begin, finish in covered), "no frame is read in vain"


@settings(max_examples=60)
@given(batch_runs(base_offset=0, epoch=2))
def test_whatever_batches_come_the_part_is_given_back(batches: list[bytes]) -> None:
    part = part_of(batches)
    packed = pack_part(part, source="made")
    if packed is not None:
        assert unpack_all(packed) == part and len(packed) < len(part)


@pytest.mark.fault("node-consumers-read-verifies")
@pytest.mark.parametrize("batches", [400, 12], ids=["much", "little"])
def test_a_range_is_opened_piece_by_piece_so_that_others_have_their_turn(batches: int) -> None:
    part, packed = packed_sample(batches)
    assert (len(part) > 4 << 20) is (batches == 400)
    layout = layout_of(packed, "packed")
    for start, end in ((0, len(part)), (100, len(part) - 1), (PART_HEADER_BYTES, PART_HEADER_BYTES + 1), (3, 9)):
        frames = layout.frames_of(start, end)
        low, high = layout.stored_range(frames) if frames else (0, 0)
        opening = Unpacking(layout, packed[low:high], frames, start, end, source="packed")
        pieces = 1
        while (out := opening.unpack_more(1)) is None:
            pieces += 1
        assert pieces == max(1, len(frames))
        assert out == part[start:end] == unpack_range(packed, start, end)


def test_frames_are_of_whole_batches() -> None:
    large = [batch_at(0, 3, epoch=2), batch_at(3, 1, epoch=2, value_bytes=3 * PACK_FRAME_BYTES)]
    part = part_of([*large, *batches_from(4, 300, epoch=2, value_bytes=500)])
    packed = pack_part(part, source="made")
    assert packed is not None
    layout = layout_of(packed, "packed")
    begins, at = {PART_HEADER_BYTES}, PART_HEADER_BYTES
    for batch in [*large, *batches_from(4, 300, epoch=2, value_bytes=500)]:
        at += len(batch)
        begins.add(at)
    assert begins.issuperset([*layout.part_ends][:-1]), "the last one ends the index"
    sizes = [layout.part_ends[n] - layout.part_start(n) for n in range(len(layout.part_ends))]
    assert sorted(sizes)[-1] == len(large[1]) and sorted(sizes)[-2] <= PACK_FRAME_BYTES


def test_what_is_compressed_already_stays_as_it_is() -> None:
    noise = random.Random(1)
    batches = [
        encode_batch(
            [Record(n, 1_700_000_000_000, None, noise.randbytes(2_000))], base_offset=n, epoch=2, compression=n % 5
        )
        for n in range(300)
    ]
    part = part_of(batches)
    assert pack_part(part, source="made") is None
    assert not is_worth_packing(part[PART_HEADER_BYTES:]) and not is_worth_packing(b"")
    assert is_worth_packing(varied()[0][PART_HEADER_BYTES:])


def test_a_batch_larger_than_a_frame_may_be_is_not_packed() -> None:
    part = part_of([batch_at(0, 1, epoch=2, value_bytes=MAX_PACK_FRAME_BYTES)])
    assert pack_part(part, source="made") is None


def test_what_was_packed_is_made_again_at_its_size() -> None:
    """A repair meets the manifest's size, also where its zstd makes other frames than the one that packed."""
    for part, packed in (packed_sample(), varied()):
        assert pack_to_size(part, len(packed), source="p") == packed
        for size in (len(packed) + 1, len(packed) + 777):
            again = pack_to_size(part, size, source="p")
            assert len(again) == size and unpack_all(again) == part
        smaller = pack_to_size(part, len(packed) - 1, source="p") if part is varied()[0] else None
        assert smaller is None or unpack_all(smaller) == part
        with pytest.raises(Corrupt, match="do not pack into 1500 bytes"):
            pack_to_size(part, 1_500, source="p")


# Hostile ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Forged:
    """A packed chunk in pieces, with right CRCs whatever it claims."""

    part_header: bytes
    part_bytes: int
    entries: tuple[tuple[int, int, int], ...]
    dictionary: bytes
    frames: bytes
    dictionary_bytes: int | None = None
    stored_bytes: int | None = None
    table_bytes: int | None = None
    count: int | None = None

    def body(self) -> bytes:
        table = FieldWriter()
        table.natural(len(self.entries) if self.count is None else self.count, "frames")
        for entry in self.entries:
            for value in entry:
                table.u32(value, "entry")
        table.natural(len(self.dictionary) if self.dictionary_bytes is None else self.dictionary_bytes, "dictionary")
        table.raw(self.dictionary)
        table_body = seal_envelope(Structure.PACK_TABLE, table.getvalue())
        needed = PACK_HEADER_BYTES + len(table_body) + len(self.frames)
        head = FieldWriter()
        head.natural(needed if self.stored_bytes is None else self.stored_bytes, "stored")
        head.natural(self.part_bytes, "part")
        head.natural(len(table_body) if self.table_bytes is None else self.table_bytes, "table")
        head.raw(self.part_header)
        head.pad_to(PACK_HEADER_BYTES - PREAMBLE_BYTES, "header")
        return seal_fixed(Structure.PACKED_CHUNK, head.getvalue()) + table_body + self.frames

    def with_frame(self, number: int, frame: bytes, size: int | None = None) -> Forged:
        """Another frame in the place of one, rightly named."""
        bodies, at = [], 0
        for _, packed, _ in self.entries:
            bodies.append(self.frames[at : at + packed])
            at += packed
        bodies[number] = frame
        entries = list(self.entries)
        entries[number] = (entries[number][0] if size is None else size, len(frame), crc32c(frame))
        return replace(self, entries=tuple(entries), frames=b"".join(bodies))

    def with_entry(self, number: int, entry: tuple[int, int, int]) -> Forged:
        return replace(self, entries=(*self.entries[:number], entry, *self.entries[number + 1 :]))


@cache
def honest() -> Forged:
    part, packed = varied()
    layout = layout_of(packed, "packed")
    ends = layout.part_ends
    entries = tuple(
        (ends[n] - layout.part_start(n), layout.stored_ends[n] - layout.stored_start(n), layout.crcs[n])
        for n in range(len(ends))
    )
    assert layout.dictionary is not None
    frames = packed[layout.header.frames_position :]
    made = Forged(part[:PART_HEADER_BYTES], len(part), entries, layout.dictionary.as_bytes(), frames)
    assert made.body() == packed
    return made


def bomb(size: int) -> bytes:
    return zstandard.ZstdCompressor(level=19, write_content_size=True).compress(bytes(size))


def silent_bomb(size: int) -> bytes:
    """A frame that does not say how much it unpacks to."""
    return zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(size))


def other_dictionary() -> bytes:
    told = random.Random(8)
    samples = [b"another topic %d" % n + told.randbytes(40) * 3 for n in range(2_000)]
    return zstandard.train_dictionary(4_096, samples, k=512, d=8).as_bytes()


def same_id_other_words() -> bytes:
    """The dictionary with other content under the same id."""
    body = bytearray(honest().dictionary)
    body[-2_000:] = bytes(2_000)
    return bytes(body)


def compressed_by(dictionary: bytes, size: int) -> bytes:
    words = zstandard.ZstdCompressionDict(dictionary)
    return zstandard.ZstdCompressor(dict_data=words).compress(bytes(size))


CASES: dict[str, Callable[[Forged], Forged]] = {
    "more frames than there are": lambda f: replace(f, count=len(f.entries) + 1_000_000),
    "an absurd count": lambda f: replace(f, count=1 << 62),
    "no frames": lambda f: replace(f, entries=(), frames=b""),
    "one frame less": lambda f: replace(f, entries=f.entries[:-1]),
    "an empty frame": lambda f: f.with_entry(0, (0, *f.entries[0][1:])),
    "a frame of no bytes": lambda f: f.with_entry(0, (f.entries[0][0], 0, 0)),
    "a frame over the limit": lambda f: f.with_entry(0, (MAX_PACK_FRAME_BYTES + 1, *f.entries[0][1:])),
    "a frame of 4 GiB": lambda f: f.with_entry(0, (0xFFFFFFFF, *f.entries[0][1:])),
    "packed is more than zstd makes": lambda f: f.with_entry(0, (f.entries[0][0], 3 * f.entries[0][0], 0)),
    "a size one off": lambda f: f.with_entry(0, (f.entries[0][0] + 1, *f.entries[0][1:])),
    "sizes that even out": lambda f: f.with_entry(0, (f.entries[0][0] + 1, *f.entries[0][1:])).with_entry(
        1, (f.entries[1][0] - 1, *f.entries[1][1:])
    ),
    "frames behind the object's end": lambda f: replace(f, stored_bytes=len(f.body()) - 1),
    "an object smaller than its table": lambda f: replace(f, stored_bytes=PACK_HEADER_BYTES),
    "a table that is none": lambda f: replace(f, table_bytes=0),
    "a table over the limit": lambda f: replace(f, table_bytes=MAX_PACK_TABLE_BYTES + 1, stored_bytes=1 << 40),
    "a part of another size": lambda f: replace(f, part_bytes=len(varied()[0]) + 1),
    "a part of 8 EiB": lambda f: replace(f, part_bytes=(1 << 63) - 1),
    "a dictionary over the limit": lambda f: replace(f, dictionary_bytes=MAX_PACK_DICTIONARY_BYTES + 1),
    "a dictionary that is not there": lambda f: replace(f, dictionary_bytes=len(f.dictionary) + 1),
    "a dictionary that is none": lambda f: replace(f, dictionary=bytes(len(f.dictionary))),
    "a dictionary that is cut": lambda f: replace(f, dictionary=f.dictionary[:60]),
    "another dictionary": lambda f: replace(f, dictionary=other_dictionary()),
    "other words under the same id": lambda f: replace(f, dictionary=same_id_other_words()),
    "no dictionary": lambda f: replace(f, dictionary=b""),
    "a frame without the dictionary": lambda f: f.with_frame(0, bomb(f.entries[0][0])),
    "a frame of another dictionary": lambda f: f.with_frame(0, compressed_by(other_dictionary(), f.entries[0][0])),
    "a bomb": lambda f: f.with_frame(0, bomb(1 << 30)),
    "a bomb that does not say so": lambda f: f.with_frame(0, silent_bomb(1 << 30)),
    "two frames in one": lambda f: f.with_frame(0, 2 * f.frames[: f.entries[0][1]]),
    "a skippable frame": lambda f: f.with_frame(0, b"\x50\x2a\x4d\x18" + (16).to_bytes(4, "little") + bytes(16)),
    "no frame at all": lambda f: f.with_frame(0, b"nothing of zstd"),
    "a frame that is cut": lambda f: f.with_frame(0, f.frames[: f.entries[0][1] - 1]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_claims_more_than_it_is_is_refused(case: str) -> None:
    forged = CASES[case](honest()).body()
    with pytest.raises(Corrupt) as refused:
        unpack_all(forged, "forged")
    assert refused.value.source == "forged"


@settings(max_examples=300)
@given(st.integers(0, 1 << 30), st.integers(1, 255))
@example(PACK_HEADER_BYTES, 255)
def test_no_changed_byte_goes_unseen(at: int, change: int) -> None:
    packed = bytearray(varied()[1])
    packed[at % len(packed)] ^= change
    with pytest.raises(Corrupt):
        unpack_all(bytes(packed))


@given(st.integers(0, 1 << 30))
def test_no_cut_goes_unseen(at: int) -> None:
    packed = varied()[1]
    with pytest.raises(Corrupt):
        unpack_all(packed[: at % len(packed)])


def test_a_part_header_of_a_part_that_another_size_is_reported_is_refused() -> None:
    other = part_of_text(3)
    forged = replace(honest(), part_header=other[:PART_HEADER_BYTES]).body()
    with pytest.raises(Corrupt, match="its part header"):
        decode_pack_header(forged[:PACK_HEADER_BYTES], source="forged")
    assert IDENTITY.topic == "orders"
