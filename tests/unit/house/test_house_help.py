"""Help: every argument and option of every command is described, in words and not in a parser's notation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from stratalog_cli.entry import build_app
from stratalog_cli.terminal.plain_help import in_words

APP = build_app()
NOTATION = re.compile(r"<(?!=)[a-z|\[\]]+( range)?>|\{[A-Z]|\[\[|x[<>]=")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = list(commands(typer.main.get_command(APP)))


def test_no_command_is_missed() -> None:
    assert len(ALL) > 50
    assert {("start",), ("snapshot", "create"), ("pipeline", "export")} <= {path for path, _ in ALL}


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) or "stratalog" for path, _ in ALL])
def test_everything_that_a_command_takes_is_described_in_words(path: tuple[str, ...], command: Any) -> None:
    undescribed = [one.name for one in command.params if not getattr(one, "help", None)]
    assert not undescribed
    assert (command.help or "").strip().endswith("."), "a summary that is a sentence"

    shown = CliRunner().invoke(APP, [*path, "--help"], env={"COLUMNS": "200"}).stdout
    assert shown.startswith("Usage: ")
    assert not NOTATION.findall(shown)
    wide = [line for line in CliRunner().invoke(APP, [*path, "--help"]).stdout.splitlines() if len(line) > 80]
    assert not wide


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("  [default: 1000; x>=1]", "  [default: 1000; at least 1]"),
        ("  [x>=0]", ""),
        ("  [x>=0; required]", "  [required]"),
        ("  [1<=x<=9]", "  [1 to 9]"),
        ("  [x<=9]", "  [at most 9]"),
        ("  [env var: STRATALOG_ADMIN]", "  [env var: STRATALOG_ADMIN]"),
    ],
)
def test_bounds_are_said_in_words(told: str, expected: str) -> None:
    assert in_words(told) == expected
