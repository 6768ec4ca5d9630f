"""A packed chunk: a part whose batches are stored as zstd frames, so that any range of the part can be read alone
(docs/formats.md section 17).

Invariant: what is unpacked is the part, byte for byte, so its digests, positions and index stay true.
Nothing that an object claims is believed before it is bounded: sizes are compared with each other and with the limits
before memory is asked for, and a frame's own claim must be the table's.
Cost: packing about 60 MB/s, unpacking about 500 MB/s, the interpreter's lock given up. For threads, not for the event
loop.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import zstandard
from crc32c import crc32c

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.part import PART_HEADER_BYTES, decode_part_header
from stratalog.formats.envelope import (
    ENVELOPE_BYTES,
    PREAMBLE_BYTES,
    Structure,
    open_envelope,
    open_fixed,
    seal_envelope,
    seal_fixed,
)
from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.model.errors import Corrupt

PACK_HEADER_BYTES: Final = 1024
PACK_FRAME_BYTES: Final = 64 << 10
"""What a writer puts into one frame: whole batches up to this size, or one that is larger."""
MAX_PACK_FRAME_BYTES: Final = 16 << 20
MAX_PACK_TABLE_BYTES: Final = 1 << 20
MAX_PACK_DICTIONARY_BYTES: Final = 128 << 10
MAX_PACKED_PART_BYTES: Final = 1 << 30
PACK_ENTRY_BYTES: Final = 12

_LEVELS: Final = (6, 12, 19)
"""The first one packs. The others only where an object of a given size has to be made again."""
_DICTIONARY_BYTES: Final = 112 << 10
_LEAST_DICTIONARY_BYTES: Final = 4 << 10
_DATA_PER_DICTIONARY: Final = 100
"""A dictionary is trained from a hundred times its bytes, or more; so it is at most one percent of what it packs."""
_SAMPLE_BYTES: Final = 8 << 10
_SAMPLES: Final = 1_024
_TRIALS: Final = 16
_MAPPED_BYTES: Final = 4 << 20
_WORTH: Final = 7 / 8
"""A packed chunk is at most so much of the part; what would be more stays as it is."""


@dataclass(frozen=True, slots=True)
class PackHeader:
    """The front of a packed chunk. `part_header` is the part's own, as it is."""

    stored_bytes: int
    """Of the whole object."""
    part_bytes: int
    table_bytes: int
    part_header: bytes = field(repr=False)

    @property
    def frames_position(self) -> int:
        return PACK_HEADER_BYTES + self.table_bytes


@dataclass(frozen=True, slots=True)
class PackLayout:
    """Where the frames of a packed chunk are, and what they unpack to.

    `part_ends[n]` and `stored_ends[n]`: where frame n ends, in the part and in the object."""

    header: PackHeader
    part_ends: array[int]
    stored_ends: array[int]
    crcs: array[int]
    dictionary: zstandard.ZstdCompressionDict | None = field(repr=False)

    def frames_of(self, start: int, end: int) -> range:
        """The frames that cover bytes `[start, end)` of the part; none where its header covers them."""
        if end <= PART_HEADER_BYTES or end <= start:
            return range(0)
        return range(bisect_right(self.part_ends, start), bisect_left(self.part_ends, end) + 1)

    def stored_range(self, frames: range) -> tuple[int, int]:
        """Where these frames are in the object."""
        return self._starts(self.stored_ends, self.header.frames_position, frames.start), self.stored_ends[frames[-1]]

    def part_start(self, frame: int) -> int:
        return self._starts(self.part_ends, PART_HEADER_BYTES, frame)

    def stored_start(self, frame: int) -> int:
        return self._starts(self.stored_ends, self.header.frames_position, frame)

    def _starts(self, ends: array[int], first: int, frame: int) -> int:
        return ends[frame - 1] if frame else first


# Writing ------------------------------------------------------------------------------------------------------------
def pack_part(part: Buffer, *, source: str) -> bytes | None:
    """A packed chunk of one whole, checked part; None where that is not worth it: its batches are compressed already,
    or one of them is larger than a frame may be."""
    frames = _cut(memoryview(part), source)
    if frames is None:
        return None
    packed = _pack(memoryview(part), frames, _LEVELS[0])
    return packed if len(packed) <= _WORTH * len(part) else None


