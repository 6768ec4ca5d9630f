"""What a client may do: one object for all connections of a principal from one address.

Each handler asks it before it does or shows anything; what it asks is declared with the handler (`Need` in
`registry.py`). Without an authorizer (`authorizer.class.name` is empty) every question is answered with yes.
Decisions are kept until a rule changes, for all clients together and bounded. Lives on the event loop.
Cost: 0.3 us for a question that was asked before.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from stratalog.machines.audit.lines import Asker
from stratalog.machines.rights.authorizer import Authorizer
from stratalog.model.rights import (
    ANONYMOUS,
    ANYTHING,
    CLUSTER_NAME,
    NODE,
    Operation,
    Principal,
    ResourceType,
    host_of,
)
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog.telemetry.metrics import counter
from stratalog_node.slices import Slices, add_effort

_MOST_DECISIONS: Final = 100_000
"""Of all clients together. A client that asks for ever new names must not fill the memory."""
_LONGEST_NAME: Final = 255
"""Decisions about longer names are not kept: no topic has one, and a group id may take 32 KiB."""
_MOST_CHARACTERS: Final = 6_000_000
"""Of the names of all decisions, four bytes each at most: the longest names would take 100 MiB."""
_MOST_CLIENTS: Final = 10_000
_LOOKUPS_PER_UNIT: Final = 16
"""Lookups and compared rules of the authorizer that cost as much as a unit of `Slices`."""
_SOME: Final = 1 << 16
"""In the key of a decision: it is about some resource of a type."""
NOT_ASKED: Final = -(1 << 31)
"""In place of the operations that a client may perform, where it did not ask for them."""

_OF_TYPE: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that exist for a resource, as Kafka counts them in the answers that list them."""


@dataclass(slots=True)
class RightsStats:
    denied: int = counter("Requests, or parts of them, that were refused because the client has no right to them.")


class _Decisions:
    """Those that were made since the last change of a rule, of all clients."""

    __slots__ = ("_characters", "authorizer", "known", "revision")

    def __init__(self, authorizer: Authorizer) -> None:
        self.authorizer = authorizer
        self.revision = authorizer.revision
        self.known: dict[tuple[ClientRights, str, int], bool] = {}
        self._characters = 0

    def current(self) -> dict[tuple[ClientRights, str, int], bool]:
        if self.authorizer.revision != self.revision or self._is_full:
            self.known.clear()
            self._characters = 0
            self.revision = self.authorizer.revision
        return self.known

    @property
    def _is_full(self) -> bool:
        return len(self.known) >= _MOST_DECISIONS or self._characters >= _MOST_CHARACTERS

    def keep(self, key: tuple[ClientRights, str, int], *, is_allowed: bool) -> None:
        """Requires: `current` was asked for the same question."""
        self.known[key] = is_allowed
        self._characters += len(key[1])


