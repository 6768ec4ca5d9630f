"""What a quota may be, and what an alteration makes of one. Kafka's rules and words. Pure."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from math import isfinite
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog.model.quotas import DEFAULT, QuotaAlteration, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.model.rights import host_of

NO_LIMITS: Final = QuotaLimits()
_OF_CLIENTS: Final = frozenset(QuotaKey) - {QuotaKey.CONNECTION_CREATION_RATE}
_OF_ADDRESSES: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
_MOST: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONSUMER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""Limits that are whole numbers, and the highest of each. Others are any number above zero."""
LEAST_LIMIT: Final = 1e-6
"""One partition in twelve days. Below it, no wait can be stated to a client."""
_NEARLY: Final = 1e-6


def check_entity(entity: QuotaEntity) -> None:
    """Raises: InvalidRequest."""
    if entity.ip is not None:
        if entity.user is not None or entity.client_id is not None:
            raise InvalidRequest(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        if entity.ip != DEFAULT and address_of(entity.ip) is None:
            raise InvalidRequest(f"{entity.ip[:300]} is not a valid IP: name an address, not a host")
    elif entity.user is None and entity.client_id is None:
        raise InvalidRequest("Invalid empty client quota entity")


def address_of(text: str) -> str | None:
    """An address as a node knows its clients by (`host_of`); None if the text is none."""
    try:
        ip_address(text)
    except ValueError:
        return None
    return host_of(text)


def limit_of(entity: QuotaEntity, key: QuotaKey, limit: float) -> float:
    """The limit as it is kept. Raises: InvalidRequest."""
    check_key(entity, key)
    if not limit > 0 or not isfinite(limit):
        raise InvalidRequest(f"Quota {key.value} must be greater than 0")
    most = _MOST.get(key)
    if most is None:
        if limit < LEAST_LIMIT:
            raise InvalidRequest(f"Quota {key.value} must be at least {LEAST_LIMIT}")
        return float(limit)
    whole = int(limit + _NEARLY)
    if abs(whole - limit) > _NEARLY:
        raise InvalidRequest(f"{key.value} cannot be a fractional value.")
    if not 0 < whole <= most:
        raise InvalidRequest(f"Configuration {key.value} must be a whole number from 1 to {most}")
    return float(whole)


def check_key(entity: QuotaEntity, key: QuotaKey) -> None:
    """Raises: InvalidRequest for a key that entities of this kind do not have."""
    if key not in (_OF_CLIENTS if entity.ip is None else _OF_ADDRESSES):
        raise InvalidRequest(f"Invalid configuration key {key.value}")


def altered(limits: QuotaLimits, alteration: QuotaAlteration) -> QuotaLimits:
    """Raises: InvalidRequest; then nothing of the alteration is made."""
    check_entity(alteration.entity)
    made: dict[str, float | None] = {}
    for change in alteration.changes:
        if change.key.value in made:
            raise InvalidRequest(f"Duplicate quota key {change.key.value}")
        check_key(alteration.entity, change.key)
        made[change.key.value] = None if change.limit is None else limit_of(alteration.entity, change.key, change.limit)
    return replace(limits, **made)


def check_limits(entity: QuotaEntity, limits: QuotaLimits) -> None:
    """That an entity may be kept with these. Raises: InvalidRequest."""
    check_entity(entity)
    for key in QuotaKey:
        limit = limits.of(key)
        if limit is not None:
            limit_of(entity, key, limit)
