"""`stratalog dump`: shows what a file or an object of Stratalog holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.model.errors import InvalidRequest
from stratalog_cli.output import OutputFormat, OutputOption, print_fields, print_json_line, print_table

if TYPE_CHECKING:
    from stratalog_cli.dump_sections import Readable, Section

_ROWS = frozenset({"batch", "record", "index point", "remote part", "producer", "journal entry"})
"""Kinds of which there are many: shown as rows of one table."""
_ROWS_PER_TABLE = 10_000


def register(app: typer.Typer) -> None:
    app.command("dump")(dump)


def dump(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A path, or with --bucket an object's key.")],
    records: Annotated[bool, typer.Option("--records", help="Also the records inside the batches.")] = False,
    from_offset: Annotated[int, typer.Option(min=0, metavar="OFFSET", help="Leave out batches below it.")] = 0,
    max_batches: Annotated[int | None, typer.Option(min=0, metavar="N", help="At most so many batches.")] = None,
    bucket: Annotated[str | None, typer.Option(metavar="URL", help="Read an object of this object store.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a segment file, an index, a chunk, a bundle, a manifest or a journal: header, batches, optionally records.

    JSON comes as one object per line. Exit code 1 when the file is damaged, after what could be read.
    """
    from stratalog_cli.dump_sections import DumpOptions, sections_of

    options = DumpOptions(records, from_offset, max_batches)
    with _open(file, bucket) as source:
        found = sections_of(source, options)
        if output is OutputFormat.JSON:
            for section in found:
                print_json_line({"kind": section.kind, **section.fields})
        else:
            _print(found)


def _print(sections: Iterable[Section]) -> None:
    """Sections of one kind in a row become one table. What was read before the damage is printed before the error."""
    pending: list[Section] = []
    try:
        for section in sections:
            if pending and (pending[0].kind != section.kind or len(pending) >= _ROWS_PER_TABLE):
                _print_run(pending)
                pending = []
            pending.append(section)
    finally:
        if pending:
            _print_run(pending)


def _print_run(run: list[Section]) -> None:
    first = run[0]
    if first.kind not in _ROWS:
        for section in run:
            print_fields([(name, _shown(value)) for name, value in section.fields.items()], title=section.kind)
        return
    columns = [f"#{name}" if isinstance(value, int) else name for name, value in first.fields.items()]
    rows = [[_shown(value) for value in section.fields.values()] for section in run]
    title = {"batch": "batches", "index": "index points"}.get(first.kind, f"{first.kind}s")
    print_table(columns, rows, title=title)


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


class _Object:
    """An object, read whole."""

    def __init__(self, name: str, body: bytes) -> None:
        self.name = name
        self.size_bytes = len(body)
        self._body = body

    def read(self, position: int, size_bytes: int) -> bytes:
        return self._body[position : position + size_bytes]


@contextmanager
def _open(file: str, bucket: str | None) -> Iterator[Readable]:
    if bucket is not None:
        yield _Object(file, asyncio.run(_fetch(bucket, file)))
        return
    from stratalog_node.disk.inspection import inspect_file

    path = Path(file)
    if path.is_dir():
        raise InvalidRequest(
            f"{file} is a directory: name a file in it, or check it as a whole with `stratalog doctor`"
        )
    with inspect_file(path) as opened:
        yield opened


async def _fetch(bucket: str, key: str) -> bytes:
    from stratalog.objects import open_store

    store = open_store(bucket)
    try:
        return await store.get(key)
    finally:
        await store.close()
