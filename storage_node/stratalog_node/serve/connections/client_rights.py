"""What a client may do: one object for all connections of a principal from one address.

Each handler asks it before it does or shows anything. Without an authorizer (`authorizer.class.name` is empty) every
question is answered with yes. Decisions are kept until a rule changes. Lives on the event loop.
Cost: 0.2 us for a question that was asked before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog.machines.rights.authorizer import Authorizer
from stratalog.model.rights import ANONYMOUS, CLUSTER_NAME, Operation, Principal, ResourceType
from stratalog.telemetry.metrics import counter

_MOST_DECISIONS: Final = 10_000
_MOST_CLIENTS: Final = 10_000
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

T = TypeVar("T")


@dataclass(slots=True)
class RightsStats:
    denied: int = counter("Requests, or parts of them, that were refused because the client has no right to them.")


class ClientRights:
    """Of one principal at one address."""

    __slots__ = ("_authorizer", "_host", "_known", "_principal", "_revision", "_stats")

    def __init__(self, authorizer: Authorizer | None, principal: Principal, host: str, stats: RightsStats) -> None:
        self._authorizer = authorizer
        self._principal = principal
        self._host = host
        self._stats = stats
        self._revision = -1
        self._known: dict[tuple[str, int], bool] = {}

    @property
    def is_limited(self) -> bool:
        """Whether rules apply at all."""
        return self._authorizer is not None

    def may(self, operation: Operation, of_type: ResourceType, name: str) -> bool:
        """A no is counted: the client asked for this resource."""
        is_allowed = self.can(operation, of_type, name)
        if not is_allowed:
            self._stats.denied += 1
        return is_allowed

    def can(self, operation: Operation, of_type: ResourceType, name: str) -> bool:
        """The same without counting, for lists that show a client what it may see."""
        authorizer = self._authorizer
        if authorizer is None:
            return True
        if authorizer.revision != self._revision or len(self._known) >= _MOST_DECISIONS:
            self._known.clear()
            self._revision = authorizer.revision
        key = name, operation << 4 | of_type
        known = self._known.get(key)
        if known is None:
            known = authorizer.decide(self._principal, self._host, operation, of_type, name).is_allowed
            self._known[key] = known
        return known

    def may_topic(self, operation: Operation, name: str) -> bool:
        return self._authorizer is None or self.may(operation, ResourceType.TOPIC, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        return self._authorizer is None or self.may(operation, ResourceType.GROUP, name)

    def may_cluster(self, operation: Operation) -> bool:
        return self._authorizer is None or self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_some(self, operation: Operation, of_type: ResourceType) -> bool:
        """Whether it may do this to at least one resource of that type."""
        if self._authorizer is None:
            return True
        is_allowed = self._authorizer.decide_for_any(self._principal, self._host, operation, of_type)
        if not is_allowed:
            self._stats.denied += 1
        return is_allowed

    def seen(self, of_type: ResourceType, items: Iterable[T], name_of: Callable[[T], str]) -> Iterable[T]:
        """Those that it may describe: nothing else is listed, counted or named."""
        if self._authorizer is None:
            return items
        return (item for item in items if self.can(Operation.DESCRIBE, of_type, name_of(item)))

    def operations(self, of_type: ResourceType, name: str) -> int:
        """A bit for each operation that it may perform, at the operation's number in Kafka's protocol."""
        return sum(1 << operation for operation in _OF_TYPE[of_type] if self.can(operation, of_type, name))


UNLIMITED: Final = ClientRights(None, ANONYMOUS, "", RightsStats())
"""Those of every client where no authorizer is set."""


class RightsOfClients:
    """Hands out one `ClientRights` for each principal and address. Bounded."""

    def __init__(self, authorizer: Authorizer | None) -> None:
        self.stats = RightsStats()
        self._authorizer = authorizer
        self._of: dict[tuple[Principal, str], ClientRights] = {}

    def of(self, principal: Principal, peer: str) -> ClientRights:
        """`peer` is HOST:PORT."""
        key = principal, peer.rpartition(":")[0]
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= _MOST_CLIENTS:
                self._of.clear()  # connections keep theirs
            found = self._of[key] = ClientRights(self._authorizer, *key, self.stats)
        return found
