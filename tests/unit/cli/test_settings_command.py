"""`stratalog settings`: every key can be looked up, and each mentions what it is."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from stratalog.settings.describe import describe_settings
from stratalog_cli.admin.settings_command import matching
from stratalog_cli.connect.output import narrowed
from stratalog_cli.entry import build_app

APP = build_app()


def test_all_keys_are_listed() -> None:
    told = json.loads(CliRunner().invoke(APP, ["settings", "-o", "json"]).stdout)
    assert [(one["scope"], one["key"]) for one in told] == [(one.scope, one.key) for one in describe_settings()]


def test_a_word_finds_keys_and_meanings_and_a_whole_key_itself_alone() -> None:
    assert [one.key for one in matching("segment.bytes")] == ["segment.bytes"]
    assert {"retention.ms", "log.retention.ms"} <= {one.key for one in matching("RETENTION")}
    assert any(one.key == "log.roll.ms" for one in matching("first record is this old"))


def test_bounds_and_defaults_are_reported() -> None:
    shown = CliRunner().invoke(APP, ["settings", "log.segment.bytes"]).stdout
    assert "1073741824 (1 GiB)" in shown and "256 to 68719476736" in shown


def test_a_word_that_nothing_holds_is_reported_as_such() -> None:
    ran = CliRunner().invoke(APP, ["settings", "wibble"])
    assert ran.exit_code == 2 and "wibble" in ran.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_each_command_has_both_flags_of_help(flag: str) -> None:
    for words in ([], ["settings"], ["groups", "reset"], ["context", "add"], ["node", "start"]):
        ran = CliRunner().invoke(APP, [*words, flag])
        assert ran.exit_code == 0 and "Usage:" in ran.stdout


def test_a_sentence_breaks_between_words_before_columns_are_left_out() -> None:
    row = ("retention.ms", "how old a sealed segment may be before it is deleted from every tier, in milliseconds")
    kept, _, lost = narrowed(("key", "meaning"), [row], 70, ("key",), ("meaning",))
    assert (kept, lost) == (["key", "meaning"], [])


def test_a_table_in_a_pipe_has_no_empty_line_above_it_and_no_blanks_at_the_ends_of_lines() -> None:
    lines = CliRunner().invoke(APP, ["settings", "lag"]).stdout.splitlines()

    assert lines[0].split() == ["key", "of", "a", "default", "allowed", "meaning"]
    assert not [line for line in lines if line != line.rstrip()]


def test_a_table_in_a_pipe_goes_by_columns_where_it_is_set() -> None:
    ran = CliRunner().invoke(APP, ["settings", "lag"], env={"COLUMNS": "70"})

    assert ran.exit_code == 0
    assert max(map(len, ran.stdout.splitlines())) <= 70
