"""Takes a file or an object apart into sections that can be printed: what it is, its header, its batches and records.

Reads in windows where a file can be large; what is damaged is given out up to the damage, then Corrupt is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from crc32c import crc32c

from stratalog.admin_api.wording import human_time
from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.records import decode_records
from stratalog.formats.bucket.bundle import (
    BUNDLE_TRAILER_BYTES,
    decode_bundle_directory,
    decode_bundle_header,
    decode_bundle_trailer,
)
from stratalog.formats.bucket.claim import decode_claim
from stratalog.formats.bucket.cut import decode_cut
from stratalog.formats.bucket.manifest import decode_manifest
from stratalog.formats.bucket.meta_snapshot import decode_head
from stratalog.formats.bucket.part import PART_HEADER_BYTES, decode_part_header, decode_part_index
from stratalog.formats.disk.journal import (
    JOURNAL_ENTRY_HEADER_BYTES,
    JOURNAL_HEADER_BYTES,
    JournalEntryHead,
    check_entry,
    decode_entry_head,
    decode_journal_header,
)
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, decode_segment_header
from stratalog.formats.envelope import Structure, identify
from stratalog.formats.segments.index_block import decode_index_block
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.formats.segments.producers import decode_table
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt
from stratalog.model.segment import SealRecord, SegmentIdentity
from stratalog_node.check.batch_stream import BatchStream

Field: TypeAlias = "str | int | bool | None"

_WINDOW_BYTES = 4 << 20
_LARGEST_WHOLE_BYTES = 64 << 20
"""Of an index, a manifest, a directory: what is not read in windows."""


class Readable(Protocol):
    """A file or an object of known size."""

    name: str
    size_bytes: int

    def read(self, position: int, size_bytes: int) -> bytes:
        """At most `size_bytes`, fewer only at the end."""
        ...

    def holds_only_zeros_from(self, position: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Section:
    """One thing found. `kind` is what (`segment`, `seal`, `part`, `batch`, `record`, …)."""

    kind: str
    fields: dict[str, Field]


@dataclass(frozen=True, slots=True)
class DumpOptions:
    with_records: bool = False
    from_offset: int = 0
    max_batches: int | None = None


def sections_of(source: Readable, options: DumpOptions) -> Iterator[Section]:
    """Raises: Corrupt at the first contradiction, or if the file is not one of Stratalog's."""
    structure = identify(source.read(0, 8))
    if structure is None or structure not in _READERS:
        head = source.read(0, 8).hex()
        found = f"it begins with {head}" if head else "it is empty"
        raise Corrupt(f"not a file of Stratalog: {found}", source=source.name, position=0)
    yield Section("file", {"name": source.name, "bytes": source.size_bytes, "holds": structure.words})
    yield from _READERS[structure](source, options)


def _whole(source: Readable) -> bytes:
    return _at_once(source, 0, source.size_bytes, source.name)


def _at_once(source: Readable, position: int, size_bytes: int, what: str) -> bytes:
    """Bytes that must be held together to be read. Raises: Corrupt for more than any such thing has."""
    if size_bytes > _LARGEST_WHOLE_BYTES:
        raise Corrupt(
            f"{what} is {size_bytes} bytes long, expected at most {_LARGEST_WHOLE_BYTES}",
            source=source.name,
            position=position,
        )
    return source.read(position, size_bytes)


# Structures -------------------------------------------------------------------------------------------------------
def _segment(source: Readable, options: DumpOptions) -> Iterator[Section]:
    identity = decode_segment_header(source.read(0, SEGMENT_HEADER_BYTES), source=source.name)
    yield Section("segment", _identity(identity))
    stream = BatchStream(
        source=source.name, base_offset=identity.base_offset, epoch=identity.epoch, position=SEGMENT_HEADER_BYTES
    )
    looked_from = -1
    while stream.position != looked_from:
        looked_from = stream.position
        try:
            yield from _batches(source, stream, looked_from, source.size_bytes, options)
            break
        except Corrupt:
            if source.holds_only_zeros_from(stream.position):
                room = source.size_bytes - stream.position
                yield Section("room ahead", {"position": stream.position, "bytes": room, "meaning": "being written"})
                break
            if stream.position == looked_from:
                raise
            stream.rewind()  # a node may have filled its room meanwhile: look once more from there
    yield _totals(stream)


