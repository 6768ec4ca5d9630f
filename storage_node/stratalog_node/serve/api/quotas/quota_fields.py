"""Entities and limits in Kafka's messages: a user, a client id or an address, each by name or as the default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from stratalog.model.quotas import DEFAULT, QuotaEntity, QuotaKey, QuotaLimits

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
FIELDS: Final = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
"""Kafka's types of entities, with the fields of `QuotaEntity`."""


def parts_of(entity: QuotaEntity) -> Iterator[tuple[str, str]]:
    """Kafka's types that it names, with their names."""
    for kind, field in FIELDS.items():
        name = getattr(entity, field)
        if name is not None:
            yield kind, name


def entity_fields(entity: QuotaEntity) -> list[dict[str, object]]:
    """A default has no name there."""
    return [{"entity_type": kind, "entity_name": None if name == DEFAULT else name} for kind, name in parts_of(entity)]


def limit_fields(limits: QuotaLimits) -> list[dict[str, Any]]:
    return [{"key": key.value, "value": limit} for key in QuotaKey if (limit := limits.of(key)) is not None]
