"""The OpenAPI description of the meta service, made from the routes and their pydantic models."""

from __future__ import annotations

import re
from typing import TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from stratalog.meta_api.problems import CONTENT_TYPE, Problem
from stratalog.meta_api.streams import SnapshotHead
from stratalog.meta_api.watch_lines import ChangeSetJson
from stratalog_meta.api.routes import ROUTES, Route

JsonObject: TypeAlias = dict[str, object]
_COMPONENT = "#/components/schemas/{model}"


def describe() -> JsonObject:
    """An OpenAPI 3.1 document."""
    models: set[type[BaseModel]] = {Problem, SnapshotHead, ChangeSetJson}
    for route in ROUTES:
        models.add(route.answer)
        if route.body is not None:
            models.add(route.body)
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema(
        [(model, "serialization") for model in ordered], ref_template=_COMPONENT, title="Schemas"
    )
    paths: dict[str, JsonObject] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    paths["/v1/snapshot"] = {"get": _stream("All metadata, as lines of JSON", SnapshotHead)}
    paths["/v1/watch"] = {"get": _stream("Change sets after a version (query: after), as lines of JSON", ChangeSetJson)}
    for path, summary in (("/healthz", "The process lives"), ("/readyz", "Changes are performed, or why not")):
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "yes"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stratalog meta service", "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def _operation(route: Route) -> JsonObject:
    operation: JsonObject = {
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", route.path)
        ],
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": _reference(route.answer)}}},
            "default": {"description": "why not", "content": {CONTENT_TYPE: {"schema": _reference(Problem)}}},
        },
    }
    if route.body is not None:
        content = {"application/json": {"schema": _reference(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _stream(summary: str, line: type[BaseModel]) -> JsonObject:
    content = {"application/x-ndjson": {"schema": _reference(line)}}
    return {"summary": summary, "responses": {"200": {"description": "lines", "content": content}}}


def _reference(model: type[BaseModel]) -> JsonObject:
    return {"$ref": _COMPONENT.format(model=model.__name__)}
