"""Process settings: names, bounds, defaults."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stratalog.model.errors import InvalidRequest
from stratalog.settings.load import load_process_settings
from stratalog.settings.process import ProcessSettings
from stratalog.settings.wrong_values import bounds_of, fields_by_key

INTEGERS = {
    key: bounds_of(field) for key, (_, field) in fields_by_key(ProcessSettings).items() if field.annotation is int
}


def test_the_defaults_are_valid_and_fit_together() -> None:
    settings = ProcessSettings()

    assert settings.log_segment_bytes == 1 << 30
    assert settings.message_max_bytes == 1_048_588
    assert settings.remote_upload_bundle_bytes == 16 << 20


def test_a_key_is_the_attribute_with_dots() -> None:
    by_key = ProcessSettings.model_validate({"log.segment.bytes": 4096})
    by_attribute = ProcessSettings(log_segment_bytes=4096)

    assert by_key == by_attribute


def test_settings_cannot_be_changed_once_made() -> None:
    with pytest.raises(ValidationError):
        ProcessSettings().log_segment_bytes = 1  # type: ignore[misc]


def test_every_setting_has_bounds_and_one_sentence() -> None:
    for key, (_, field) in fields_by_key(ProcessSettings).items():
        assert field.description and field.description.endswith("."), f"{key} needs a sentence"
        if field.annotation is int:
            low, high = bounds_of(field)
            assert low is not None and high is not None, f"{key} has no bounds"
            assert low <= field.default <= high, f"{key}'s default is out of its bounds"


def test_every_time_and_size_names_its_unit() -> None:
    without = {"node.id", "num.partitions", "default.replication.factor", "min.insync.replicas", "max.connections"}
    without |= {"http.max.connections", "http.max.connections.per.ip"}
    without |= {"meta.max.connections", "meta.max.connections.per.ip"}
    without |= {"max.connections.per.ip", "group.max.size", "metrics.max.series", "offsets.topic.num.partitions"}
    without |= {"offsets.topic.replication.factor"}
    without |= {"remote.read.topic.bytes.per.second", "remote.read.client.bytes.per.second"}
    without |= {"remote.read.max.concurrency", "remote.read.bytes.per.second", "producer.id.max.per.shard"}
    without |= {"replica.catchup.bytes.per.second", "data.move.bytes.per.second", "audit.log.file.max.count"}
    without |= {"sasl.server.max.receive.size", "sasl.oauthbearer.clock.skew.seconds"}  # Kafka's names
    without |= {"max.connection.creation.rate", "quota.window.num", "controller.quota.window.num"}
    without |= {"quota.window.size.seconds", "controller.quota.window.size.seconds"}  # Kafka's names
    for key in INTEGERS:
        assert key in without or key.endswith((".ms", ".bytes", ".minutes")), f"{key} does not name its unit"


@given(st.sampled_from(sorted(INTEGERS)), st.integers(-(2**70), 2**70))
def test_an_integer_is_taken_exactly_when_it_is_within_its_bounds(key: str, value: int) -> None:
    low, high = INTEGERS[key]
    assert low is not None and high is not None
    try:
        settings = load_process_settings(assignments=[f"{key}={value}"])
    except InvalidRequest as refused:
        is_within = low <= value <= high
        fits_badly = "do not fit together" in str(refused) or "would stop every cold read" in str(refused)
        assert not is_within or fits_badly, f"{key}={value} was refused: {refused}"
    else:
        assert low <= value <= high
        assert getattr(settings, key.replace(".", "_")) == value


@pytest.mark.fault("settings-node-honour-shards")
@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("log.segment.bytes=many", "log.segment.bytes=many is refused: it must be an integer from 256 to"),
        ("log.segment.bytes=1", "an integer from 256 to"),
        ("auto.create.topics.enable=perhaps", "it must be one of true, false"),
        ("flush.policy=never", "it must be one of replicated, fsync"),
        ("metrics.listen=nowhere", "expected HOST:PORT"),
        ("num.partitions=100000", "an integer from 1 to 10000"),
        ("advertised.listeners=PLAINTEXT://host:9092", "a listener's name of small letters, digits and hyphens"),
        ("advertised.listeners=a:9092,b:9092", "one address only"),
        ("advertised.listeners=0.0.0.0:9092", "clients cannot connect to an address that means all of them"),
        ("advertised.listeners=[::]:9092", "clients cannot connect to an address that means all of them"),
        ("http.allowed.hosts=logs.example:9644", "not 'logs.example:9644'"),
        ("http.allowed.hosts=a.example, https://b.example", "not 'https://b.example'"),
        ("http.allowed.hosts=a.example b.example", "not 'a.example b.example'"),
        ("http.allowed.hosts=*.example", "not '*.example'"),
        ("advertised.listeners=user@host:9092", "the host is a name or an address"),
        ("meta.listen=http://127.0.0.1:0", "without a listener's name or a protocol"),
        ("remote.read.bytes.per.second=0", "would stop every cold read"),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(assignment: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        load_process_settings(assignments=[assignment])

    assert words in str(refused.value)
    assert assignment.partition("=")[0] in str(refused.value)
