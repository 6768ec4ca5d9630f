"""Times and sizes as users write them; plain numbers keep their meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.errors import InvalidRequest
from stratalog.settings.load import load_process_settings, parse_assignments
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog.settings.units import duration_ms, parse_duration_ms, parse_seconds, plain, size_bytes
from stratalog.settings.wrong_values import fields_by_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("500ms", 500), ("10s", 10_000), ("30m", 1_800_000), ("30min", 1_800_000), ("12h", 43_200_000)),
        *(("7d", 604_800_000), ("2w", 1_209_600_000), (" 7 D ", 604_800_000), ("0s", 0)),
        *(("7", None), ("", None), ("d", None), ("-1d", None), ("1.5h", None), ("7x", None), ("7d12h", None)),
        *(("٧d", None), ("1MiB", None), ("9" * 19 + "d", None)),
    ],
)
def test_a_time_is_a_number_and_a_unit(text: str, expected: int | None) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("1KiB", 1024), ("1mib", 1 << 20), ("3GiB", 3 << 30), ("2TiB", 2 << 40), ("10MB", 10_000_000)),
        *(("5kB", 5000), ("7B", 7), ("1 GiB", 1 << 30)),
        *(("7", None), ("1M", None), ("-1MiB", None), ("1.5GiB", None), ("7d", None)),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, expected: int | None) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "604800000", "604800000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "1MiB", "1MiB"),
        ("segment.bytes", "64MiB", "67108864"),
        ("segment.bytes", "7d", "7d"),
        ("remote.read.bytes.per.second", "1GiB", "1073741824"),
        ("offsets.retention.minutes", "7d", "10080"),
        ("offsets.retention.minutes", "90s", "90s"),
        ("broker.rack", "7d", "7d"),
        ("num.partitions", "3d", "3d"),
    ],
)
def test_a_unit_is_counted_as_the_key_counts(key: str, value: str, expected: str) -> None:
    assert plain(key, value) == expected


def test_every_source_of_settings_takes_units(tmp_path: Path) -> None:
    lines, toml = tmp_path / "settings", tmp_path / "settings.toml"
    lines.write_text("log.segment.bytes = 64MiB\n")
    toml.write_text('"log.segment.bytes" = "64MiB"\n[log.retention]\nms = "7d"\n')
    environment = {"STRATALOG_LOG_ROLL_MS": "12h"}

    for file in (lines, toml):
        settings = load_process_settings(file=file, environment=environment, assignments=["flush.interval.ms=2s"])
        assert settings.log_segment_bytes == 64 << 20
        assert (settings.log_roll_ms, settings.flush_interval_ms) == (43_200_000, 2_000)
    assert load_process_settings(file=toml).log_retention_ms == 604_800_000
    assert parse_assignments(["retention.ms=7d"]) == {"retention.ms": "604800000"}


@pytest.mark.parametrize("value", ["7x", "1MiB", "soon"])
def test_a_refused_time_names_the_units(value: str) -> None:
    with pytest.raises(InvalidRequest, match="7d, 12h"):
        load_process_settings(assignments=[f"log.retention.ms={value}"])
    with pytest.raises(InvalidRequest, match="64MiB"):
        load_process_settings(assignments=[f"log.segment.bytes={value.replace('MiB', 'd')}"])


TIME_WORDS = ("age after", "time between", "how long", "longest time")
SIZE_WORDS = ("bytes", "largest", "maximum bytes", "size of a shard", "local size", "memory for")


def test_every_key_of_a_time_or_size_says_so_by_its_name() -> None:
    """`plain` goes by the name; a key of another name would silently accept no unit."""
    for model in (ProcessSettings, TopicSettings):
        for key, (_, field) in fields_by_key(model).items():
            text = (field.description or "").lower()
            if field.annotation is int and any(word in text for word in TIME_WORDS):
                assert key.endswith((".ms", ".minutes")), key
            if field.annotation is int and text.startswith(SIZE_WORDS) and key != "sasl.server.max.receive.size":
                assert key.endswith((".bytes", ".bytes.per.second")), key


def test_options_that_take_seconds_take_units_too() -> None:
    assert parse_seconds("30", "--timeout") == 30.0
    assert parse_seconds("0.5", "--timeout") == 0.5
    assert parse_seconds("5m", "--timeout") == 300.0
    for text in ("", "-1", "nan", "inf", "soon"):
        with pytest.raises(InvalidRequest, match="--timeout"):
            parse_seconds(text, "--timeout")
    for text in ("7", "0d", ""):
        with pytest.raises(InvalidRequest, match="--since"):
            parse_duration_ms(text, "--since")
