"""`stratalog completion SHELL`: prints the script that makes a shell complete this command."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    app.command("completion")(completion)


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print a completion script; in bash: source <(stratalog completion bash)."""
    from typer._completion_shared import get_completion_script  # typer offers no public way to the script

    typer.echo(get_completion_script(prog_name="stratalog", complete_var="_STRATALOG_COMPLETE", shell=shell.value))
