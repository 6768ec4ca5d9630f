"""What a shard remembers of its idempotent producers, as bytes; shared by checkpoint, index block and manifest."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.formats.fields import FieldReader, FieldWriter
from stratalog.model.errors import InvalidRequest
from stratalog.model.producers import BatchMemo, ProducerSnapshot

MAX_MEMOS = 5
MEMO_BYTES = 24
PRODUCER_MIN_BYTES = 19


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
