"""Where settings come from: file, environment, command line, in this order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.errors import InvalidRequest
from stratalog.settings.load import (
    COMMAND_LINE_VARIABLES,
    environment_name,
    load_process_settings,
    parse_assignments,
)
from stratalog.settings.process import ProcessSettings
from stratalog.settings.wrong_values import fields_by_key
from support.source_tree import REPOSITORY

KEYS = sorted(fields_by_key(ProcessSettings))


def test_the_later_source_wins_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "stratalog.properties"
    file.write_text("num.partitions=2\nlog.segment.bytes = 1000\nlog.roll.ms=5000\n")

    settings = load_process_settings(
        file=file,
        environment={"STRATALOG_LOG_SEGMENT_BYTES": "2000", "STRATALOG_LOG_ROLL_MS": "6000", "HOME": "/root"},
        assignments=["log.roll.ms=7000"],
    )

    assert (settings.num_partitions, settings.log_segment_bytes, settings.log_roll_ms) == (2, 1000 * 2, 7000)


def test_a_properties_file_has_comments_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "node.conf"
    file.write_text("# sizes\n\n! also a comment\n  log.segment.bytes=4096  \nadvertised.listeners=h=:1\n")

    settings = load_process_settings(file=file)

    assert settings.log_segment_bytes == 4096
    assert settings.advertised_listeners == "h=:1"


def test_a_toml_file_may_use_tables_and_quoted_keys(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        '"max.connections" = 10\n"max.connections.per.ip" = 5\n[log]\nsegment.bytes = 4096\nlevel = "debug"\n'
    )

    settings = load_process_settings(file=file)

    assert (settings.max_connections, settings.max_connections_per_ip) == (10, 5)
    assert (settings.log_segment_bytes, settings.log_level) == (4096, "debug")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.properties", "log.segment.bytes\n", "line 1: expected KEY=VALUE"),
        ("a.properties", "num.partitions=1\nnum.partitions=2\n", "line 2: num.partitions is set twice"),
        ("a.properties", "log.segmnt.bytes=4096\n", "did you mean log.segment.bytes"),
        ("a.toml", "log = [\n", "not TOML"),
        ("a.toml", "[log]\nsegmnt.bytes = 1\n", "did you mean log.segment.bytes"),
    ],
)
def test_a_file_that_says_nonsense_is_refused_with_its_name(tmp_path: Path, name: str, text: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(text)

    with pytest.raises(InvalidRequest) as refused:
        load_process_settings(file=file)

    assert words in str(refused.value)
    assert name in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_process_settings(file=tmp_path / "missing")


@pytest.mark.parametrize(
    ("assignment", "nearest"),
    [
        ("log.segment.byte=4096", "log.segment.bytes"),
        ("LOG.SEGMENT.BYTES=4096", "log.segment.bytes"),
        ("log_segment_bytes=4096", "log.segment.bytes"),
        ("retention.ms=1", "log.retention.ms"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_names(assignment: str, nearest: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        load_process_settings(assignments=[assignment])

    assert nearest in str(refused.value)
    assert "--set" in str(refused.value)


def test_an_unknown_variable_is_refused_by_its_own_name() -> None:
    with pytest.raises(InvalidRequest, match=r"STRATALOG_LOG_SEGMENT_BYTE.*log\.segment\.bytes"):
        load_process_settings(environment={"STRATALOG_LOG_SEGMENT_BYTE": "4096"})


def test_variables_that_kubernetes_makes_for_a_service_are_not_ours() -> None:
    links = {
        "STRATALOG_SERVICE_HOST": "10.0.0.1",
        "STRATALOG_SERVICE_PORT": "9092",
        "STRATALOG_SERVICE_PORT_KAFKA": "9092",
        "STRATALOG_PORT": "tcp://10.0.0.1:9092",
        "STRATALOG_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "STRATALOG_PORT_9092_TCP_PROTO": "tcp",
        "STRATALOG_ADMIN_PORT_9644_TCP_ADDR": "10.0.0.1",
    }

    assert load_process_settings(environment=links) == load_process_settings()


def test_variables_of_the_command_line_are_not_settings() -> None:
    load_process_settings(environment={"STRATALOG_ADMIN": "h:1", "STRATALOG_DATA": "/d", "STRATALOG_OUTPUT": "json"})


@pytest.mark.parametrize("assignment", ["log.segment.bytes", "=4096", " =1"])
def test_an_assignment_needs_a_key_and_a_value(assignment: str) -> None:
    with pytest.raises(InvalidRequest, match="expected KEY=VALUE"):
        parse_assignments([assignment])


def test_the_last_assignment_of_a_key_wins() -> None:
    assert parse_assignments(["a=1", "a=2", "b=x=y"]) == {"a": "2", "b": "x=y"}


def test_without_a_bucket_nothing_moves_to_an_object_store() -> None:
    assert not load_process_settings(has_bucket=False).remote_storage_enable
    assert load_process_settings(has_bucket=True).remote_storage_enable
    with pytest.raises(InvalidRequest, match="give --bucket"):
        load_process_settings(assignments=["remote.storage.enable=true"], has_bucket=False)


@given(st.sampled_from(KEYS))
def test_every_key_has_its_variable(key: str) -> None:
    default = load_process_settings()
    text = str(getattr(default, key.replace(".", "_")))

    loaded = load_process_settings(environment={environment_name(key): text})

    assert loaded == default
    assert key.replace(".", "_") in loaded.model_fields_set


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_no_text_as_a_key_does_anything_but_set_or_refuse(key: str) -> None:
    try:
        settings = load_process_settings(assignments=[f"{key}=1"])
    except InvalidRequest:
        return
    assert key.strip() in fields_by_key(ProcessSettings)
    assert settings.model_fields_set


def test_variables_of_commands_do_not_keep_a_server_from_starting() -> None:
    """They are set in a shell once, and servers are started from the same shell."""
    rooms = ("cli/stratalog_cli", "core/stratalog/connect")
    places = [place for room in rooms for place in (REPOSITORY / room).rglob("*.py")]
    named = {name for place in places for name in re.findall(r'"(STRATALOG_[A-Z_]+)"', place.read_text())}
    assert {"STRATALOG_PASSWORD", "STRATALOG_CERTIFICATE_FOLDER", "STRATALOG_BEARER_TOKEN"} <= named
    of_settings = {environment_name(key) for key in fields_by_key(ProcessSettings)}
    of_operator = {name for name in named if name.startswith(("STRATALOG_LEASE_", "STRATALOG_WATCH_"))}
    assert named - of_settings - of_operator <= COMMAND_LINE_VARIABLES
