"""Quotas over a Kafka listener, as `kafka-configs.sh` asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from stratalog.connect.listener import ListenerConnection
from stratalog.model.errors import Unavailable
from stratalog.model.quotas import DEFAULT, EntityQuotas, QuotaAlteration, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.model.rights import Operation
from stratalog_cli.security.rights_over_kafka import error_of

_DESCRIBE, _ALTER = 48, 49
_FIELDS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""Kafka's types of entities, with the fields of `QuotaEntity`."""


class QuotasOverKafka:
    """The caller closes the connection."""

    def __init__(self, connection: ListenerConnection) -> None:
        self._connection = connection

    def quotas(self) -> list[EntityQuotas]:
        """All of them, in the order of their names."""
        answer = self._ask(_DESCRIBE, components=(), strict=False)
        self._require(answer.error_code, answer.error_message, Operation.DESCRIBE_CONFIGS)
        return in_order(EntityQuotas(_entity(one.entity), _limits(one.values)) for one in answer.entries or ())

    def alter(self, alteration: QuotaAlteration) -> None:
        entity = [
            {"entity_type": kind, "entity_name": name or None}
            for kind, name in zip(_FIELDS, _names(alteration.entity), strict=True)
            if name is not None
        ]
        ops = [
            {"key": one.key.value, "value": 0.0 if one.limit is None else one.limit, "remove": one.limit is None}
            for one in alteration.changes
        ]
        answer = self._ask(_ALTER, is_write=True, entries=[{"entity": entity, "ops": ops}], validate_only=False)
        for one in answer.entries:
            self._require(one.error_code, one.error_message, Operation.ALTER_CONFIGS)

    def _ask(self, api_key: int, *, is_write: bool = False, **fields: object) -> Any:
        versions = self._connection.versions.get(api_key)
        if versions is None:
            raise Unavailable(f"{self._connection.where} does not serve quotas (API key {api_key})")
        return self._connection.ask(api_key, min(1, versions[1]), is_write=is_write, **fields)

    def _require(self, code: int, message: str | None, operation: Operation) -> None:
        error = error_of(self._connection, code, message, operation)
        if error is not None:
            raise error


def in_order(quotas: Iterable[EntityQuotas]) -> list[EntityQuotas]:
    """Of the names of their entities."""
    return sorted(quotas, key=lambda one: tuple(name or "" for name in _names(one.entity)))


def _names(entity: QuotaEntity) -> tuple[str | None, ...]:
    return entity.user, entity.client_id, entity.ip


def _entity(parts: Any) -> QuotaEntity:
    known = {_FIELDS[one.entity_type]: one.entity_name or DEFAULT for one in parts if one.entity_type in _FIELDS}
    return QuotaEntity(**known)


def _limits(values: Any) -> QuotaLimits:
    """Keys that only a newer broker has are left out."""
    known = {key.value for key in QuotaKey}
    return QuotaLimits(**{one.key: float(one.value) for one in values if one.key in known})