def _index(source: Readable, _options: DumpOptions) -> Iterator[Section]:
    block = decode_index_block(_whole(source), source=source.name)
    yield Section("segment", _identity(block.identity))
    yield _seal(block.seal)
    yield from _producers(block.table, source.name)
    yield from _points(block.points)


def _claim(source: Readable, _options: DumpOptions) -> Iterator[Section]:
    claim = decode_claim(_whole(source), source=source.name)
    yield Section(
        "claim",
        {
            "cluster_id": claim.cluster_id,
            "node_id": claim.node_id,
            "storage_id": claim.storage_id,
            "lock_epoch": claim.lock_epoch,
            "nonce": str(claim.nonce),
        },
    )


def _meta_snapshot(source: Readable, _options: DumpOptions) -> Iterator[Section]:
    head = decode_head(_whole(source), source=source.name)
    yield Section(
        "metadata snapshot",
        {
            "cluster_id": head.id.cluster_id,
            "number": head.id.number,
            "version": head.id.version,
            "nonce": str(head.id.nonce),
            "created": human_time(head.created_ms),
            "records": head.record_count,
            "pieces": len(head.pieces),
            "bytes": sum(piece.size_bytes for piece in head.pieces),
        },
    )


def _cut(source: Readable, _options: DumpOptions) -> Iterator[Section]:
    cut = decode_cut(_whole(source), source=source.name)
    names = {topic.topic_id: topic.name for topic in cut.topics}
    yield Section("snapshot", {"name": cut.name, "cluster_id": cut.cluster_id, "created": human_time(cut.created_ms)})
    for shard in cut.shards:
        fields: dict[str, Field] = {
            "topic": names.get(shard.key.topic_id, str(shard.key.topic_id)),
            "shard": shard.key.shard,
        }
        yield Section("cut", fields | {"from": shard.log_start_offset, "to": shard.end_offset, "epoch": shard.epoch})


def _part(source: Readable, options: DumpOptions) -> Iterator[Section]:
    yield from _part_at(source, 0, options)


def _part_at(source: Readable, position: int, options: DumpOptions) -> Iterator[Section]:
    header = decode_part_header(source.read(position, PART_HEADER_BYTES), source=source.name, position=position)
    fields: dict[str, Field] = {
        **_identity(header.identity),
        "from_offset": header.base_offset,
        "to_offset": header.end_offset,
        "position": position,
        "data_bytes": header.data_size_bytes,
        "index_bytes": header.index_size_bytes,
        "batches": header.batch_count,
        "attempt": header.attempt,
        "first_time": human_time(header.first_timestamp_ms),
        "last_time": human_time(header.max_timestamp_ms),
        "digest_before": header.digest_before.hex(),
        "digest_after": header.digest_after.hex(),
    }
    yield Section("part", fields)
    start, end = position + PART_HEADER_BYTES, position + header.index_position
    stream = BatchStream(
        source=source.name,
        base_offset=header.base_offset,
        epoch=header.identity.epoch,
        position=start,
        digest=header.digest_before,
    )
    yield from _batches(source, stream, start, end, options)
    data = _at_once(source, end, header.index_size_bytes, "the part's index")
    index = decode_part_index(data, header, source=source.name, position=end)
    yield from _points(index.points)
    yield _totals(stream)
    if options.max_batches is None and (stream.digest, stream.next_offset) != (header.digest_after, header.end_offset):
        raise Corrupt(
            "the batches do not give the header's end offset and digest", source=source.name, position=position
        )


