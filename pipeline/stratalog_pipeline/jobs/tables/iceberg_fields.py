"""Gives Arrow fields the ids that an Iceberg table has for them, so that its data files name them. Pure.

Readers find a column by its id. Files without ids are read by the table's name mapping, which strict readers refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

_ID: Final = "PARQUET:field_id"


def with_ids(fields: Any, schema: Any) -> Any:
    """An Arrow schema. Requires: the Iceberg schema has all of the fields, at each depth."""
    return pa.schema(_struct(fields, schema.as_struct()))


def _struct(fields: Iterable[Any], struct: Any) -> list[Any]:
    known = {one.name: one for one in struct.fields}
    return [_field(one.name, one.type, known[one.name].field_id, known[one.name].field_type) for one in fields]


def _field(name: str, kind: Any, field_id: int, iceberg: Any, *, is_nullable: bool = True) -> Any:
    return pa.field(name, _type(kind, iceberg), is_nullable, metadata={_ID: str(field_id)})


def _type(kind: Any, iceberg: Any) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct(_struct(list(kind), iceberg))
    if types.is_list(kind):
        return pa.list_(_field("element", kind.value_type, iceberg.element_id, iceberg.element_type))
    if types.is_map(kind):
        key = _field("key", kind.key_type, iceberg.key_id, iceberg.key_type, is_nullable=False)
        return pa.map_(key, _field("value", kind.item_type, iceberg.value_id, iceberg.value_type))
    return kind
