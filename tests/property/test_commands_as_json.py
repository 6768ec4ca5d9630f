"""Whatever a command holds, and whatever it is answered, crosses HTTP unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.meta_api.wire import COMMAND_WIRES, CommandWire
from stratalog.model.bounds import INT64, Bounds
from stratalog.model.errors import Conflict, StratalogError

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(INT64.least, INT64.most),
    str: TEXT,
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bytes: st.binary(max_size=20),
    UUID: st.uuids(),
    NoneType: st.none(),
}


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that the type allows."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin is Annotated and isinstance(inner[1], Bounds):
        return st.integers(inner[1].least, inner[1].most)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, inner))
    if origin in (tuple, Sequence):
        return st.lists(values_of(inner[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, values_of(inner[1]), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if issubclass(kind, StratalogError):
        return TEXT.map(Conflict)
    hints = get_type_hints(kind, include_extras=True)
    names = [entry.name for entry in fields(kind)] if is_dataclass(kind) else list(hints)
    return st.builds(kind, **{name: values_of(hints[name]) for name in names})


def is_alike(one: object, other: object) -> bool:
    """Equal, and errors of one kind that say the same."""
    if isinstance(one, StratalogError):
        return type(one) is type(other) and str(one) == str(other)
    if isinstance(one, tuple) and type(one) is tuple and isinstance(other, tuple):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return one == other


@pytest.mark.parametrize("wire", COMMAND_WIRES.values(), ids=lambda wire: wire.kind.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_command_and_its_answer_cross_http_unchanged(wire: CommandWire[Any], data: st.DataObject) -> None:
    command = data.draw(values_of(wire.kind))
    assert wire.body.read(wire.body.write(command)) == command
    answer = data.draw(values_of(wire.answers))
    assert is_alike(wire.answer.read(wire.answer.write(answer)), answer)