def _bundle(source: Readable, options: DumpOptions) -> Iterator[Section]:
    header = decode_bundle_header(source.read(0, 128), source=source.name)
    yield Section(
        "bundle",
        {
            "cluster": header.cluster_id,
            "node": header.node_id,
            "lock_epoch": header.lock_epoch,
            "number": header.number,
            "attempt": header.attempt,
        },
    )
    size = source.size_bytes
    tail = source.read(max(0, size - BUNDLE_TRAILER_BYTES), BUNDLE_TRAILER_BYTES)
    trailer = decode_bundle_trailer(tail, source=source.name, object_size=size)
    position, held = trailer.directory_position, trailer.directory_size_bytes
    directory = _at_once(source, position, held, "the bundle's directory")
    for entry in decode_bundle_directory(directory, trailer, source=source.name):
        yield from _part_at(source, entry.position, options)


def _manifest(source: Readable, _options: DumpOptions) -> Iterator[Section]:
    manifest = decode_manifest(_whole(source), source=source.name)
    yield Section("segment", _identity(manifest.identity))
    yield _seal(manifest.seal)
    yield Section(
        "index",
        {
            "object": manifest.index_key,
            "bytes": manifest.index_size_bytes,
            "digest": manifest.index_digest.hex(),
        },
    )
    for run in manifest.key_runs:
        yield Section(
            "key run",
            {
                "object": run.object_key,
                "bytes": run.size_bytes,
                "digest": run.digest.hex(),
                "buckets": run.buckets,
                "entries": run.entries,
                "from_offset": run.from_offset,
                "to_offset": run.to_offset,
            },
        )
    for part in manifest.parts:
        yield Section(
            "remote part",
            {
                "object": part.object_key,
                "position": part.position,
                "bytes": part.size_bytes,
                "from_offset": part.base_offset,
                "to_offset": part.end_offset,
            },
        )


def _journal(source: Readable, options: DumpOptions) -> Iterator[Section]:
    header = decode_journal_header(source.read(0, JOURNAL_HEADER_BYTES), source=source.name)
    yield Section(
        "journal",
        {
            "cluster": header.cluster_id,
            "node": header.node_id,
            "number": header.number,
            "created": human_time(header.created_ms),
        },
    )
    position, entries, reason = JOURNAL_HEADER_BYTES, 0, None
    while position < source.size_bytes:
        try:
            head = _journal_entry(source, header.number, position)
        except Corrupt as torn:
            reason = str(torn)
            break
        if options.max_batches is None or entries < options.max_batches:
            yield _entry(head)
        entries += 1
        position += JOURNAL_ENTRY_HEADER_BYTES + head.size_bytes
    left = source.size_bytes - position
    yield Section("end", {"entries": entries, "bytes_not_of_this_journal": left, "why": reason})


def _journal_entry(source: Readable, number: int, position: int) -> JournalEntryHead:
    """A whole entry's head. Its payload is checked in windows. Raises: Corrupt."""
    front = source.read(position, JOURNAL_ENTRY_HEADER_BYTES)
    head = decode_entry_head(front, number, source=source.name, position=position)
    at = position + JOURNAL_ENTRY_HEADER_BYTES
    held = min(head.size_bytes, source.size_bytes - at)
    crc = 0
    if held == head.size_bytes:
        for begin in range(at, at + held, _WINDOW_BYTES):
            crc = crc32c(source.read(begin, min(_WINDOW_BYTES, at + held - begin)), crc)
    check_entry(head, held, crc, source=source.name, position=position)
    return head


def _entry(head: JournalEntryHead) -> Section:
    segment = head.segment
    return Section(
        "journal entry",
        {
            "topic_id": str(segment.topic_id),
            "shard": segment.shard,
            "epoch": segment.epoch,
            "segment_base_offset": segment.base_offset,
            "position": head.position,
            "bytes": head.size_bytes,
        },
    )


_READERS: dict[Structure, Callable[[Readable, DumpOptions], Iterator[Section]]] = {
    Structure.SEGMENT: _segment,
    Structure.INDEX_BLOCK: _index,
    Structure.PART: _part,
    Structure.BUNDLE: _bundle,
    Structure.MANIFEST: _manifest,
    Structure.KEYED_MANIFEST: _manifest,
    Structure.CLAIM: _claim,
    Structure.META_SNAPSHOT: _meta_snapshot,
    Structure.CUT: _cut,
    Structure.JOURNAL: _journal,
}


