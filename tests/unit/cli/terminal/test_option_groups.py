"""Options that several commands share: each is an option of the command, and the command gets all of them as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from stratalog_cli.terminal.option_groups import with_groups


@dataclass(frozen=True)
class Whose:
    name: Annotated[str | None, typer.Option("--user", help="A user.")] = None
    is_default: Annotated[bool, typer.Option("--default")] = False


@dataclass(frozen=True)
class Where:
    place: Annotated[str, typer.Option("--at")] = "here"


@dataclass(frozen=True)
class WithoutDefault:
    name: str


def shown(
    words: Annotated[list[str], typer.Argument()],
    whose: Whose,
    *,
    more: Annotated[int, typer.Option("--more")] = 1,
    where: Where,
) -> None:
    """What it was given."""
    print(words, whose, more, where)


def run(*words: str) -> str:
    app = typer.Typer(add_completion=False)
    app.command()(with_groups(shown))
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_a_command_gets_its_groups_with_what_was_given_and_with_defaults() -> None:
    assert run("a", "b") == f"{['a', 'b']} {Whose()} 1 {Where()}"
    given = run("a", "--user", "alice", "--at", "there", "--default", "--more", "2")
    assert given == f"{['a']} {Whose('alice', True)} 2 {Where('there')}"


def test_help_shows_each_option_and_the_commands_own_text() -> None:
    told = run("--help")
    assert "What it was given." in told and "A user." in told
    assert [told.index(one) for one in ("--user", "--default", "--more", "--at")] == sorted(
        told.index(one) for one in ("--user", "--default", "--more", "--at")
    )
    assert "--whose" not in told and "--where" not in told


def test_a_field_without_a_default_is_refused() -> None:
    def command(one: WithoutDefault) -> None: ...

    with pytest.raises(AssertionError, match="WithoutDefault"):
        with_groups(command)
