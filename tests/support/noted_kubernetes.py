"""Kubernetes as the operator asks for it, without a server: requests are noted, and answered as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kubernetes.aio.client import ApiClient

from stratalog.model.errors import NotFound, StratalogError
from stratalog_operator.kube.client import JSON, Kubernetes


class NotedKubernetes(Kubernetes):
    """Every object that is asked for is there, without finalizers; a list is empty."""

    def __init__(self) -> None:
        super().__init__(ApiClient.__new__(ApiClient))  # never asked: `ask` is the test's
        self.requests: list[tuple[str, str]] = []
        """Method and path, in the order in which they were sent."""
        self.refusals: dict[str, StratalogError] = {}
        """By what a path ends with, for all but reads."""
        self.answers_to: dict[str, dict[str, Any]] = {}
        """Of reads, by the path."""
        self.missing: set[str] = set()
        """Paths of what is not there."""
        self.gate = asyncio.Event()
        """No request is answered while it is not set."""
        self.gate.set()
        self.most = self._open = 0
        """Requests at the same time."""

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
        verb = self._note(method, path, content_type)
        self.requests.append((method, path))
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
        finally:
            self._open -= 1
        self.answers[verb, "200"] += 1
        for ending, error in self.refusals.items():
            if method != "GET" and path.endswith(ending):
                raise error
        if path in self.missing:
            raise NotFound(path)
        given = self.answers_to.get(path)
        return given if given is not None else {"metadata": {"uid": "u", "resourceVersion": "1"}, "items": []}

    def changed(self) -> list[str]:
        """Paths of what was not only read."""
        return [path for method, path in self.requests if method != "GET"]