class ClientRights:
    """Of one principal at one address."""

    __slots__ = ("_asker", "_audit", "_decisions", "_host", "_principal", "_stats")

    def __init__(
        self,
        decisions: _Decisions | None,
        principal: Principal,
        host: str,
        stats: RightsStats,
        audit: AuditLog = NO_AUDIT,
    ) -> None:
        self._decisions = decisions
        self._audit = audit
        self._asker = Asker(str(principal), host)
        self._principal = principal
        self._host = host
        self._stats = stats

    @property
    def is_limited(self) -> bool:
        """Whether rules apply at all."""
        return self._decisions is not None

    def may(self, operation: Operation, of_type: ResourceType, name: str) -> bool:
        """A no is counted, and is in the audit log: the client asked for this resource."""
        is_allowed = self.can(operation, of_type, name)
        if not is_allowed:
            self._deny(operation, of_type, name)
        return is_allowed

    def can(self, operation: Operation, of_type: ResourceType, name: str) -> bool:
        """The same without counting, for lists that show a client what it may see."""
        decisions = self._decisions
        if decisions is None:
            return True
        known = decisions.current()
        key = self, name, operation << 4 | of_type
        is_allowed = known.get(key)
        if is_allowed is None:
            authorizer = decisions.authorizer
            before = authorizer.effort
            is_allowed = authorizer.decide(self._principal, self._host, operation, of_type, name).is_allowed
            add_effort((authorizer.effort - before) // _LOOKUPS_PER_UNIT)
            if len(name) <= _LONGEST_NAME:
                decisions.keep(key, is_allowed=is_allowed)
        return is_allowed

    def may_topic(self, operation: Operation, name: str) -> bool:
        return self._decisions is None or self.may(operation, ResourceType.TOPIC, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        return self._decisions is None or self.may(operation, ResourceType.GROUP, name)

    def may_cluster(self, operation: Operation) -> bool:
        return self._decisions is None or self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_some(self, operation: Operation, of_type: ResourceType) -> bool:
        """Whether it may do this to at least one resource of that type."""
        decisions = self._decisions
        if decisions is None:
            return True
        known = decisions.current()
        key = self, "", _SOME | operation << 4 | of_type
        is_allowed = known.get(key)
        if is_allowed is None:
            is_allowed = decisions.authorizer.decide_for_any(self._principal, self._host, operation, of_type)
            known[key] = is_allowed
        if not is_allowed:
            self._deny(operation, of_type, ANYTHING)
        return is_allowed

    def _deny(self, operation: Operation, of_type: ResourceType, name: str) -> None:
        self._stats.denied += 1
        self._audit.denied(self._asker, operation.name, of_type.name, name)

    async def denied(self, operation: Operation, of_type: ResourceType, names: Iterable[str]) -> Collection[str]:
        """Those of the names that it may not do this to, each counted. Lets others run meanwhile."""
        if self._decisions is None:
            return ()
        slices = Slices()
        found = set()
        for name in names:
            if not self.may(operation, of_type, name):
                found.add(name)
            await slices.did()
        return found

    @property
    def may_describe_topic(self) -> DescribedTopics | None:
        """None: every topic."""
        return DescribedTopics(self, self._decisions.authorizer) if self._decisions is not None else None

    @property
    def principal(self) -> Principal:
        return self._principal

    def operations(self, of_type: ResourceType, name: str) -> int:
        """A bit for each operation that it may perform, at the operation's number in Kafka's protocol. All of them
        without an authorizer, as in Kafka."""
        return sum(1 << operation for operation in _OF_TYPE[of_type] if self.can(operation, of_type, name))


class DescribedTopics:
    """Which topics a client may describe."""

    __slots__ = ("_authorizer", "_rights")

    def __init__(self, rights: ClientRights, authorizer: Authorizer) -> None:
        self._rights = rights
        self._authorizer = authorizer

    def __call__(self, name: str) -> bool:
        return self._rights.can(Operation.DESCRIBE, ResourceType.TOPIC, name)

    @property
    def viewer(self) -> str:
        return str(self._rights.principal)

    @property
    def revision(self) -> Hashable:
        """Another one once the client may see other topics."""
        return self._authorizer.topics_seen(self._rights.principal)


UNLIMITED: Final = ClientRights(None, ANONYMOUS, "", RightsStats())
"""Those of every client where no authorizer is set."""


class RightsOfClients:
    """Hands out one `ClientRights` for each principal and address. Bounded."""

    def __init__(self, authorizer: Authorizer | None, audit: AuditLog = NO_AUDIT) -> None:
        self.stats = RightsStats()
        self._decisions = None if authorizer is None else _Decisions(authorizer)
        self._audit = audit
        self._of: dict[tuple[Principal, str], ClientRights] = {}

    def of(self, principal: Principal, peer: str) -> ClientRights:
        """`peer` is HOST:PORT. Rules are about clients, so they take nothing from a node."""
        if principal.type == NODE:
            return UNLIMITED
        key = principal, host_of(peer.rpartition(":")[0])
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= _MOST_CLIENTS:
                self._of.clear()  # connections keep theirs
            found = self._of[key] = ClientRights(self._decisions, *key, self.stats, self._audit)
        return found
