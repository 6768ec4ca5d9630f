"""Batches of aiokafka and kafka-python are read as they meant them, and ours are read by them, with every codec."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import cramjam
import kafka.codec
import kafka.record.default_records as kafka_records
import pytest

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.record_batch import check_batch
from stratalog.formats.batches.records import Record, decode_records, encode_batch

RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value" * 300, (("h", b"1"), ("empty", b""), ("null", None))),
    Record(1, 1_700_000_000_007, None, b"", ()),
    Record(2, 1_699_999_999_999, b"", None, (("ü", b"\xff"),)),
    *(Record(i, 1_700_000_000_000 + i * 37 % 11, b"k" * (i % 70), bytes([i % 251]) * i) for i in range(3, 400)),
]
ORACLES: dict[str, Any] = {"aiokafka": aiokafka_records, "kafka-python": kafka_records}
KAFKA_PYTHON_HAS = {
    Codec.NONE: True,
    Codec.GZIP: kafka.codec.has_gzip(),
    Codec.SNAPPY: kafka.codec.has_snappy(),
    Codec.LZ4: kafka.codec.has_lz4(),
    Codec.ZSTD: kafka.codec.has_zstd(),
}
"""kafka-python needs a library of its own for each codec; aiokafka has them all."""
every_pair = pytest.mark.parametrize(
    ("oracle", "codec"),
    [(o, c) for o in ORACLES for c in Codec if o == "aiokafka" or KAFKA_PYTHON_HAS[c]],
    ids=lambda value: value.name.lower() if isinstance(value, Codec) else value,
)
every_oracle = pytest.mark.parametrize("oracle", ORACLES)


def built_by(oracle: str, codec: int, records: Sequence[Record], **more: Any) -> bytes:
    settings = {"is_transactional": False, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, **more}
    builder = ORACLES[oracle].DefaultRecordBatchBuilder(
        magic=2, compression_type=int(codec), batch_size=1 << 30, **settings
    )
    for record in records:
        builder.append(
            record.offset,
            timestamp=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    return bytes(builder.build())


def read_by(oracle: str, batch: bytes) -> list[Record]:
    parsed = ORACLES[oracle].DefaultRecordBatch(bytearray(batch))
    assert parsed.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in parsed]


@every_pair
def test_a_clients_batch_is_read_as_it_was_meant(oracle: str, codec: Codec) -> None:
    batch = built_by(oracle, codec, RECORDS)
    header = check_batch(batch, source="client")
    assert header.compression == codec
    assert header.record_count == len(RECORDS)
    assert header.max_timestamp_ms == max(r.timestamp_ms for r in RECORDS)
    assert decode_records(batch) == RECORDS


@every_pair
def test_a_client_reads_our_batch_as_we_meant_it(oracle: str, codec: Codec) -> None:
    batch = encode_batch([r._replace(offset=r.offset + 500) for r in RECORDS], base_offset=500, compression=codec)
    assert [r._replace(offset=r.offset - 500) for r in read_by(oracle, batch)] == RECORDS


@every_oracle
def test_producer_fields_and_flags_are_where_clients_put_them(oracle: str) -> None:
    batch = built_by(oracle, 0, RECORDS[:3], is_transactional=True, producer_id=77, producer_epoch=3, base_sequence=9)
    header = check_batch(batch, source="client")
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 9)
    assert header.is_transactional
    assert not header.is_control
    ours = encode_batch(
        RECORDS[:3], is_transactional=True, producer_id=77, producer_epoch=3, base_sequence=9, epoch=header.epoch
    )
    assert ours == batch


def test_an_uncompressed_batch_has_the_same_bytes_everywhere() -> None:
    for oracle in ORACLES:
        batch = built_by(oracle, 0, RECORDS)
        assert encode_batch(RECORDS, epoch=check_batch(batch, source=oracle).epoch) == batch


def test_raw_snappy_as_librdkafka_sends_it_is_read() -> None:
    plain = encode_batch(RECORDS)
    payload = bytes(cramjam.snappy.compress_raw(plain[61:]))
    head = bytearray(plain[:61])
    struct.pack_into(">i", head, 8, 49 + len(payload))
    struct.pack_into(">h", head, 21, Codec.SNAPPY)
    assert decode_records(bytes(head) + payload) == RECORDS


def test_lz4_blocks_are_independent_because_the_java_client_refuses_others() -> None:
    flags = encode_batch(RECORDS, compression=Codec.LZ4)[61 + 4]
    assert flags & 0x20, "block independence"
    assert flags >> 6 == 1, "version"


def test_log_append_time_gives_every_record_the_batchs_time() -> None:
    batch = encode_batch(RECORDS[:5], is_log_append_time=True, max_timestamp_ms=123)
    assert {r.timestamp_ms for r in decode_records(batch)} == {123}
    assert {r.timestamp_ms for r in read_by("kafka-python", batch)} == {123}
