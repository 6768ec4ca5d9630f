"""What one field of a kio dataclass is on the wire, read from its annotation and metadata. Pure; imports no kio."""

from __future__ import annotations

import types
import typing
from dataclasses import Field, is_dataclass
from typing import Any, NamedTuple, TypeAlias

Schema: TypeAlias = Any
"""A class of kio's: a dataclass with wire types in its fields' metadata. They have no useful common type."""


class FieldShape(NamedTuple):
    nested: Schema | None
    """The dataclass of the field or of its elements; None for a primitive."""
    kafka_type: str
    """The primitive's wire type; empty for a nested one."""
    is_array: bool
    is_nullable: bool
    tag: int | None


def shape_of(field: Field[Any]) -> FieldShape:
    kind: Any = field.type
    is_nullable = isinstance(kind, types.UnionType)
    if is_nullable:
        kind = next(one for one in typing.get_args(kind) if one is not types.NoneType)
    is_array = typing.get_origin(kind) is tuple
    if is_array:
        kind = typing.get_args(kind)[0]
    return FieldShape(
        kind if is_dataclass(kind) else None,
        field.metadata.get("kafka_type", ""),
        is_array,
        is_nullable,
        field.metadata.get("tag"),
    )
