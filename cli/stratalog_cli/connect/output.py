"""How commands print: a table for people, JSON for programs. Progress and errors go to standard error.

Text of others (records, names, a server's message) never steers the terminal, nor is it markup to rich.

rich is imported when something is printed as a table, not before.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from stratalog.admin_api.models import Finding
from stratalog.telemetry.printable import printable, printable_json
from stratalog_cli.connect import offered
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 400
"""Columns of a table that goes to a pipe or a file, unless COLUMNS says otherwise: nothing is cut off."""

_SENTENCE = 40
_COLUMN_GAP = 3
"""What the box puts between two columns."""


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    OutputFormat, typer.Option("--output", "-o", envvar="STRATALOG_OUTPUT", help="Print a table, or JSON for programs.")
]

AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        envvar="STRATALOG_ADMIN",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="Admin address (metrics.listen) of a node, or of several nodes, all of which are asked. "
        "Default: the context's.",
    ),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, by its Kafka name; may be repeated.",
        autocompletion=offered.assignments,
    ),
]


def console(*, to_stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or _has_columns() else _WIDE
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def _has_columns() -> bool:
    """Whether COLUMNS says how wide a pipe's lines may be: rich goes by it then."""
    return os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]) > 0


def _show(screen: Console, table: Table) -> None:
    """In a pipe without the empty line above the table, and without blanks at the ends of lines."""
    if screen.is_terminal:
        screen.print(table)
        return
    with screen.capture() as shown:
        screen.print(table)
    above, *lines = [line.rstrip() for line in shown.get().splitlines()]
    say("\n".join([above, *lines] if above else lines))


def is_watched() -> bool:
    """Whether to show progress bars: standard error is a terminal."""
    return sys.stderr.isatty()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    give_up: Sequence[str] = (),
    flows: Sequence[str] = (),
) -> None:
    """Columns whose name begins with `#` hold numbers and are set to the right; the `#` is not shown.

    In a terminal that is too narrow the columns `give_up` are left out, the first one first, and a line says so: words
    broken over four lines tell less than the columns that fit. Columns that `flows` are sentences: they break between
    words, and want no more room than _SENTENCE.
    """
    screen = console()
    kept, shown, left_out = narrowed(
        columns, [tuple(map(printable, row)) for row in rows], screen.width, give_up, flows
    )
    if title:
        _print_title(screen, title)
    _show(screen, _table(kept, shown))
    if left_out:
        names = ", ".join(left_out)
        say(f"too narrow for the columns {names}: use `| less -S` or --output json to see them", to_stderr=True)


def narrowed(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    give_up: Sequence[str],
    flows: Sequence[str] = (),
) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    """The columns and rows that fit, and the names of the columns that did not."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, (name.removeprefix("#"), *cells))) for name, *cells in zip(columns, *rows, strict=True)]
    widths = [min(wide, _SENTENCE) if name in flows else wide for name, wide in zip(columns, widths, strict=True)]
    kept = list(range(len(columns)))
    left_out: list[str] = []
    for name in give_up:
        if sum(widths[index] + _COLUMN_GAP for index in kept) <= width:
            break
        kept.remove(columns.index(name))
        left_out.append(name.removeprefix("#"))
    return [columns[index] for index in kept], [tuple(row[index] for index in kept) for row in rows], left_out


def _print_title(screen: Console, title: str) -> None:
    """As a line of its own: as a part of the table it would be broken at the table's width."""
    from rich.text import Text

    screen.print(Text(title, style="bold"))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_number = column.startswith("#")
        table.add_column(Text(column.removeprefix("#")), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def print_fields(pairs: Iterable[tuple[str, str]], *, title: str | None = None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console()
    if title:
        _print_title(screen, title)
    table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for key, value in pairs:
        table.add_row(Text(printable(key)), Text(printable(value)))
    _show(screen, table)


def print_json(value: BaseModel | Sequence[BaseModel] | object) -> None:
    """One JSON document on standard output."""
    if isinstance(value, BaseModel):
        data: object = value.model_dump(mode="json")
    elif isinstance(value, (list, tuple)) and all(isinstance(item, BaseModel) for item in value):
        data = [item.model_dump(mode="json") for item in value]
    else:
        data = value
    typer.echo(printable_json(json.dumps(data, indent=2, ensure_ascii=False)))


def print_json_line(value: object) -> None:
    typer.echo(printable_json(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))


def print_findings(findings: Sequence[Finding]) -> None:
    """A block per finding, unbroken: places are long, and people copy them."""
    for finding in findings:
        place, what, next_step = map(printable, (finding.place, finding.what, finding.next_step))
        say(f"{finding.severity}: {place}\n  {what}\n  next step: {next_step}\n")