# Pieces -----------------------------------------------------------------------------------------------------------
def _batches(source: Readable, stream: BatchStream, start: int, end: int, options: DumpOptions) -> Iterator[Section]:
    shown = 0
    position = start
    while position < end:
        window = source.read(position, min(_WINDOW_BYTES, end - position))
        if not window:
            raise Corrupt(f"ends {end - position} bytes early", source=source.name, position=position)
        position += len(window)
        for at, header, data in stream.feed(window):
            if header.end_offset <= options.from_offset:
                continue
            if options.max_batches is not None and shown >= options.max_batches:
                return
            shown += 1
            yield _batch(at, header)
            if options.with_records:
                yield from _records(bytes(data), source.name, at)
    stream.finish()


def _batch(position: int, header: BatchHeader) -> Section:
    flags = [
        name
        for name, is_set in (
            ("log append time", header.is_log_append_time),
            ("transactional", header.is_transactional),
            ("control", header.is_control),
        )
        if is_set
    ]
    return Section(
        "batch",
        {
            "position": position,
            "bytes": header.size_bytes,
            "from_offset": header.base_offset,
            "to_offset": header.end_offset,
            "records": header.record_count,
            "codec": Codec(header.compression).name.lower()
            if header.compression in list(Codec)
            else header.compression,
            "epoch": header.epoch,
            "first_time": human_time(header.base_timestamp_ms),
            "last_time": human_time(header.max_timestamp_ms),
            "producer": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "sequence": header.base_sequence,
            "crc": f"{header.crc:08x}",
            "flags": ", ".join(flags),
        },
    )


def _records(batch: bytes, name: str, position: int) -> Iterator[Section]:
    for record in decode_records(batch, source=name, position=position):
        headers = ", ".join(f"{key}={_text(value)}" for key, value in record.headers)
        yield Section(
            "record",
            {
                "offset": record.offset,
                "time": human_time(record.timestamp_ms),
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": headers,
            },
        )


def _text(value: bytes | None) -> str | None:
    """UTF-8 as it is, anything else as 0x…"""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() or not text else text.encode("unicode_escape").decode()


def _totals(stream: BatchStream) -> Section:
    return Section(
        "end",
        {
            "batches": stream.batches,
            "records": stream.records,
            "next_offset": stream.next_offset,
            "digest": stream.digest.hex(),
        },
    )


def _identity(identity: SegmentIdentity) -> dict[str, Field]:
    return {
        "cluster": identity.cluster_id,
        "topic": identity.topic,
        "topic_id": str(identity.topic_id),
        "shard": identity.shard,
        "epoch": identity.epoch,
        "base_offset": identity.base_offset,
        "created": human_time(identity.created_ms),
    }


def _seal(seal: SealRecord) -> Section:
    return Section(
        "seal",
        {
            "epoch": seal.epoch,
            "base_offset": seal.base_offset,
            "end_offset": seal.end_offset,
            "batch_bytes": seal.size_bytes,
            "digest": seal.digest.hex(),
            "first_time": human_time(seal.first_timestamp_ms),
            "last_time": human_time(seal.max_timestamp_ms),
            "times_known": seal.times_known.value,
            "sealed": human_time(seal.sealed_ms),
            "replicas": ", ".join(str(node) for node in seal.replicas),
            "producers": seal.producers.count,
            "producers_digest": seal.producers.digest.hex() or None,
        },
    )


def _producers(table: bytes, source: str) -> Iterator[Section]:
    for producer in decode_table(table, source=source):
        last = producer.batches[-1].last_sequence if producer.batches else None
        yield Section(
            "producer",
            {
                "producer": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_append": human_time(producer.last_append_ms),
                "last_sequence": last,
            },
        )


def _points(points: IndexPoints) -> Iterator[Section]:
    for number in range(len(points)):
        point = points[number]
        yield Section(
            "index point",
            {"offset": point.offset, "position": point.position, "times_before": human_time(point.max_timestamp_ms)},
        )
