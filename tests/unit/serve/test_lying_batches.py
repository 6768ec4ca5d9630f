"""What Kafka answers to batches that lie in one field of their header or their records, and what this node answers.

Kafka's answers were recorded with Kafka 4.3.1, one node, a topic with default settings, each batch of
`support.lying_batches` produced by itself in version 9, with `python -m support.kafka_answers --lying-batches`.
Where the answers differ, the reason is here and in docs/kafka.md.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.offered_batch import FaultyBatch, assign, check_offered
from stratalog.formats.batches.record_batch import check_batch, parse_header
from stratalog.formats.batches.record_times import Opened, times_of
from stratalog.formats.batches.records import (
    decode_records,
    first_offset_at_or_after,
    offset_of_max_timestamp,
    records_of_key,
)
from stratalog.formats.bucket.key_runs import find_keys
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import Corrupt
from stratalog_pipeline.decode.columns import Wanted, batches_to_columns
from support.lying_batches import NOW_MS, batch, lying_batches
from support.serve_rig import ServeRig

KAFKA: dict[str, int] = json.loads((Path(__file__).parent / "kafka_answers_to_lying_batches.json").read_text())
BATCHES = lying_batches()
_UNKNOWN_ERROR, _CORRUPT, _INVALID, _OLD_FORMAT, _CODEC, _TXN_STATE = -1, 2, 87, 43, 76, 48
_TXN_RIGHTS = 53

OTHER_REFUSALS = {
    # Kafka reads a batch as far as its length says, and what follows as the next one.
    "length 49": (_CORRUPT, _INVALID),
    "length 66": (_CORRUPT, _INVALID),
    "zeros behind": (_CORRUPT, _INVALID),
    # The length is outside the CRC: a client may repeat what the network may have changed.
    "length 68": (_INVALID, _CORRUPT),
    "length 2147483647": (_UNKNOWN_ERROR, _CORRUPT),
    "cut short": (_INVALID, _CORRUPT),
    # Says what is wrong.
    "magic 0": (_INVALID, _OLD_FORMAT),
    "magic 1": (_INVALID, _OLD_FORMAT),
    "magic 3": (_CORRUPT, _OLD_FORMAT),
    "magic 127": (_CORRUPT, _OLD_FORMAT),
    "magic -1": (_CORRUPT, _OLD_FORMAT),
    "zeros": (_CORRUPT, _OLD_FORMAT),
    "message of magic 0": (_INVALID, _OLD_FORMAT),
    "message of magic 1": (_INVALID, _OLD_FORMAT),
    "attributes 0x5": (_UNKNOWN_ERROR, _CODEC),
    "attributes 0x6": (_UNKNOWN_ERROR, _CODEC),
    "attributes 0x7": (_UNKNOWN_ERROR, _CODEC),
    "gzip: nothing packed": (_UNKNOWN_ERROR, _INVALID),
    "snappy: nothing packed": (_UNKNOWN_ERROR, _INVALID),
    "lz4: nothing packed": (_UNKNOWN_ERROR, _INVALID),
    # No transactions here.
    "attributes 0x10": (_TXN_RIGHTS, _TXN_STATE),
    "attributes 0x18": (_TXN_RIGHTS, _TXN_STATE),
    "attributes 0x30": (_TXN_RIGHTS, _INVALID),
    "transaction of a producer": (_TXN_RIGHTS, _TXN_STATE),
    "producer 11 epoch -32768 sequence 0": (int(ErrorCode.INVALID_PRODUCER_EPOCH), _INVALID),
}
ONLY_KAFKA_TAKES = {
    "producer 7 epoch -1 sequence 0": "a producer without an epoch cannot be fenced",
    "garbage behind": "Kafka drops what is behind the batch without a word",
}


def is_inside(name: str) -> bool:
    """The lie is in the records, or in how they are packed: the node does not open them."""
    packed = name.endswith((": not packed", "cut short")) and name != "cut short"
    packed = packed or (name.startswith(("gzip ", "snappy ", "lz4 ", "zstd ")) and name.endswith(("behind", "frames")))
    return name.startswith(("record", "base timestamp -9223372036854775808", "count and delta of 1")) or packed


def is_base_offset(name: str) -> bool:
    """The node writes it into each batch."""
    return "base offset" in name


@pytest.mark.fault("producer-sends-batches-lie")
async def test_answers_are_kafkas_or_differ_for_a_reason(tmp_path: Path) -> None:
    wrong = []
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        for name, data in BATCHES.items():
            before = shard.end_offset
            await client.write(client.produce_frame("flights", data))
            ours = (await client.produced()).error_code
            assert (shard.end_offset > before) == (ours == 0), name
            kafkas = KAFKA[name]
            if ours == kafkas:
                is_right = name not in OTHER_REFUSALS and name not in ONLY_KAFKA_TAKES
            elif ours == 0:
                is_right = is_inside(name) or is_base_offset(name)
            elif kafkas == 0:
                is_right = name in ONLY_KAFKA_TAKES
            else:
                is_right = OTHER_REFUSALS.get(name) == (kafkas, ours)
            if not is_right:
                wrong.append((name, f"Kafka {kafkas}", f"here {ours}"))
    assert not wrong
    assert KAFKA.keys() == BATCHES.keys()


@pytest.mark.fault("client-claims-batch-header")
async def test_only_the_log_says_that_it_gave_a_batch_its_time(tmp_path: Path) -> None:
    """Kafka clears the flag too: a lookup finds the first record, with its own time."""
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch(attributes=0x08)))
        assert (await client.produced()).error_code == 0
        await client.write(client.fetch_frame("flights", 0))
        stored = check_batch((await client.fetched())[0].records, source="answer")
        assert not stored.is_log_append_time
        # What a flag with a false time would have hidden from the window.
        future = batch(attributes=0x08, base_timestamp=2**62, max_timestamp=NOW_MS)
        await client.write(client.produce_frame("flights", future))
        assert (await client.produced()).error_code == ErrorCode.INVALID_TIMESTAMP


def accepted() -> dict[str, bytes]:
    """Those that are stored, as they are."""
    found = {}
    for name, data in BATCHES.items():
        view = memoryview(bytearray(data))
        if not isinstance(check_offered(view, 1 << 20), FaultyBatch):
            assign(view, 1_000, 0)
            found[name] = bytes(view)
    return found


BEHIND = [name for name in accepted() if " behind" in name and name.startswith(("gzip ", "snappy ", "lz4 ", "zstd "))]


@pytest.mark.fault("batch-bytes-behind-stream")
@pytest.mark.parametrize("name", BEHIND)
def test_what_follows_a_compressed_stream_is_passed_over_where_kafka_does(name: str) -> None:
    data = accepted()[name]
    if KAFKA[name] == 0:
        assert [record.offset for record in decode_records(data)] == [1_000, 1_001]
        assert times_of(data, parse_header(data)).opened is Opened.ALL
    else:
        with pytest.raises(Corrupt):
            decode_records(data)


@pytest.mark.fault("producer-sends-batches-lie")
@pytest.mark.parametrize("name", accepted())
def test_whoever_opens_a_stored_batch_reads_the_same_or_refuses_it_by_type(name: str) -> None:
    data = accepted()[name]
    check_batch(data, source="the log")
    headers = BatchHeaders(data, (0, len(data)))
    times = times_of(data, parse_header(data))
    try:
        records = decode_records(data)
    except Corrupt:
        with suppress(Corrupt):  # it does not look into records that have another key
            assert {record.offset for record in records_of_key(data, b"k").records} <= {1_000, 1_001}
        with pytest.raises(Corrupt):
            list(batches_to_columns(data, headers, topic="t", shard=0, wanted=Wanted(), source="a part"))
        return
    rows = [
        row
        for table in batches_to_columns(data, headers, topic="t", shard=0, wanted=Wanted(), source="a part")
        for row in table.to_pylist()
    ]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (record.offset, record.key, record.value) for record in records
    ]
    shown = [[(header["key"], header["value"]) for header in row["headers"] or ()] for row in rows]
    assert shown == [list(record.headers) for record in records]
    json.dumps([header for record in records for header, _ in record.headers]).encode()
    "".join(header for record in records for header, _ in record.headers).encode()
    keys = {record.key for record in records if record.key is not None}
    assert sum(len(found.hashes) for _, found in find_keys(data, headers, source="a part")) == len(keys)
    assert [one.offset for one in records_of_key(data, b"k").records] == [
        record.offset for record in records if record.key == b"k"
    ]
    if times.opened is Opened.ALL:
        stamps = [max(record.timestamp_ms, -1) for record in records]
        assert (times.lowest_ms, times.highest_ms) == (min(stamps, default=-1), max(stamps, default=-1))
        newest = offset_of_max_timestamp(data)
        assert (newest.timestamp_ms if newest else -1) == times.highest_ms
        assert first_offset_at_or_after(data, times.highest_ms + 1) is None
