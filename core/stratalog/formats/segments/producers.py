"""What a shard remembers of its idempotent producers, as bytes: in checkpoints, and as the table of an index block,
whose tally is in the seal record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.formats.segments.digest import EMPTY_DIGEST, object_digest
from stratalog.model.errors import InvalidRequest
from stratalog.model.producers import NO_PRODUCERS, BatchMemo, ProducerRule, ProducerSnapshot, ProducerTally

COUNT_BYTES = 8
MAX_MEMOS = 5
MEMO_BYTES = 24
PRODUCER_MIN_BYTES = 19
NO_TABLE = b""
"""Of a segment at whose end no producer is known."""


def encode_table(producers: Iterable[ProducerSnapshot]) -> bytes:
    """One encoding of each table: equal ones have equal bytes. Raises: InvalidRequest."""
    ordered = sorted(producers)
    if not ordered:
        return NO_TABLE
    out = FieldWriter()
    write_producers(out, ordered)
    return out.getvalue()


def decode_table(table: Buffer, *, source: str) -> tuple[ProducerSnapshot, ...]:
    """Raises: Corrupt."""
    if not len(table):
        return ()
    fields = FieldReader(table, source=source, position=0)
    producers = read_producers(fields)
    fields.finish()
    return producers


def tally_of(producers: tuple[ProducerSnapshot, ...], table: bytes, rule: ProducerRule) -> ProducerTally:
    """What a seal record says of a table: the producers, and their encoding."""
    if not producers:
        return NO_PRODUCERS
    return ProducerTally(len(producers), object_digest(table), rule.limit, rule.expiration_ms)


def most_table_bytes(tally: ProducerTally) -> int:
    """What the table that a seal record speaks of has at most: more is not it, whatever it holds."""
    return COUNT_BYTES + tally.count * (PRODUCER_MIN_BYTES + MAX_MEMOS * MEMO_BYTES)


def table_fault(table: Buffer, tally: ProducerTally) -> str | None:
    """Why this is not the table that a seal record speaks of; None when it is."""
    found = object_digest(table) if len(table) else b""
    if found == tally.digest:
        return None
    return f"a table of producers with digest {found.hex() or 'none'}, the seal says {tally.digest.hex() or 'none'}"


def write_tally(out: FieldWriter, tally: ProducerTally) -> None:
    out.natural(tally.count, "producer count")
    out.digest(tally.digest or EMPTY_DIGEST, "digest of the producers")
    out.natural(tally.limit, "most producers")
    out.natural(tally.expiration_ms, "expiration of producers")


def read_tally(fields: FieldReader) -> ProducerTally:
    tally = ProducerTally(
        fields.natural("producer count"),
        fields.digest("digest of the producers"),
        fields.natural("most producers"),
        fields.natural("expiration of producers"),
    )
    if tally.count:
        return tally
    if tally != replace(NO_PRODUCERS, digest=EMPTY_DIGEST):
        fields.refuse("no producers, and something is said of them")
    return NO_PRODUCERS


def write_producers(out: FieldWriter, producers: Iterable[ProducerSnapshot]) -> None:
    """Written in the order of their ids, so that equal states have equal bytes."""
    ordered = sorted(producers)
    out.natural(len(ordered), "producer count")
    previous = -1
    for producer in ordered:
        if producer.producer_id <= previous:
            raise InvalidRequest(f"producer {producer.producer_id} is below 0 or listed twice")
        if len(producer.batches) > MAX_MEMOS:
            raise InvalidRequest(
                f"producer {producer.producer_id} has {len(producer.batches)} batches: at most {MAX_MEMOS} are kept"
            )
        previous = producer.producer_id
        out.natural(producer.producer_id, "producer id")
        out.i16(producer.producer_epoch, "producer epoch")
        out.i64(producer.last_append_ms, "producer's last append")
        out.u8(len(producer.batches), "producer's batches")
        for memo in producer.batches:
            out.i32(memo.first_sequence, "first sequence")
            out.i32(memo.last_sequence, "last sequence")
            out.natural(memo.base_offset, "batch's base offset")
            out.i64(memo.timestamp_ms, "batch's timestamp")


def read_producers(fields: FieldReader) -> tuple[ProducerSnapshot, ...]:
    found: list[ProducerSnapshot] = []
    previous = -1
    for _ in range(fields.count("producer count", PRODUCER_MIN_BYTES)):
        producer_id = fields.natural("producer id")
        if producer_id <= previous:
            fields.refuse(f"producer {producer_id} follows producer {previous}: ids must rise", back=8)
        previous = producer_id
        producer_epoch = fields.i16("producer epoch")
        last_append_ms = fields.i64("producer's last append")
        memos = fields.u8("producer's batches")
        if memos > MAX_MEMOS:
            fields.refuse(f"producer {producer_id} claims {memos} batches, at most {MAX_MEMOS} are kept", back=1)
        batches = tuple(
            BatchMemo(
                fields.i32("first sequence"),
                fields.i32("last sequence"),
                fields.natural("batch's base offset"),
                fields.i64("batch's timestamp"),
            )
            for _ in range(memos)
        )
        found.append(ProducerSnapshot(producer_id, producer_epoch, last_append_ms, batches))
    return tuple(found)
