"""Secrets as an API server keeps them, for tests without one."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from stratalog.model.errors import Conflict, NotFound
from stratalog_operator.kube.client import JSON
from stratalog_operator.resources.names import ANNOTATION_PASSWORD_OF
from support.noted_kubernetes import NotedKubernetes


class Secrets(NotedKubernetes):
    """Each write makes another version, and one over an old version changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, dict[str, Any]] = {}
        self._numbers = 0

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        is_fenced: bool = True,
    ) -> dict[str, Any]:
        await super().ask(method, path, body, query=query, content_type=content_type, is_fenced=is_fenced)
        name = path.rpartition("/secrets/")[2] if method != "POST" else dict(body or {})["metadata"]["name"]
        there = self.held.get(name)
        self._numbers += method != "GET"
        if method == "POST":
            if there is not None:
                raise Conflict(name)
            made = json.loads(json.dumps(body))
            made["metadata"] |= {"uid": f"uid-{self._numbers}", "resourceVersion": str(self._numbers)}
            self.held[name] = made
        elif there is None:
            raise NotFound(name)
        elif method == "PATCH":
            self._patch(there, json.loads(json.dumps(body)))
        return json.loads(json.dumps(self.held[name]))  # type: ignore[no-any-return]  # as it was given

    def _patch(self, there: dict[str, Any], given: dict[str, Any]) -> None:
        """As a merge patch: null takes a key away."""
        if given["metadata"].pop("resourceVersion") != there["metadata"]["resourceVersion"]:
            raise Conflict(there["metadata"]["name"])
        data = {**there["data"], **given["data"]}
        there["data"] = {key: value for key, value in data.items() if value is not None}
        notes = {**there["metadata"].get("annotations", {}), **given["metadata"].get("annotations", {})}
        there["metadata"] |= {"annotations": notes, "resourceVersion": str(self._numbers)}

    def give(self, name: str, key: str, value: bytes, password_of: str = "") -> None:
        """As a person does, who owns it. `password_of`: which StorageUsers may have a password from it."""
        self._numbers += 1
        data = {key: base64.b64encode(value).decode()}
        metadata: dict[str, Any] = {"name": name, "uid": f"uid-{self._numbers}", "resourceVersion": str(self._numbers)}
        if password_of:
            metadata["annotations"] = {ANNOTATION_PASSWORD_OF: password_of}
        self.held[name] = {"metadata": metadata, "data": data}

    def text(self, name: str, key: str = "password") -> str:
        return base64.b64decode(self.held[name]["data"][key]).decode()
