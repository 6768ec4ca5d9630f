"""The OpenAPI description of the meta service, made from the routes and the records that they take and answer."""

from __future__ import annotations

import re

from stratalog.meta_api.json_shape import JsonObject, describe
from stratalog.meta_api.problems import CONTENT_TYPE, Problem
from stratalog.meta_api.streams import SnapshotHead
from stratalog.meta_api.watch_lines import WatchLine
from stratalog_meta.api.routes import ROUTES, Route


def document() -> JsonObject:
    """An OpenAPI 3.1 document."""
    schemas: dict[str, JsonObject] = {}
    paths: dict[str, JsonObject] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    paths["/v1/snapshot"] = {
        "get": _stream("All metadata, as lines of JSON (query: credentials, for nodes)", SnapshotHead, schemas)
    }
    paths["/v1/watch"] = {
        "get": _stream(
            "Change sets after a version, as lines of JSON; query: after, credentials (for nodes)", WatchLine, schemas
        )
    }
    for path, summary in (("/healthz", "The process lives"), ("/readyz", "Changes are performed, or why not")):
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "yes"}}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stratalog meta service",
            "version": "v1",
            "description": "A command with a field that is not described here is refused.",
        },
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _operation(route: Route, schemas: dict[str, JsonObject]) -> JsonObject:
    parameters: list[JsonObject] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    operation: JsonObject = {
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "done", "content": _content("application/json", route.answer, schemas)},
            "default": {"description": "why not", "content": _content(CONTENT_TYPE, Problem, schemas)},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content("application/json", route.body, schemas)}
        description = "Change nothing, and say what it would come to"
        parameters.append(
            {"name": "validate_only", "in": "query", "schema": {"type": "boolean"}, "description": description}
        )
    return operation


def _stream(summary: str, line: type, schemas: dict[str, JsonObject]) -> JsonObject:
    content = _content("application/x-ndjson", line, schemas)
    return {"summary": summary, "responses": {"200": {"description": "lines", "content": content}}}


def _content(media_type: str, kind: object, schemas: dict[str, JsonObject]) -> JsonObject:
    return {media_type: {"schema": describe(kind, schemas)}}
