"""Which Kafka APIs this node serves: the one list behind ApiVersions and behind the version check.

A handler module `serve/api/pNN_name.py` declares `API = Api(...)`; `serve/api/__init__.py` lists the modules. Produce
and Fetch are on the hot path and have handlers of another shape, but are in the same list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.connections.advertised import AdvertisedApi
from stratalog_node.serve.connections.context import RequestContext

# A control request and its response are kio's generated entities, which have no common type.
Handler = Callable[[RequestContext, Any], Awaitable[Any]]


class Need(NamedTuple):
    """A right that an API asks for. `docs/kafka.md` lists all of them; a test compares them with what handlers ask."""

    operation: Operation
    of_type: ResourceType
    otherwise: str
    """What a client gets that has no such right."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API key. Requests outside [min_version, max_version] are refused; `advertised_min` may be lower (trap:
    librdkafka turns compression off when Produce 0 is not advertised)."""

    key: int
    name: str
    min_version: int
    max_version: int
    handler: Handler | None
    """Takes the decoded request, returns the response entity. None: served by the connection itself."""
    advertised_min: int | None = None
    needs: tuple[Need, ...] = field(kw_only=True)
    """Empty: every client that may connect may ask."""


class Registry:
    def __init__(self, apis: list[Api]) -> None:
        self._by_key = {api.key: api for api in apis}
        if len(self._by_key) != len(apis):
            raise ValueError("two handlers for one API key")

    def get(self, key: int) -> Api | None:
        return self._by_key.get(key)

    def advertised(self) -> tuple[AdvertisedApi, ...]:
        """What clients get as supported APIs, in the order of keys."""
        return tuple(
            AdvertisedApi(
                api.key, api.min_version if api.advertised_min is None else api.advertised_min, api.max_version
            )
            for api in self.all()
        )

    def all(self) -> list[Api]:
        return sorted(self._by_key.values(), key=lambda api: api.key)
