"""The one way to write lines to the terminal: what others chose (names, records, a server's message) cannot steer
it."""

from __future__ import annotations

import typer

from stratalog.telemetry.printable import printable, printable_lines


def say(text: str, *, to_stderr: bool = False) -> None:
    """Lines of our own making, whose line ends are meant. Text of others inside goes through `printable` first."""
    typer.echo(printable_lines(text), err=to_stderr)


def say_error(error: BaseException | str) -> None:
    """One line on standard error."""
    say(f"stratalog: {printable(str(error))}", to_stderr=True)
