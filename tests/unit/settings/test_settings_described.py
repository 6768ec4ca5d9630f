"""Settings as data: descriptions, values in force and their sources, and the page made from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.model.errors import InvalidRequest
from stratalog.settings.describe import (
    SettingSource,
    SettingType,
    describe_process,
    describe_settings,
    describe_topic,
)
from stratalog.settings.load import load_process_settings
from stratalog.settings.page import render_page
from stratalog.settings.process import ProcessSettings


def test_the_page_in_the_docs_is_current(repository: Path) -> None:
    page = (repository / "docs" / "configure.md").read_text(encoding="utf-8")

    assert page == render_page(), "run: python -m stratalog.settings.page docs/configure.md"


def test_the_page_is_written_by_the_module(tmp_path: Path) -> None:
    target = tmp_path / "configure.md"
    subprocess.run([sys.executable, "-m", "stratalog.settings.page", str(target)], check=True)

    assert target.read_text(encoding="utf-8") == render_page()


def test_the_module_explains_itself_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stratalog.settings.page", "--help"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert "usage:" in ran.stdout
    assert not list(tmp_path.iterdir())


def test_the_page_names_every_key_once_per_scope() -> None:
    page = render_page()
    process, topic = page.split("## Settings of a topic")
    for setting in describe_settings():
        text = process if setting.scope == "process" else topic
        assert text.count(f"\n| `{setting.key}` |") == 1


def test_the_page_says_what_a_time_in_minutes_is() -> None:
    assert "| `offsets.retention.minutes` | 10080 (7 days) |" in render_page()


def test_a_local_retention_that_does_not_fit_learns_what_its_special_values_mean() -> None:
    with pytest.raises(ValueError, match="retention") as refused:
        ProcessSettings(log_local_retention_ms=-1)

    meaning = "-1 means no limit, which is above every number, and -2 means the same as log.retention.ms"
    assert meaning in str(refused.value)
    assert meaning in render_page()


def test_a_refused_text_learns_what_is_expected_and_not_that_it_must_be_text() -> None:
    with pytest.raises(InvalidRequest) as refused:
        load_process_settings(assignments=["metrics.listen=abc"], environment={})

    assert "metrics.listen=abc is refused: expected HOST:PORT" in str(refused.value)
    assert "must be text" not in str(refused.value)


def test_a_process_says_what_was_set_and_what_is_default() -> None:
    values = {value.key: value for value in describe_process(ProcessSettings(num_partitions=3))}

    assert (values["num.partitions"].value, values["num.partitions"].source) == ("3", SettingSource.PROCESS)
    assert [synonym.value for synonym in values["num.partitions"].synonyms] == ["3", "1"]
    assert values["log.segment.bytes"].is_default
    assert values["auto.create.topics.enable"].value == "true"
    assert all(value.is_read_only for value in values.values())


def test_a_topic_says_from_which_layer_a_value_comes() -> None:
    process = ProcessSettings(log_retention_ms=5000)
    values = {value.key: value for value in describe_topic(process, {"segment.bytes": "4096"})}

    assert (values["segment.bytes"].value, values["segment.bytes"].source) == ("4096", SettingSource.TOPIC)
    assert (values["retention.ms"].value, values["retention.ms"].source) == ("5000", SettingSource.PROCESS)
    assert values["retention.ms"].synonyms[0].key == "log.retention.ms"
    assert values["uncleanSeal"].is_default
    assert not values["segment.bytes"].is_read_only


def test_types_are_those_of_kafka() -> None:
    types = {setting.key: setting.type for setting in describe_settings()}

    assert types["num.partitions"] is SettingType.INT
    assert types["retention.ms"] is SettingType.LONG
    assert types["auto.create.topics.enable"] is SettingType.BOOLEAN
    assert types["flush.policy"] is SettingType.STRING
