"""Infers an Arrow schema from records of JSON. Pure.

All records are looked at, so a field of a single record is a column. Where two records give a field types that no
column can hold together, the first one stays and the contradiction is told: who asks decides.
Records are hostile. What is nested deeper than `MOST_DEPTH` is not looked into (Arrow's parser would end the process by
a stack overflow), and what comes beyond `MOST_FIELDS` fields is told and left out: keys that are data, such as ids,
would otherwise cost a column for each record. Such records become dead letters where they are read.
Cost: each record is parsed once; where some cannot be read or contradict each other, their halves are parsed again.
Memory: a table of `_ROWS` records at a time, since each new field of one of them is a column of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.json as pj

from stratalog_pipeline.jobs.record_kinds import block_bytes, is_apart

MOST_FIELDS: Final = 1_000
"""At all depths together. A --schema may have more."""
MOST_DEPTH: Final = 32
_ROWS: Final = 512
_BYTES: Final = 128 << 10
"""At most so many records, or bytes of them, are parsed together; one however large."""
_MOST_TOLD: Final = 100
_TEXT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A text, or the rest of a value that does not end one: so each byte is looked at once."""
_NO_BRACKET: Final = bytes({*range(256)} - {*b"[]{}"})
_STEP: Final = {code: 1 if code in b"[{" else -1 for code in b"[]{}"}


def infer_json(values: Sequence[bytes | None]) -> tuple[Any, list[str]]:
    """The schema of what can be read of these, and fields that contradict each other."""
    found = pa.schema([])
    wrong = dict[str, None]()

    def attempt(some: Sequence[bytes]) -> None:
        nonlocal found
        body = b"\n".join(some)
        options = pj.ParseOptions(newlines_in_values=len(some) == 1)
        try:
            body.decode()  # Arrow takes names that no other program could read
            table = pj.read_json(
                pa.py_buffer(body), pj.ReadOptions(use_threads=False, block_size=block_bytes(body)), options
            )
        except (pa.ArrowException, UnicodeDecodeError):
            table = None
        if table is not None and table.num_rows == len(some):
            found, more = unite(found, table.schema)
            remember(wrong, more)
        elif len(some) > 1:
            attempt(some[: len(some) // 2])
            attempt(some[len(some) // 2 :])

    bodies = [value for value in values if value is not None and not is_too_deep(value)]
    for some in _some_at_a_time(value for value in bodies if is_apart(value)):
        attempt(some)
    for value in bodies:
        if not is_apart(value):
            attempt([value])
    return found, list(wrong)


def is_too_deep(value: bytes) -> bool:
    """Whether lists and objects are in one another more than `MOST_DEPTH` times."""
    if value.count(b"{") + value.count(b"[") <= MOST_DEPTH:
        return False
    brackets = _TEXT.sub(b"", value).translate(None, _NO_BRACKET)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MOST_DEPTH


def _some_at_a_time(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for value in values:
        if some and (len(some) == _ROWS or size + len(value) > _BYTES):
            yield some
            some, size = [], 0
        some.append(value)
        size += len(value)
    if some:
        yield some


def remember(wrong: dict[str, None], more: Iterable[str]) -> None:
    """Once each, and no more than a person reads: hostile records would make one for each of them."""
    for one in more:
        if len(wrong) >= _MOST_TOLD:
            return
        wrong[one[:300]] = None


def unite(before: Any, more: Any) -> tuple[Any, list[str]]:
    """Fields of both, of records that were seen together; a number stays a number. And what contradicts, or is too
    much."""
    wrong: list[str] = []
    fields = {one.name: one for one in before}
    count = fields_in(before)
    for one in more:
        known = fields.get(one.name)
        (united,) = _unite([] if known is None else [known], [one], "", wrong)
        added = fields_in([united]) - (0 if known is None else fields_in([known]))
        if added and count + added > MOST_FIELDS:
            wrong.append(f"more than {MOST_FIELDS:,} fields")
            continue
        count += added
        fields[one.name] = united
    return pa.schema(list(fields.values())), wrong


def fields_in(fields: Iterable[Any]) -> int:
    """At all depths."""
    return sum(1 + _inner(one.type) for one in fields)


def _inner(kind: Any) -> int:
    types = pa.types
    if types.is_struct(kind):
        return fields_in(kind)
    if types.is_list(kind):
        return _inner(kind.value_type)
    return _inner(kind.item_type) if types.is_map(kind) else 0


def _unite(before: Sequence[Any], more: Sequence[Any], where: str, wrong: list[str]) -> list[Any]:
    later = {one.name: one.type for one in more}
    fields = [
        pa.field(one.name, _together(one.type, later[one.name], f"{where}{one.name}", wrong))
        if one.name in later
        else one
        for one in before
    ]
    names = {one.name for one in before}
    return fields + [one for one in more if one.name not in names]


def _together(before: Any, more: Any, where: str, wrong: list[str]) -> Any:
    types = pa.types
    if before == more or types.is_null(more):
        return before
    if types.is_null(before):
        return more
    if types.is_struct(before) and types.is_struct(more):
        return pa.struct(_unite(list(before), list(more), f"{where}.", wrong))
    if types.is_list(before) and types.is_list(more):
        return pa.list_(_together(before.value_type, more.value_type, f"{where}[]", wrong))
    kinds = {_kind(before), _kind(more)}
    if kinds == {"number"}:
        return pa.float64()
    if kinds == {"time"}:
        return pa.timestamp("ns") if "ns" in (before.unit, more.unit) else before
    if kinds == {"text", "time"}:
        return pa.string()
    wrong.append(f"{where} ({before} and {more})")
    return before


def _kind(one: Any) -> str:
    """As JSON has it: a time is a text that looks like one."""
    types = pa.types
    if types.is_integer(one) or types.is_floating(one):
        return "number"
    if types.is_timestamp(one):
        return "time"
    return "text" if types.is_string(one) else str(one)
