"""Infers an Arrow schema from records of JSON. Pure.

All records are looked at, so a field of a single record is a column. Where two records give a field types that no
column can hold together, the first one stays and the contradiction is told: who asks decides.
Cost: each record is parsed once; where some cannot be read or contradict each other, their halves are parsed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from stratalog_pipeline.jobs.record_kinds import block_bytes, is_apart


def infer_json(values: Sequence[bytes | None]) -> tuple[Any, list[str]]:
    """The schema of what can be read of these, and fields that contradict each other."""
    found = pa.schema([])
    wrong: list[str] = []

    def attempt(some: Sequence[bytes]) -> None:
        nonlocal found
        body = b"\n".join(some)
        options = pj.ParseOptions(newlines_in_values=len(some) == 1)
        try:
            table = pj.read_json(
                pa.py_buffer(body), pj.ReadOptions(use_threads=False, block_size=block_bytes(body)), options
            )
        except pa.ArrowException:
            table = None
        if table is not None and table.num_rows == len(some):
            found, more = unite(found, table.schema)
            wrong.extend(more)
        elif len(some) > 1:
            attempt(some[: len(some) // 2])
            attempt(some[len(some) // 2 :])

    bodies = [value for value in values if value is not None]
    together = [value for value in bodies if is_apart(value)]
    if together:
        attempt(together)
    for value in bodies:
        if not is_apart(value):
            attempt([value])
    return found, list(dict.fromkeys(wrong))


def unite(before: Any, more: Any) -> tuple[Any, list[str]]:
    """Fields of both, of records that were seen together; a number stays a number. And what contradicts."""
    wrong: list[str] = []
    return pa.schema(_unite(list(before), list(more), "", wrong)), wrong


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
