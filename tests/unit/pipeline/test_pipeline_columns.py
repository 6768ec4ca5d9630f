"""What the columns of the pipeline say of record batches."""

from __future__ import annotations

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import numpy as np

from stratalog.formats.batches.compression import Codec, TooLarge
from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.model.errors import Corrupt
from stratalog_pipeline.decode import columns
from stratalog_pipeline.decode.columns import Wanted
from support.decoded_records import expected_rows, headers_of, rows_of
from support.hostile_batches import GARBAGE, claiming

AT = 1_700_000_000_000


def batch(base: int, count: int, **more: object) -> bytes:
    records = [
        Record(base + n, AT + base + n, b"k%d" % n, b"v" * (n % 7), (("h", b"x"),) * (n % 3)) for n in range(count)
    ]
    return encode_batch(records, base_offset=base, epoch=4, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_gives_the_same_rows(codec: Codec) -> None:
    batches = [batch(base, 10, compression=codec) for base in range(0, 100, 10)]
    assert rows_of(batches) == expected_rows(batches)


def test_batches_of_several_codecs_may_follow_each_other() -> None:
    batches = [batch(10 * n, 10, compression=codec) for n, codec in enumerate(Codec)]
    assert rows_of(batches) == expected_rows(batches)


def test_many_batches_of_different_lengths_are_read_together() -> None:
    counts, base, batches = [1, 90, 3, 1, 60, 2] * 12, 0, []
    for count in counts:
        batches.append(batch(base, count))
        base += count
    assert rows_of(batches) == expected_rows(batches)


def test_a_control_batch_has_no_rows_and_a_transactional_one_has() -> None:
    marker = encode_batch([Record(5, AT, b"\0\0\0\1", b"\0" * 6)], base_offset=5, epoch=4, is_control=True)
    batches = [batch(0, 5, is_transactional=True, producer_id=7, producer_epoch=0, base_sequence=0), marker]
    assert [row["offset"] for row in rows_of(batches)] == [0, 1, 2, 3, 4]


def test_an_empty_batch_has_no_rows() -> None:
    from stratalog.formats.batches.records import encode_empty_batches

    assert rows_of([encode_empty_batches(0, 50, epoch=4), batch(50, 2)]) == expected_rows([batch(50, 2)])


def test_gaps_that_compaction_left_keep_their_offsets() -> None:
    records = [Record(offset, AT, None, b"v") for offset in (10, 13, 19)]
    batches = [encode_batch(records, base_offset=10, epoch=4)]
    assert [row["offset"] for row in rows_of(batches)] == [10, 13, 19]


def test_with_log_append_time_all_records_have_the_time_of_the_batch() -> None:
    appended = batch(0, 4, is_log_append_time=True, max_timestamp_ms=AT + 99)
    assert {(row["timestamp"], row["timestamp_type"]) for row in rows_of([appended, batch(4, 1)])} == {
        (AT + 99, columns.LOG_APPEND_TIME),
        (AT + 4, columns.CREATE_TIME),
    }


@pytest.mark.parametrize("time_ms", [-1, -(1 << 62), (1 << 62)])
def test_a_time_that_is_none_or_cannot_be_told_is_null(time_ms: int) -> None:
    assert rows_of([encode_batch([Record(0, time_ms, None, b"v")], epoch=0)])[0]["timestamp"] is None


def test_null_and_empty_keys_and_values_are_distinguished() -> None:
    rows = rows_of([encode_batch([Record(0, AT, None, b""), Record(1, AT, b"", None)], epoch=0)])
    assert [(row["key"], row["value"]) for row in rows] == [(None, b""), (b"", None)]


def test_header_names_that_are_no_text_do_not_hide_the_record() -> None:
    odd = encode_batch([Record(0, AT, None, b"v", (("a\udcff", None), ("b", b"2")))], epoch=0)
    assert rows_of([odd])[0]["headers"] == [{"key": "a\ufffd", "value": None}, {"key": "b", "value": b"2"}]


def test_a_record_with_very_many_headers_is_read_by_itself() -> None:
    many = [
        Record(n, AT, None, b"v", tuple((f"h{i}", b"%d" % i) for i in range(size)))
        for n, size in enumerate((3, 4000, 17))
    ]
    batches = [encode_batch(many, epoch=0)]
    assert rows_of(batches) == expected_rows(batches)


def test_offsets_and_times_choose_records_and_columns_are_left_out() -> None:
    batches = [batch(base, 10) for base in range(0, 100, 10)]
    wanted = Wanted(("offset", "value"), from_offset=15, to_offset=42, from_ms=AT + 20, to_ms=AT + 40)
    rows = rows_of(batches, wanted)
    assert [row["offset"] for row in rows] == list(range(20, 40))
    assert set(rows[0]) == {"offset", "value"}


def test_batches_that_hold_nothing_wanted_are_not_opened() -> None:
    damaged_inside = claiming(GARBAGE, 10, AT, base_offset=0)
    assert [row["offset"] for row in rows_of([damaged_inside, batch(10, 2)], Wanted(from_offset=10))] == [10, 11]


def test_large_parts_are_handed_out_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "GROUP_BYTES", 500)
    for codec in (Codec.NONE, Codec.ZSTD):
        batches = [batch(base, 10, compression=codec) for base in range(0, 300, 10)]
        tables = list(
            columns.batches_to_columns(
                b"".join(batches), headers_of(batches), topic="t", shard=0, wanted=Wanted(), source="a part"
            )
        )
        assert len(tables) > 3
        assert [n for table in tables for n in table.column("offset").to_pylist()] == list(range(300))


@pytest.mark.parametrize("codec", list(Codec))
def test_garbage_inside_a_batch_is_a_typed_error(codec: Codec) -> None:
    with pytest.raises(Corrupt, match="a part"):
        rows_of([claiming(GARBAGE, 10, AT, codec)])


@pytest.mark.fault("batch-hostile-content-sizes")
def test_a_batch_that_claims_a_billion_records_is_refused_before_anything_is_allocated() -> None:
    hostile = bytearray(claiming(b"\x0c" + b"\0" * 6, (1 << 31) - 1, AT))
    with pytest.raises(Corrupt, match="claims 2147483647 records"):
        rows_of([bytes(hostile)])


def test_a_batch_that_unpacks_to_more_than_is_allowed_is_refused() -> None:
    bomb = encode_batch([Record(0, AT, None, bytes(1 << 20))], epoch=0, compression=Codec.ZSTD)
    with pytest.raises(TooLarge):
        rows_of([bomb], max_batch_bytes=1 << 16)


def test_headers_of_batches_are_read_as_the_product_reads_them() -> None:
    batches = [batch(0, 3), batch(3, 5, compression=Codec.LZ4, is_log_append_time=True), batch(8, 1, is_control=True)]
    found = headers_of(batches)
    for number, one in enumerate(map(parse_header, batches)):
        for name in ("base_offset", "epoch", "attributes", "last_offset_delta", "base_timestamp_ms", "record_count"):
            assert found.longs(name)[number] == getattr(one, name)
        assert found.end_offset[number] == one.end_offset
        assert (found.codec[number], bool(found.is_control[number])) == (one.compression, one.is_control)
    assert np.array_equal(found.ends - found.positions, [len(one) for one in batches])
