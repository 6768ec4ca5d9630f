"""Topic settings: overrides over the process's defaults."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import InvalidRequest
from stratalog.settings.choices import FlushPolicy, ReadPolicy, UncleanSeal
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import PROCESS_DEFAULTS, TopicSettings
from stratalog.settings.wrong_values import fields_by_key

KEYS = sorted(fields_by_key(TopicSettings))


def test_a_topic_takes_what_it_does_not_set_from_the_process() -> None:
    process = ProcessSettings(log_segment_bytes=4096, flush_policy=FlushPolicy.FSYNC)

    settings = TopicSettings.resolve(process, {"retention.ms": "1000", "uncleanSeal": "allow"})

    assert (settings.segment_bytes, settings.flush_policy) == (4096, FlushPolicy.FSYNC)
    assert (settings.retention_ms, settings.unclean_seal) == (1000, UncleanSeal.ALLOW)
    assert settings.remote_read_policy is ReadPolicy.NOT_IN_DISK


def test_every_inherited_setting_has_the_bounds_of_its_source() -> None:
    topic_fields, process_fields = TopicSettings.model_fields, ProcessSettings.model_fields
    for topic_attribute, process_attribute in PROCESS_DEFAULTS.items():
        inherited, source = topic_fields[topic_attribute], process_fields[process_attribute]
        assert inherited.annotation == source.annotation
        assert [repr(bound) for bound in inherited.metadata] == [repr(bound) for bound in source.metadata]


@pytest.mark.parametrize(
    ("total", "local", "effective"),
    [("1000", "-2", 1000), ("-1", "-2", -1), ("1000", "300", 300), ("-1", "300", 300), ("1000", "0", 0)],
)
def test_local_retention_minus_two_means_the_total(total: str, local: str, effective: int) -> None:
    overrides = {
        f"{kind}retention.{unit}": v for unit in ("ms", "bytes") for kind, v in (("", total), ("local.", local))
    }

    settings = TopicSettings.resolve(ProcessSettings(), overrides)

    assert settings.effective_local_retention_ms == effective
    assert settings.effective_local_retention_bytes == effective


def test_an_inherited_local_retention_follows_a_shorter_total() -> None:
    process = ProcessSettings(log_local_retention_ms=5000)

    assert TopicSettings.resolve(process, {"retention.ms": "1000"}).effective_local_retention_ms == 1000
    assert TopicSettings.resolve(process, {"retention.ms": "9000"}).effective_local_retention_ms == 5000
    TopicSettings.validate_overrides({"retention.ms": "1000"}, process)


def test_compaction_is_refused_with_the_reason() -> None:
    for value in ("compact", "compact,delete"):
        with pytest.raises(InvalidRequest, match="sealed segments are immutable"):
            TopicSettings.validate_overrides({"cleanup.policy": value})


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"retenton.ms": "1"}, "did you mean retention.ms"),
        ({"local.retention": "1"}, "did you mean local.retention.ms, local.retention.bytes or retention.ms?"),
        ({"segment.bytes": "1"}, "segment.bytes=1 is refused: it must be an integer from 256"),
        ({"compression.type": "zstd"}, "one of producer"),
        ({"remote.read.policy": "Sometimes"}, "one of Disable, NotInDisk, NotInMemory, Force"),
        ({"max.message.bytes": "104857600"}, "socket.request.max.bytes"),
        ({"log.segment.bytes": "4096"}, "did you mean segment.bytes"),
    ],
)
def test_an_override_that_cannot_be_is_refused(overrides: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        TopicSettings.validate_overrides(overrides)

    assert words in str(refused.value)


@pytest.mark.fault("topic-setting-number-parts")
@pytest.mark.parametrize("value", ["2.0", "1_0"])
@pytest.mark.parametrize("key", ["min.insync.replicas", "max.message.bytes"])
def test_a_number_that_not_all_parts_read_as_one_is_refused(key: str, value: str) -> None:
    """The meta service and the operator read the text of it for themselves."""
    with pytest.raises(InvalidRequest, match=rf"{key}={value} is refused"):
        TopicSettings.validate_overrides({key: value})
    TopicSettings.validate_overrides({"min.insync.replicas": " +2 "})


def test_several_refused_values_are_all_named() -> None:
    with pytest.raises(InvalidRequest) as refused:
        TopicSettings.validate_overrides({"segment.bytes": "0", "segment.ms": "x"})

    assert "segment.bytes=0" in str(refused.value) and "segment.ms=x" in str(refused.value)


def test_stored_overrides_gone_stale_are_passed_over_one_by_one() -> None:
    stored = {"segment.bytes": "1", "retention.ms": "1000", "of.a.newer.version": "x", "local.retention.ms": "5000"}

    settings = TopicSettings.resolve(ProcessSettings(), stored)

    assert settings.retention_ms == 1000
    assert settings.segment_bytes == ProcessSettings().log_segment_bytes
    assert settings.effective_local_retention_ms == 1000


VALUES = st.one_of(st.integers(-3, 2**64).map(str), st.sampled_from(["true", "false", "fsync", "Force", "", "x"]))


@given(st.dictionaries(st.sampled_from([*KEYS, "no.such.key"]), VALUES, max_size=6))
def test_resolving_never_fails_and_agrees_with_what_was_validated(overrides: dict[str, str]) -> None:
    settings = TopicSettings.resolve(ProcessSettings(), overrides)
    try:
        TopicSettings.validate_overrides(overrides)
    except InvalidRequest:
        return
    for key, value in overrides.items():
        in_force = getattr(settings, fields_by_key(TopicSettings)[key][0])
        assert str(in_force).lower() == str(value).lower() or int(in_force) == int(value)
