"""Quotas: what clients may use of a node in a second, by user and client id or by address. Kafka's entities and keys.

A part of an entity is a name, `DEFAULT` (all names without a quota of their own), or None: the entity does not look at
it. An entity names a user, a client id or both, or an address alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

DEFAULT: Final = ""


class QuotaKey(Enum):
    """What is limited; values as in Kafka's protocol."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes of Produce requests in a second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes of answers to Fetch in a second."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Time that requests take, in percent of one thread's."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions that are created or deleted in a second."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """New connections in a second; of addresses alone."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The clients or addresses that a quota is about."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of one entity; None: it sets none."""

    producer_byte_rate: float | None = None
    consumer_byte_rate: float | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None
    connection_creation_rate: float | None = None

    def of(self, key: QuotaKey) -> float | None:
        limit: float | None = getattr(self, key.value)
        return limit


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    """An entity and its limits, of which there is at least one."""

    entity: QuotaEntity
    limits: QuotaLimits


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Set a limit, or remove it (None)."""

    key: QuotaKey
    limit: float | None


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """What changes of one entity; each key is named once."""

    entity: QuotaEntity
    changes: tuple[QuotaChange, ...]
