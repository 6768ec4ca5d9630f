"""Which quota a client has: Kafka's order of precedence, for each key by itself. Pure.

The first of these entities that sets the key decides; "default" is the entity for all names without one of their own:
user and client id, user and default client, user, default user and client id, default user and default client, default
user, client id, default client. What the entity names is counted together: all connections of the user, of the client
id (whoever the user is), or of the user with that client id.
Cost: below a microsecond for a key that no entity sets, else up to eight lookups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.model.quotas import DEFAULT, EntityQuotas, QuotaEntity, QuotaKey, QuotaLimits
from stratalog.model.rights import host_of


@dataclass(frozen=True, slots=True)
class AppliedQuota:
    """A limit, and whose usage is counted together: of a user, of a client id, or of both."""

    limit: float
    user: str | None
    client_id: str | None


class QuotaTable:
    """The quotas of a cluster."""

    def __init__(self) -> None:
        self._limits: dict[QuotaEntity, QuotaLimits] = {}
        self._counts = dict.fromkeys(QuotaKey, 0)
        """How many entities set each key."""
        self.revision = 0
        """Grows with each change."""
        self.limits_clients = False
        """Whether any entity limits users or client ids."""
        self.limits_addresses = False

    # Reading --------------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[EntityQuotas]:
        """Requires: nothing is changed meanwhile."""
        return (EntityQuotas(entity, limits) for entity, limits in self._limits.items())

    def copied(self) -> dict[QuotaEntity, QuotaLimits]:
        """As they are now, for a thread that reads them while they change. Cost: a millisecond for 20,000."""
        return self._limits.copy()

    def limits(self, entity: QuotaEntity) -> QuotaLimits | None:
        return self._limits.get(entity)

    def of_client(self, key: QuotaKey, user: str, client_id: str) -> AppliedQuota | None:
        """What limits this key of a client; None: nothing does."""
        if not self._counts[key]:
            return None
        limits = self._limits
        for entity, of_user, of_client in (
            (QuotaEntity(user, client_id), user, client_id),
            (QuotaEntity(user, DEFAULT), user, client_id),
            (QuotaEntity(user), user, None),
            (QuotaEntity(DEFAULT, client_id), user, client_id),
            (QuotaEntity(DEFAULT, DEFAULT), user, client_id),
            (QuotaEntity(DEFAULT), user, None),
            (QuotaEntity(None, client_id), None, client_id),
            (QuotaEntity(None, DEFAULT), None, client_id),
        ):
            found = limits.get(entity)
            limit = None if found is None else found.of(key)
            if limit is not None:
                return AppliedQuota(limit, of_user, of_client)
        return None

    def of_address(self, ip: str) -> float | None:
        """How many connections an address may open in a second."""
        if not self.limits_addresses:
            return None
        for name in (host_of(ip), DEFAULT):
            found = self._limits.get(QuotaEntity(ip=name))
            if found is not None and found.connection_creation_rate is not None:
                return found.connection_creation_rate
        return None

    # Changing -------------------------------------------------------------------------------------------------------
    def put(self, quotas: EntityQuotas) -> None:
        """In place of what the entity had."""
        self._count(quotas.entity, -1)
        self._limits[quotas.entity] = quotas.limits
        self._count(quotas.entity, 1)
        self._changed()

    def drop(self, entity: QuotaEntity) -> None:
        """No effect if it has none."""
        self._count(entity, -1)
        self._limits.pop(entity, None)
        self._changed()

    def _count(self, entity: QuotaEntity, by: int) -> None:
        limits = self._limits.get(entity)
        for key in QuotaKey:
            if limits is not None and limits.of(key) is not None:
                self._counts[key] += by

    def _changed(self) -> None:
        self.revision += 1
        self.limits_addresses = self._counts[QuotaKey.CONNECTION_CREATION_RATE] > 0
        self.limits_clients = any(
            count for key, count in self._counts.items() if key is not QuotaKey.CONNECTION_CREATION_RATE
        )
