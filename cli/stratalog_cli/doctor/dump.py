"""`stratalog dump`: shows what a file or an object of Stratalog holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.formats.bucket.object_names import is_packed
from stratalog.formats.bucket.part import PART_HEADER_BYTES, decode_part_header
from stratalog.model.errors import InvalidRequest
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_fields, print_json_line, print_table

if TYPE_CHECKING:
    from stratalog.objects import ObjectStore
    from stratalog_cli.doctor.dump_sections import Readable, Section

_ROWS = frozenset({"batch", "record", "index point", "remote part", "producer", "journal entry", "cut"})
"""Frequent kinds: shown as rows of one table."""
_ROWS_PER_TABLE = 10_000
_CHARACTERS_PER_TABLE = 4_000_000
_WINDOW_BYTES = 4 << 20


def register(app: typer.Typer) -> None:
    app.command("dump")(dump)


def dump(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Path of a file, or with --bucket the key of an object.")],
    records: Annotated[bool, typer.Option("--records", help="Also show the records inside the batches.")] = False,
    from_offset: Annotated[int, typer.Option(min=0, metavar="OFFSET", help="Leave out batches below this offset.")] = 0,
    max_batches: Annotated[int | None, typer.Option(min=0, metavar="N", help="Show at most N batches.")] = None,
    bucket: Annotated[str | None, typer.Option(metavar="URL", help="Object store to read the object from.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what is in a segment file, index, chunk, bundle, manifest or journal: header, batches, optionally records.

    JSON is one object per line. If the file is damaged, what can be read is shown, and the exit code is 1.
    """
    from stratalog_cli.doctor.dump_sections import DumpOptions, sections_of

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
    held_characters = 0
    try:
        for section in sections:
            is_full = len(pending) >= _ROWS_PER_TABLE or held_characters >= _CHARACTERS_PER_TABLE
            if pending and (pending[0].kind != section.kind or is_full):
                _print_run(pending)
                pending, held_characters = [], 0
            pending.append(section)
            held_characters += sum(len(value) for value in section.fields.values() if isinstance(value, str))
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
    """An object, read in ranges; the last one is kept, for small reads stand close together."""

    def __init__(self, store: ObjectStore, key: str, runner: asyncio.Runner) -> None:
        self._store = store
        self._runner = runner
        self._window = b""
        self._window_at = 0
        self.name = key
        self.size_bytes = runner.run(self._ask_size())

    async def _ask_size(self) -> int:
        found = await self._store.head(self.name)
        if not is_packed(self.name):
            return found.size_bytes
        head = await self._store.get_range(self.name, 0, PART_HEADER_BYTES)
        return decode_part_header(head, source=self.name).size_bytes

    def read(self, position: int, size_bytes: int) -> bytes:
        size_bytes = min(size_bytes, self.size_bytes - position)
        if size_bytes <= 0:
            return b""
        begin = position - self._window_at
        if not 0 <= begin <= len(self._window) - size_bytes:
            end = min(position + max(size_bytes, _WINDOW_BYTES), self.size_bytes)
            self._window = self._runner.run(self._fetch(position, end))
            self._window_at, begin = position, 0
        return self._window[begin : begin + size_bytes]

    async def _fetch(self, begin: int, end: int) -> bytes:
        return await self._store.get_range(self.name, begin, end)

    def holds_only_zeros_from(self, position: int) -> bool:
        positions = range(position, self.size_bytes, _WINDOW_BYTES)
        return not any(self.read(at, _WINDOW_BYTES).strip(b"\0") for at in positions)


@contextmanager
def _object(url: str, key: str) -> Iterator[Readable]:
    from stratalog.objects import open_store

    with asyncio.Runner() as runner:
        store = open_store(url)
        try:
            yield _Object(store, key, runner)
        finally:
            runner.run(store.close())


@contextmanager
def _open(file: str, bucket: str | None) -> Iterator[Readable]:
    if bucket is not None:
        with _object(bucket, file) as found:
            yield found
        return
    from stratalog_node.disk.inspection import inspect_file

    path = Path(file)
    if is_packed(path.name) and path.is_file():
        with _object(str(path.absolute().parent), path.name) as found:
            yield found
        return
    if path.is_dir():
        raise InvalidRequest(
            f"{file} is a directory: name a file in it, or check it as a whole with `stratalog doctor`"
        )
    with inspect_file(path) as opened:
        yield opened