def pack_to_size(part: Buffer, stored_bytes: int, *, source: str) -> bytes:
    """A packed chunk of exactly this size, because the manifest names it. Raises: Corrupt if no chunk can have it."""
    frames = _cut(memoryview(part), source)
    for level in _LEVELS if frames is not None else ():
        assert frames is not None, "or there is no level to try"
        packed = _pack(memoryview(part), frames, level)
        if len(packed) <= stored_bytes:
            return packed if len(packed) == stored_bytes else _pack(memoryview(part), frames, level, stored_bytes)
    raise Corrupt(f"its batches do not pack into {stored_bytes} bytes", source=source, position=0)


def is_worth_packing(batches: Buffer) -> bool:
    """What a stretch of a part's batches lets expect of it."""
    return bool(len(batches)) and len(_compressor(None, _LEVELS[0]).compress(batches)) <= _WORTH * len(batches)


def _cut(part: memoryview, source: str) -> list[memoryview] | None:
    """All behind the part's header: whole batches up to a frame's size, and the index by itself."""
    header = decode_part_header(part, source=source)
    ends: list[int] = []
    start = PART_HEADER_BYTES
    for at, batch in walk(part[PART_HEADER_BYTES : header.index_position], source=source, verify=False):
        begin = PART_HEADER_BYTES + at
        if begin > start and begin + batch.size_bytes - start > PACK_FRAME_BYTES:
            ends.append(begin)
            start = begin
    ends += [header.index_position, *range(header.index_position + PACK_FRAME_BYTES, len(part), PACK_FRAME_BYTES)]
    ends += [len(part)]
    frames = [part[begin:end] for begin, end in zip([PART_HEADER_BYTES, *ends], ends, strict=False) if end > begin]
    table_bytes = ENVELOPE_BYTES + 16 + MAX_PACK_DICTIONARY_BYTES + PACK_ENTRY_BYTES * len(frames)
    if max(map(len, frames)) > MAX_PACK_FRAME_BYTES or table_bytes > MAX_PACK_TABLE_BYTES:
        return None
    return frames if len(part) <= MAX_PACKED_PART_BYTES else None


def _pack(part: memoryview, frames: Sequence[memoryview], level: int, stored_bytes: int = 0) -> bytes:
    dictionary = _train(part, frames, level)
    compressor = _compressor(dictionary, level)
    packed = [compressor.compress(frame) for frame in frames]
    table = FieldWriter()
    table.natural(len(frames), "frame count")
    for frame, body in zip(frames, packed, strict=True):
        table.u32(len(frame), "frame's size")
        table.u32(len(body), "frame's packed size")
        table.u32(crc32c(body), "frame's crc")
    table.natural(0 if dictionary is None else len(dictionary), "dictionary size")
    if dictionary is not None:
        table.raw(dictionary.as_bytes())
    table_body = seal_envelope(Structure.PACK_TABLE, table.getvalue())
    needed = PACK_HEADER_BYTES + len(table_body) + sum(map(len, packed))
    head = FieldWriter()
    head.natural(max(needed, stored_bytes), "object's size")
    head.natural(len(part), "part's size")
    head.natural(len(table_body), "table's size")
    head.raw(part[:PART_HEADER_BYTES])
    head.pad_to(PACK_HEADER_BYTES - PREAMBLE_BYTES, "pack header")
    padding = bytes(max(0, stored_bytes - needed))
    return b"".join([seal_fixed(Structure.PACKED_CHUNK, head.getvalue()), table_body, *packed, padding])


def _compressor(dictionary: zstandard.ZstdCompressionDict | None, level: int) -> zstandard.ZstdCompressor:
    # The checksum is of what comes out: a dictionary that is another one with the same id is seen.
    return zstandard.ZstdCompressor(level=level, dict_data=dictionary, write_checksum=True, write_content_size=True)


