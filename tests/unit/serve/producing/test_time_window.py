"""Which timestamps a topic takes, where the header of a batch does not tell those of its records."""

from __future__ import annotations

import pytest

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.offered_batch import BatchFault
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_node.serve.producing.produce import offer
from stratalog_node.shards.catalog.rules import ShardRules
from support.hostile_batches import timed_batch, with_header_times

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS


class _Taken:
    """A shard that takes what it is offered."""

    log_start_offset = 0

    def __init__(self, **overrides: str) -> None:
        self.rules = ShardRules(TopicSettings.resolve(ProcessSettings(), overrides), 30_000)
        self.offered: list[OfferedBatch] = []

    def offer(self, batch: OfferedBatch) -> None:
        self.offered.append(batch)


def window_fault(batch: bytes, **overrides: str) -> BatchFault | None:
    shard = _Taken(**{key.replace("_", "."): value for key, value in overrides.items()})
    told = offer(shard, memoryview(bytearray(batch)), 9, -1, None, 0, NOW_MS)  # type: ignore[arg-type]
    assert bool(shard.offered) is (told is None)
    return None if told is None else told.fault


@pytest.mark.parametrize(("time_ms", "is_taken"), [(NOW_MS + HOUR_MS, True), (NOW_MS + HOUR_MS + 1, False), (1, True)])
def test_a_header_that_is_right_tells_it(time_ms: int, is_taken: bool) -> None:
    batch = timed_batch([time_ms, time_ms], time_ms)
    assert window_fault(batch) is (None if is_taken else BatchFault.WRONG_TIME)


def test_limits_count_in_both_directions() -> None:
    limits = {"message_timestamp_before_max_ms": "10", "message_timestamp_after_max_ms": "10"}
    for time_ms in (NOW_MS - 10, NOW_MS + 10):
        assert window_fault(timed_batch([time_ms] * 2, time_ms), **limits) is None
    for time_ms in (NOW_MS - 11, NOW_MS + 11):
        assert window_fault(timed_batch([time_ms] * 2, time_ms), **limits) is BatchFault.WRONG_TIME


def test_a_header_alone_from_the_future_is_accepted() -> None:
    """Kafka 4.3.1 takes it: no record is from there."""
    assert window_fault(timed_batch([NOW_MS], NOW_MS + TEN_YEARS_MS)) is None
    assert window_fault(timed_batch([NOW_MS, NOW_MS + 1], NOW_MS + TEN_YEARS_MS)) is None


@pytest.mark.fault("record-lies-years-ahead")
@pytest.mark.parametrize("claimed_ms", [-1, NOW_MS - 1, NOW_MS])
def test_a_record_ten_years_ahead_is_refused_where_the_header_contradicts_itself(claimed_ms: int) -> None:
    """Kafka 4.3.1 refuses each of these with INVALID_TIMESTAMP (32): it looks at each record."""
    ahead = timed_batch([NOW_MS + TEN_YEARS_MS], claimed_ms)
    assert window_fault(ahead) is BatchFault.WRONG_TIME
    assert window_fault(timed_batch([NOW_MS], claimed_ms)) is None
    several = timed_batch([NOW_MS, NOW_MS + TEN_YEARS_MS, NOW_MS], -1)
    assert window_fault(several) is BatchFault.WRONG_TIME
    assert window_fault(timed_batch([NOW_MS, NOW_MS + HOUR_MS, NOW_MS], -1)) is None


@pytest.mark.fault("record-lies-years-ahead")
def test_a_topic_with_a_window_of_its_own_has_each_record_looked_at() -> None:
    partial_maximum = timed_batch([NOW_MS, NOW_MS + 70_000, NOW_MS], NOW_MS)
    assert window_fault(partial_maximum, message_timestamp_after_max_ms="60000") is BatchFault.WRONG_TIME
    assert window_fault(partial_maximum, message_timestamp_after_max_ms="70000") is None
    one_old = timed_batch([NOW_MS, NOW_MS - 70_000, NOW_MS], NOW_MS)
    assert window_fault(one_old, message_timestamp_before_max_ms="60000") is BatchFault.WRONG_TIME
    assert window_fault(one_old, message_timestamp_before_max_ms="70000") is None


def test_records_without_a_time_are_in_every_window() -> None:
    assert window_fault(timed_batch([-1, -1], -1), message_timestamp_before_max_ms="1000") is None


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_topic_with_a_window_of_its_own_has_compressed_records_looked_at(codec: Codec) -> None:
    """Kafka 4.3.1 refuses what is outside here, too."""
    partial_maximum = timed_batch([NOW_MS, NOW_MS + 70_000, NOW_MS], NOW_MS, codec)
    assert window_fault(partial_maximum, message_timestamp_after_max_ms="60000") is BatchFault.WRONG_TIME
    assert window_fault(partial_maximum, message_timestamp_after_max_ms="70000") is None
    one_old = timed_batch([NOW_MS, NOW_MS - 70_000, NOW_MS], NOW_MS, codec)
    assert window_fault(one_old, message_timestamp_before_max_ms="60000") is BatchFault.WRONG_TIME
    assert window_fault(one_old, message_timestamp_before_max_ms="70000") is None


def test_a_batch_too_large_to_be_opened_on_the_event_loop_is_judged_by_its_header() -> None:
    large = encode_batch([Record(0, NOW_MS, None, bytes(2 << 20)), Record(1, 1, None, None)], compression=Codec.ZSTD)
    assert window_fault(large, message_timestamp_before_max_ms="60000") is None
    hidden = with_header_times(large, max_ms=NOW_MS + TEN_YEARS_MS)
    assert window_fault(hidden, message_timestamp_after_max_ms="60000") is BatchFault.WRONG_TIME


def test_of_a_compressed_batch_the_later_time_of_the_header_counts_under_the_default_window() -> None:
    """Its records are not decompressed on the event loop."""
    assert window_fault(timed_batch([NOW_MS + TEN_YEARS_MS], -1, Codec.GZIP)) is BatchFault.WRONG_TIME
    assert window_fault(timed_batch([NOW_MS, NOW_MS], -1, Codec.GZIP)) is None


def test_where_the_log_gives_the_time_there_is_no_window() -> None:
    ahead = timed_batch([NOW_MS + TEN_YEARS_MS], -1)
    assert window_fault(ahead, message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="1") is None
