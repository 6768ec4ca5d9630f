"""Converts a model to the structural schema that Kubernetes requires: everything in place, no references, bounds on
all.

Pure. It refuses a model without a structural form when `crds/` are generated, not when a user applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pydantic import BaseModel, JsonValue

Schema: TypeAlias = dict[str, JsonValue]

_DROPPED = frozenset({"title", "$defs", "additionalProperties", "prefixItems"})
"""Titles repeat names; unknown fields are pruned by the server, and must not be forbidden."""


def structural(model: type[BaseModel]) -> Schema:
    """The schema of a model's objects, as they are written in YAML."""
    whole = model.model_json_schema(by_alias=True, mode="validation")
    definitions = whole.get("$defs", {})
    assert isinstance(definitions, dict), "definitions are a mapping"
    return _plain(whole, definitions, model.__name__)


def _plain(schema: Mapping[str, JsonValue], definitions: Mapping[str, JsonValue], where: str) -> Schema:
    merged = _resolved(schema, definitions)
    if "x-kubernetes-int-or-string" in merged:
        return {key: value for key, value in merged.items() if key not in _DROPPED and key != "type"}
    plain: Schema = {key: value for key, value in merged.items() if key not in _DROPPED}
    if plain.get("default") is None:
        plain.pop("default", None)
    else:
        plain["default"] = _without_nulls(plain["default"])
    kind = plain.get("type")
    if kind == "object":
        _object(plain, merged, definitions, where)
    elif kind == "array":
        items = merged.get("items")
        assert isinstance(items, dict), f"{where}: a list of nothing in particular"
        assert "maxItems" in plain, f"{where}: a list without a bound"
        plain["items"] = _plain(items, definitions, f"{where}[]")
    elif kind == "string":
        assert "enum" in plain or "maxLength" in plain, f"{where}: a text without a bound"
    elif kind == "integer":
        plain["format"] = "int64"
    elif kind == "number":
        plain["format"] = "double"
    else:
        assert kind == "boolean", f"{where}: {kind} has no place in a structural schema"
    return plain


def _object(plain: Schema, merged: Schema, definitions: Mapping[str, JsonValue], where: str) -> None:
    properties = merged.get("properties")
    if isinstance(properties, dict):
        plain["properties"] = {
            name: _plain(_as_schema(value, f"{where}.{name}"), definitions, f"{where}.{name}")
            for name, value in properties.items()
        }
        return
    values = _as_schema(merged.get("additionalProperties"), where)
    assert "maxProperties" in plain, f"{where}: a map without a bound"
    plain["additionalProperties"] = _plain(values, definitions, f"{where}{{}}")


def _resolved(schema: Mapping[str, JsonValue], definitions: Mapping[str, JsonValue]) -> Schema:
    """Replaces references and "or null" by what they mean. Keys beside a reference override those of its target."""
    merged: Schema = dict(schema)
    while True:
        reference, choices = merged.pop("$ref", None), merged.get("anyOf")
        if isinstance(reference, str):
            target = definitions[reference.rsplit("/", 1)[1]]
            merged = {**_as_schema(target, reference), **merged}
        elif isinstance(choices, list) and "x-kubernetes-int-or-string" not in merged:
            some = [one for one in choices if isinstance(one, dict) and one.get("type") != "null"]
            assert len(some) == 1, "a field is of one type, or absent"
            del merged["anyOf"]
            merged = {**some[0], **merged}
        elif "const" in merged:
            merged["enum"] = [merged.pop("const")]
        else:
            return merged


def _as_schema(value: JsonValue, where: str) -> Schema:
    assert isinstance(value, dict), f"{where}: no schema"
    return value


def _without_nulls(value: JsonValue) -> JsonValue:
    """A default as a user would write it."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value