def _train(part: memoryview, frames: Sequence[memoryview], level: int) -> zstandard.ZstdCompressionDict | None:
    """A dictionary from the part's own bytes, so that no byte of a record outlives its segment. None where it would
    take more than it spares, by trial."""
    size = min(_DICTIONARY_BYTES, len(part) // _DATA_PER_DICTIONARY)
    if size < _LEAST_DICTIONARY_BYTES:
        return None
    stride = max(_SAMPLE_BYTES, len(part) // _SAMPLES)
    samples: list[bytes | bytearray | memoryview[int]]
    samples = [bytes(part[at : at + _SAMPLE_BYTES]) for at in range(PART_HEADER_BYTES, len(part), stride)]
    try:
        dictionary = zstandard.train_dictionary(size, samples, k=1024, d=8)
    except zstandard.ZstdError:
        return None  # there is nothing that comes again
    trials = frames[:: max(1, len(frames) // _TRIALS)]
    plain = sum(len(_compressor(None, level).compress(frame)) for frame in trials)
    primed = sum(len(_compressor(dictionary, level).compress(frame)) for frame in trials)
    spared = (plain - primed) / sum(map(len, trials)) * len(part)
    return dictionary if spared > len(dictionary) else None


# Reading ------------------------------------------------------------------------------------------------------------
def decode_pack_header(data: Buffer, *, source: str) -> PackHeader:
    """From the first PACK_HEADER_BYTES of a packed chunk. Raises: Corrupt."""
    fields = open_fixed(data, Structure.PACKED_CHUNK, PACK_HEADER_BYTES, source=source, position=0)
    stored_bytes = fields.natural("object's size")
    part_bytes = fields.natural("part's size")
    table_bytes = fields.natural("table's size")
    part_header = bytes(fields.read_bytes(PART_HEADER_BYTES, "part header"))
    fields.zeros_to_end()
    part = decode_part_header(part_header, source=source, position=PREAMBLE_BYTES + 24)
    if part.size_bytes != part_bytes or not PART_HEADER_BYTES < part_bytes <= MAX_PACKED_PART_BYTES:
        fields.refuse(f"packed chunk claims a part of {part_bytes} bytes, its part header {part.size_bytes}")
    if not ENVELOPE_BYTES < table_bytes <= MAX_PACK_TABLE_BYTES:
        fields.refuse(f"packed chunk claims a frame table of {table_bytes} bytes")
    if not PACK_HEADER_BYTES + table_bytes < stored_bytes:
        fields.refuse(f"packed chunk claims {stored_bytes} bytes, header and frame table have more")
    return PackHeader(stored_bytes, part_bytes, table_bytes, part_header)


def decode_pack_table(data: Buffer, header: PackHeader, *, source: str) -> PackLayout:
    """From the `table_bytes` behind the header. Raises: Corrupt."""
    fields = open_envelope(data, Structure.PACK_TABLE, source=source, position=PACK_HEADER_BYTES)
    sizes, packed_sizes, crcs = array("q"), array("q"), array("q")
    for _ in range(fields.count("frame count", PACK_ENTRY_BYTES)):
        size, packed_size = fields.u32("frame's size"), fields.u32("frame's packed size")
        if not 0 < size <= MAX_PACK_FRAME_BYTES:
            fields.refuse(f"a frame claims {size} bytes unpacked", back=8)
        if not 0 < packed_size <= size + (size >> 7) + 128:  # zstd never makes more of it
            fields.refuse(f"a frame of {size} bytes claims {packed_size} packed", back=4)
        sizes.append(size)
        packed_sizes.append(packed_size)
        crcs.append(fields.u32("frame's crc"))
    dictionary = _read_dictionary(fields)
    fields.finish()
    part_ends = _ends(PART_HEADER_BYTES, sizes)
    stored_ends = _ends(header.frames_position, packed_sizes)
    if not sizes or part_ends[-1] != header.part_bytes:
        fields.refuse(f"frames lead to byte {part_ends[-1] if sizes else 0} of a part of {header.part_bytes}")
    if stored_ends[-1] > header.stored_bytes:
        fields.refuse(f"frames lead to byte {stored_ends[-1]} of an object of {header.stored_bytes}")
    return PackLayout(header, part_ends, stored_ends, crcs, dictionary)


def _read_dictionary(fields: FieldReader) -> zstandard.ZstdCompressionDict | None:
    size = fields.natural("dictionary size")
    if size > MAX_PACK_DICTIONARY_BYTES:
        fields.refuse(f"a dictionary claims {size} bytes, the limit is {MAX_PACK_DICTIONARY_BYTES}", back=8)
    if not size:
        return None
    body = bytes(fields.read_bytes(size, "dictionary"))
    dictionary = zstandard.ZstdCompressionDict(body, dict_type=zstandard.DICT_TYPE_AUTO)
    if not dictionary.dict_id():
        fields.refuse("the dictionary is none", back=size)
    return dictionary


def _ends(start: int, sizes: Iterable[int]) -> array[int]:
    return array("q", list(accumulate(sizes, initial=start))[1:])


class Unpacking:
    """Bytes `[start, end)` of the part, opened piece by piece. `data` are just these frames, as the object has them.

    Memory: the range, and one frame. For one thread at a time."""

    __slots__ = ("_data", "_end", "_first", "_frames", "_layout", "_next", "_out", "_source", "_start")

    def __init__(self, layout: PackLayout, data: Buffer, frames: range, start: int, end: int, *, source: str) -> None:
        self._layout = layout
        self._data = memoryview(data)
        self._frames = frames
        self._first = layout.stored_start(frames.start) if frames else 0
        self._next = frames.start
        self._start, self._end = start, end
        self._source = source
        self._out: memoryview | None = None

    def unpack_more(self, most_bytes: int | None = None) -> memoryview | None:
        """Unpacks about this many more bytes, or all. Returns the range once all of it is there. Raises: Corrupt."""
        if self._out is None:
            self._out = _room(self._end - self._start)
            if self._start < PART_HEADER_BYTES:
                head = self._layout.header.part_header[self._start : min(self._end, PART_HEADER_BYTES)]
                self._out[: len(head)] = head
        opened = 0
        while self._next < self._frames.stop:
            if most_bytes is not None and opened >= most_bytes:
                return None
            opened += self._open(self._out, self._next)
            self._next += 1
        return self._out

    def _open(self, out: memoryview, frame: int) -> int:
        layout = self._layout
        position, begin = layout.stored_start(frame), layout.part_start(frame)
        body = self._data[position - self._first : layout.stored_ends[frame] - self._first]
        opened = _open_frame(layout, frame, body, source=self._source, position=position)
        low, high = max(self._start, begin), min(self._end, layout.part_ends[frame])
        out[low - self._start : high - self._start] = memoryview(opened)[low - begin : high - begin]
        return len(opened)


def _room(size_bytes: int) -> memoryview:
    """Memory to be written. To clear hundreds of megabytes in one go holds the interpreter, and with it the event loop,
    for a tenth of a second: of much, the kernel gives page by page what is written."""
    if size_bytes < _MAPPED_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes))


def unpack(layout: PackLayout, data: Buffer, frames: range, start: int, end: int, *, source: str) -> memoryview:
    """As `Unpacking`, all at once."""
    out = Unpacking(layout, data, frames, start, end, source=source).unpack_more()
    assert out is not None, "nothing bounds it"
    return out


def _open_frame(layout: PackLayout, frame: int, body: memoryview, *, source: str, position: int) -> bytes:
    size = layout.part_ends[frame] - layout.part_start(frame)
    if len(body) != layout.stored_ends[frame] - position or crc32c(body) != layout.crcs[frame]:
        raise Corrupt("a frame is not the one that the frame table names", source=source, position=position)
    dictionary = layout.dictionary
    try:
        parameters = zstandard.get_frame_parameters(body)
        claims = (parameters.content_size, parameters.dict_id)
        expected = (size, 0 if dictionary is None else dictionary.dict_id())
        if claims != expected or parameters.window_size > MAX_PACK_FRAME_BYTES:
            raise Corrupt(
                f"a frame claims size and dictionary {claims}, the frame table {expected}",
                source=source,
                position=position,
            )
        opened = zstandard.ZstdDecompressor(dict_data=dictionary).decompress(
            body, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise Corrupt(f"a frame does not unpack: {error}", source=source, position=position) from error
    if len(opened) != size:
        raise Corrupt(f"a frame unpacks to {len(opened)} bytes, not {size}", source=source, position=position)
    return opened
