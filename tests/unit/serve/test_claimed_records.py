"""What a batch's header claims is believed only as far as its bytes can hold it; and every request gets its answer."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.offered_batch import (
    CRC_FROM,
    LARGEST_DECODED_BYTES,
    LEAST_RECORD_BYTES,
    records_that_fit,
)
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.kafka.error_codes import ErrorCode
from support import kafka_oracle
from support.raw_client import PRODUCE_VERSION, batch_of
from support.serve_rig import ServeRig

_COUNT_AT, _LAST_DELTA_AT, _CRC_AT = 57, 23, 17


def claiming(batch: bytes, count: int) -> bytes:
    """The batch with another number of records in its header, its CRC correct."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, _COUNT_AT, count)
    struct.pack_into(">i", changed, _LAST_DELTA_AT, count - 1)
    struct.pack_into(">I", changed, _CRC_AT, crc32c(bytes(changed[CRC_FROM:])))
    return bytes(changed)


def without_records(codec: int) -> bytes:
    batch = bytearray(batch_of(b"x")[:61])
    struct.pack_into(">i", batch, 8, 61 - 12)
    struct.pack_into(">h", batch, CRC_FROM, codec)
    return bytes(batch)


@pytest.mark.fault("batch-61-bytes-claims")
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [1, 2**31 - 1])
async def test_61_bytes_hold_no_record_whatever_they_claim(tmp_path: Path, codec: Codec, count: int) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        await client.write(client.produce_frame("flights", claiming(without_records(codec), count)))
        assert (await client.produced()).error_code == ErrorCode.INVALID_RECORD
        await client.write(client.produce_frame("flights", batch_of(b"x")))
        assert (await client.produced()).base_offset == 0
        assert shard.end_offset == 1


@pytest.mark.fault("batch-61-bytes-claims")
@pytest.mark.parametrize("codec", Codec)
async def test_a_claim_above_what_the_codec_can_make_of_the_bytes_is_refused(tmp_path: Path, codec: Codec) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        batch = batch_of(*[b"value"] * 20, compression=codec)
        most = records_that_fit(codec, len(batch) - 61)
        assert most >= 20
        await client.write(client.produce_frame("flights", claiming(batch, most + 1)))
        refused = await client.produced()
        assert refused.error_code == ErrorCode.INVALID_RECORD and str(most) in (refused.error_message or "")


@pytest.mark.fault("batch-61-bytes-claims")
@pytest.mark.parametrize("codec", Codec)
async def test_the_smallest_and_the_most_compressible_records_are_taken(tmp_path: Path, codec: Codec) -> None:
    """Records without key, value and headers, of the same time: nothing can be packed more densely."""
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        count = 60_000
        batch = encode_batch([Record(NEXT_OFFSET, 1000, None, None)] * count, compression=codec)
        await client.write(client.produce_frame("flights", batch))
        assert (await client.produced()).error_code == 0
        assert shard.end_offset == count


def test_no_payload_holds_more_records_than_a_lookup_would_open() -> None:
    for codec in Codec:
        assert records_that_fit(codec, 0) == 0
        assert records_that_fit(codec, 1 << 40) == LARGEST_DECODED_BYTES // LEAST_RECORD_BYTES
    assert records_that_fit(Codec.NONE, 700) == 100


@pytest.mark.fault("produce-request-names-topics")
@pytest.mark.parametrize("names", [["flights"], ["flights", "other"], []])
async def test_produce_topics_without_partitions_are_answered(tmp_path: Path, names: list[str]) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        topic_class = kafka_oracle.request_class(0).TopicProduceData
        frame = client.frame(
            0,
            PRODUCE_VERSION,
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[topic_class(version=PRODUCE_VERSION, name=name, partition_data=[]) for name in names],
        )
        await client.write(frame)
        answer = kafka_oracle.decode_response(0, PRODUCE_VERSION, await client.read_frame())
        assert [(topic.name, topic.partition_responses) for topic in answer.responses] == [(n, []) for n in names]
        await client.write(client.produce_frame("flights", batch_of(b"x")))
        assert (await client.produced()).error_code == 0, "the line of answers goes on"
