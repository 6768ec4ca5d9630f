"""Options and filters of the Spark data source, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.cold.cutting import Asked
from stratalog_pipeline.source.filters import narrow
from stratalog_pipeline.source.options import Mode, Point, parse_bytes, parse_duration_ms, parse_options


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class GreaterThan(EqualTo): ...


class GreaterThanOrEqual(EqualTo): ...


class LessThan(EqualTo): ...


class LessThanOrEqual(EqualTo): ...


class StringContains(EqualTo): ...


class In(EqualTo): ...


def test_options_are_read_whatever_their_case() -> None:
    told = parse_options(
        {"PATH": "/b", "Topics": "a, b", "PARTITIONBYTES": "1m", "OnGap": "Report", "shards": "1,2"}, Mode.BATCH
    )
    assert (told.bucket, told.topics, told.partition_bytes) == ("/b", frozenset("ab"), 1 << 20)
    assert (told.asked.is_gap_allowed, told.asked.shards) == (True, frozenset({1, 2}))


def test_a_time_may_be_written_in_words() -> None:
    told = parse_options({"bucket": "/b", "fromTimestamp": "1970-01-01T00:00:01", "toTimestamp": "5000"}, Mode.BATCH)
    assert (told.asked.from_ms, told.asked.to_ms) == (1_000, 5_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"bucket": "/b", "snapshot": "s", "meta": "http://m"},
        {"bucket": "/b", "fromOffset": '{"t": 5}'},
        {"bucket": "/b", "fromOffset": '{"t": {"0": -1}}'},
        {"bucket": "/b", "toTimestamp": "yesterday"},
        {"bucket": "/b", "toTimestamp": "--5"},
        {"bucket": "/b", "fromTimestamp": "²"},
        {"bucket": "/b", "onGap": "ignore"},
        {"bucket": "/b", "maxBytesPerTrigger": "1"},
        {"bucket": "/b", "path": "/c"},
        {"bucket": "/b", "topics": " , "},
        {"bucket": "/b", "subscribe": ""},
        {"bucket": "/b", "topics": "a", "subscribePattern": "a.*"},
        {"bucket": "/b", "subscribePattern": "a["},
        {"bucket": "/b", "assign": '{"a": 0}'},
        {"bucket": "/b", "assign": "{}"},
        {"bucket": "/b", "startingOffsets": "10"},
        {"bucket": "/b", "startingOffsets": "latest"},
        {"bucket": "/b", "startingOffsets": '{"a": {"0": -1}}'},
        {"bucket": "/b", "startingOffsets": '{"a": {"0": -3}}'},
        {"bucket": "/b", "startingOffsets": "earliest", "fromOffset": "1"},
        {"bucket": "/b", "startingOffsetsByTimestampStrategy": "latest"},
        {"bucket": "/b", "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"},
        {"bucket": "/b", "endingOffsets": "earliest"},
        {"bucket": "/b", "endingOffsets": '{"a": {"0": -2}}'},
        {"bucket": "/b", "onGap": "fail", "failOnDataLoss": "true"},
        {"bucket": "/b", "unheard": "of"},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="option"):
        parse_options(wrong, Mode.BATCH)


@pytest.mark.fault("spark-query-option-mode")
@pytest.mark.parametrize(
    "wrong",
    [
        {"fromOffset": "1"},
        {"toOffset": "1"},
        {"fromTimestamp": "1"},
        {"toTimestamp": "1"},
        {"snapshot": "s"},
        {"pushFilters": "false"},
        {"endingOffsets": "latest"},
        {"endingTimestamp": "1"},
        {"maxBytesPerTrigger": "0"},
        {"maxOffsetsPerTrigger": "0"},
        {"maxBytesPerTrigger": "1", "maxOffsetsPerTrigger": "1"},
        {"startingOffsets": "10"},
        {"minOffsetsPerTrigger": "0"},
        {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
        {"maxTriggerDelay": "15m"},
        {"maxTriggerDelay": "15 parsecs", "minOffsetsPerTrigger": "1"},
        {"minPartitions": "4"},
        {"includeHeaders": "true"},
        {"kafka.bootstrap.servers": "h:1"},
        {"kafkaconsumer.polltimeoutms": "4"},
    ],
)
def test_what_a_stream_would_ignore_is_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=f"options? {next(iter(wrong))}"):
        parse_options({"bucket": "/b", **wrong}, Mode.STREAM)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("0", 0),
        ("250", 250),
        ("7ms", 7),
        ("90 s", 90_000),
        ("15m", 900_000),
        ("2min", 120_000),
        ("1H", 3_600_000),
        ("1d", 86_400_000),
        ("", None),
        ("-1s", None),
        ("1.5h", None),
        ("1w", None),
    ],
)
def test_durations_are_written_as_spark_takes_them(words: str, expected: int | None) -> None:
    assert parse_duration_ms(words) == expected


def test_options_of_spark_s_kafka_source_have_its_names() -> None:
    told = parse_options(
        {
            "bucket": "/b",
            "assign": '{"a": [0, 2]}',
            "startingOffsets": '{"a": {"0": -2, "2": 7}}',
            "maxOffsetsPerTrigger": "10",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "2m",
            "failOnDataLoss": "false",
        },
        Mode.STREAM,
    )
    assert (told.topics, told.asked.only) == (frozenset("a"), frozenset([("a", 0), ("a", 2)]))
    assert told.start.offsets == {("a", 0): -2, ("a", 2): 7}
    assert (told.max_offsets_per_trigger, told.asked.is_gap_allowed) == (10, True)
    assert (told.min_offsets_per_trigger, told.max_trigger_delay_ms) == (5, 120_000)
    assert parse_options({"bucket": "/b"}, Mode.STREAM).min_offsets_per_trigger is None
    told = parse_options({"bucket": "/b", "endingTimestamp": "5", "startingTimestamp": "3"}, Mode.BATCH)
    assert told.start == Point("startingTimestamp", at_ms=3, is_latest_without_record=False)
    assert told.end == Point("endingTimestamp", at_ms=5)


def test_credentials_in_the_address_of_a_bucket_are_not_shown() -> None:
    told = parse_options({"bucket": "s3://b?secret_access_key=hush"}, Mode.BATCH)
    assert "hush" not in repr(told)


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("2k", 2048), ("1MiB", 1 << 20), ("3 gb", 3 << 30), ("x", None)])
def test_sizes(text: str, size: int | None) -> None:
    assert parse_bytes(text) == size


def test_filters_on_places_are_done_by_the_source() -> None:
    filters = [
        EqualTo(("topic",), "a"),
        In(("shard",), (1, 2)),
        GreaterThan(("offset",), 9),
        LessThanOrEqual(("offset",), 20),
    ]
    asked, left = narrow(Asked(topics=frozenset("ab"), shards=frozenset({2, 3}), to_offset=15), filters)
    assert (asked.topics, asked.shards) == (frozenset("a"), frozenset({2}))
    assert (asked.least_offset, asked.to_offset, left) == (10, 15, [])


def test_a_filter_on_the_time_spares_reading_and_stays_with_spark() -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    early, late = LessThan(("timestamp",), at), GreaterThanOrEqual(("timestamp",), at)
    asked, left = narrow(Asked(), [early, late])
    assert (asked.from_ms, asked.to_ms, left) == (1_577_836_800_000, None, [early, late])


def test_other_filters_are_left_to_spark() -> None:
    filters = [StringContains(("topic",), "a"), EqualTo(("value",), b"x"), EqualTo(("offset",), None)]
    assert narrow(Asked(), filters) == (Asked(), filters)


def test_a_filter_on_the_key_is_looked_up_and_looked_at_again() -> None:
    one, several, many = EqualTo(("key",), b"a"), In(("key",), [b"a", bytearray(b"b")]), In(("key",), [b"a"] * 17)
    asked, left = narrow(Asked(), [one])
    assert (asked.keys, left) == (frozenset([b"a"]), [one])
    asked, left = narrow(Asked(), [one, several])
    assert (asked.keys, left) == (frozenset([b"a"]), [one, several])
    asked, left = narrow(Asked(), [many, EqualTo(("key",), None), GreaterThan(("key",), b"a"), In(("key",), [None])])
    assert asked.keys is None
    assert len(left) == 4
