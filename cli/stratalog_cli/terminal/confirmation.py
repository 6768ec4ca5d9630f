"""The question before a command does what cannot be undone: the only place that asks.

Where there is no terminal, or the answer is no, nothing was done, and the command is refused.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stratalog.model.errors import Rejected
from stratalog_cli.terminal.say import say

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def require_confirmation(action: str) -> None:
    """`action`: what the command would do, such as `delete topic orders with 3 shards`. It goes to the terminal as it
    is.

    Raises Rejected unless a person says yes."""
    if not sys.stdin.isatty():
        raise Rejected(f"not confirmed, and nothing was done: add --yes to {action} without a terminal")
    try:
        should_follow = typer.confirm(f"{action[:1].upper()}{action[1:]}? This cannot be undone", err=True)
    except typer.Abort:
        say("", to_stderr=True)  # Ctrl-C and Ctrl-D leave the cursor behind the question
        should_follow = False
    if not should_follow:
        raise Rejected("not confirmed, and nothing was done")
