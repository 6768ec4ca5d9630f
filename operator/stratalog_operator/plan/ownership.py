"""Tells whether the operator still owns every field that it sets on an object, from the API server's record of owners.

Server-side apply notes the last writer of each field. A writer that changes or removes a field of the operator takes
its ownership, so the operator must put back the fields that it no longer owns. It need not compare values, which the
API server writes in its own way.

Pure. Source: docs/operator.md section 4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Fields: TypeAlias = Mapping[str, Any]
"""As `fieldsV1`: `f:NAME` of a mapping, `k:{…}` and `v:…` of a list; a leaf is owned whole."""

_NEVER_NOTED = frozenset({"name", "namespace"})


def owns(fields: Fields, manifest: Mapping[str, Any]) -> bool:
    """Whether the operator owns all fields of `manifest`. Fields that identify an object have no owner."""
    rest = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in _NEVER_NOTED}
    return _has(fields, {**rest, "metadata": metadata})


def united(some: Fields, others: Fields) -> dict[str, Any]:
    """Set in two ways by the same one. A leaf is more than what lies below it."""
    made: dict[str, Any] = dict(some)
    for key, below in others.items():
        known = made.get(key)
        made[key] = below if known is None else united(known, below) if known and below else {}
    return made


def _has(fields: Fields, value: object) -> bool:
    if not fields:
        return True
    if isinstance(value, Mapping):
        return all(
            f"f:{key}" in fields and _has(fields[f"f:{key}"], below)
            for key, below in value.items()
            if not _is_empty(below)
        )
    if isinstance(value, list):
        return all(_has_item(fields, item) for item in value)
    return True


def _has_item(fields: Fields, item: object) -> bool:
    if not isinstance(item, Mapping):
        return f"v:{json.dumps(item)}" in fields
    return any(
        key.startswith("k:") and _is_of(json.loads(key[2:]), item) and _has(below, item)
        for key, below in fields.items()
    )


def _is_of(key: Mapping[str, object], item: Mapping[str, object]) -> bool:
    """What the item does not say is a default (the protocol of a port)."""
    return all(item[name] == value for name, value in key.items() if name in item)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Mapping | list) and not value)
