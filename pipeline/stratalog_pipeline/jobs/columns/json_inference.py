"""Infers an Arrow schema from records of JSON. Pure.

It reads all records, so a field of a single record is a column. If two records give a field types that no column can
hold together, the first type stays and the contradiction is reported to the caller, which decides. Records may be
hostile. Values nested deeper than `MOST_DEPTH` are not read, and fields beyond `MOST_FIELDS` are reported and left out;
otherwise keys that are data, such as ids, would cost a column for each record. Such records become dead letters when
they are read. A text is a text, whatever it looks like. Cost: each record is parsed once.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from stratalog_pipeline.jobs.columns.json_records import JsonParser, slices

MOST_FIELDS: Final = 1_000
"""At all depths together. A --schema may have more."""
MOST_DEPTH: Final = 32
_INT64: Final = 1 << 63
_WIDE: Final = pa.decimal128(38, 0)
"""The type for integers if some of them do not fit 64 bits."""
_LARGEST_DECIMAL: Final = 10**38
_MOST_TOLD: Final = 100
_TEXT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A text, or the rest of a value that does not end one: so each byte is looked at once."""
_NO_BRACKET: Final = bytes({*range(256)} - {*b"[]{}"})
_STEP: Final = {code: 1 if code in b"[{" else -1 for code in b"[]{}"}


def infer_json(values: Sequence[bytes | None], *, is_confluent: bool = False) -> tuple[Any, list[str]]:
    """The schema of what can be read of these, and fields that contradict each other."""
    found = pa.schema([])
    wrong = dict[str, None]()
    parser = JsonParser(is_confluent=is_confluent)
    for rows in slices(values):
        records = []
        for row in rows:
            value = values[row]
            if value is None or is_too_deep(value):
                continue
            with contextlib.suppress(ValueError):
                records.append(parser.parse(value))
        inside = list[str]()
        found, more = unite(found, _fields(records, "", inside))
        remember(wrong, [*inside, *more])
    return found, list(wrong)


def _fields(records: Iterable[dict[str, Any]], where: str, wrong: list[str]) -> list[Any]:
    values: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            values.setdefault(name, []).append(value)
    return [pa.field(name, _type(found, f"{where}{name}", wrong)) for name, found in values.items() if _is_text(name)]


def _type(values: Sequence[Any], where: str, wrong: list[str]) -> Any:
    """That holds all of these, or the first of them."""
    found = pa.null()
    for kind in dict.fromkeys(map(type, values)):
        these = [one for one in values if type(one) is kind]
        found = _together(found, _type_of(kind, these, where, wrong), where, wrong)
    return found


def _type_of(kind: type, values: Sequence[Any], where: str, wrong: list[str]) -> Any:
    if kind is dict:
        return pa.struct(_fields(values, f"{where}.", wrong))
    if kind is list:
        return pa.list_(_type([one for some in values for one in some], f"{where}[]", wrong))
    if kind is int:
        known = [one for one in values if abs(one) < _LARGEST_DECIMAL]
        if not known:
            return pa.null()
        return pa.int64() if min(known) >= -_INT64 and max(known) < _INT64 else _WIDE
    return {bool: pa.bool_(), float: pa.float64(), str: pa.string()}.get(kind, pa.null())


def _is_text(name: str) -> bool:
    """Half of a surrogate pair, which JSON can write, is none."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_too_deep(value: bytes) -> bool:
    """Whether lists and objects are in one another more than `MOST_DEPTH` times."""
    if value.count(b"{") + value.count(b"[") <= MOST_DEPTH:
        return False
    brackets = _TEXT.sub(b"", value).translate(None, _NO_BRACKET)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MOST_DEPTH


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
    if _is_number(before) and _is_number(more):
        is_whole = not (types.is_floating(before) or types.is_floating(more))
        return _WIDE if is_whole else pa.float64()
    wrong.append(f"{where} ({before} and {more})")
    return before


def _is_number(one: Any) -> bool:
    types = pa.types
    return bool(types.is_integer(one) or types.is_floating(one) or types.is_decimal(one))
