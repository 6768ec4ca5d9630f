"""Decides whether a principal may do something, from the rules that the metadata hold. Pure.

The decision is that of Kafka's StandardAuthorizer: super users first, then a DENY that matches, then an ALLOW. Where no
rule's pattern matches the resource at all, `allow.everyone.if.no.acl.found` decides; everything else is denied.

Cost of a decision: one lookup for the name, one for `*`, and one for each length that prefixed patterns of that type
have. `DecisionCache` remembers decisions until a rule changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog.model.rights import (
    ANYTHING,
    CLUSTER_NAME,
    EVERY_USER,
    Operation,
    PatternType,
    Permission,
    Principal,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
    parse_principal,
)

IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Which operations an ALLOW may name to include these two. A DENY includes no other operation than its own."""

_ANY_NAME: Final = "hardcode"
"""Kafka's stand-in for "some resource": a right to a resource of this name is one to some resource."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an operation is allowed, and by what: `rule` is None for a super user and for a default."""

    is_allowed: bool
    rule: Rule | None = None
    is_super_user: bool = False


class Authorizer:
    """All rules of a cluster, by resource.

    Invariant: a rule is held once, however often it was added.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        super_users: frozenset[Principal] = frozenset(),
        is_open_without_rules: bool = False,
    ) -> None:
        self._super_users = super_users
        self._default = Decision(is_open_without_rules)
        self._rules: dict[Resource, dict[Rule, None]] = {}
        self._prefix_lengths: dict[ResourceType, dict[int, int]] = {}
        """For each type the lengths of its prefixed patterns, with the number of patterns of that length."""
        self.revision = 0
        """Grows with each change."""
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return sum(map(len, self._rules.values()))

    def __contains__(self, rule: Rule) -> bool:
        return rule in self._rules.get(rule.resource, ())

    def rules(self) -> Iterator[Rule]:
        """All of them. Requires: none is added or removed meanwhile."""
        for rules in self._rules.values():
            yield from rules

    def add(self, rule: Rule) -> None:
        resource = rule.resource
        if resource not in self._rules:
            self._rules[resource] = {}
            if resource.pattern is PatternType.PREFIXED:
                lengths = self._prefix_lengths.setdefault(resource.type, {})
                lengths[len(resource.name)] = lengths.get(len(resource.name), 0) + 1
        self._rules[resource][rule] = None
        self.revision += 1

    def remove(self, rule: Rule) -> None:
        """No effect if it is not there."""
        resource = rule.resource
        found = self._rules.get(resource)
        if found is None or rule not in found:
            return
        del found[rule]
        if not found:
            del self._rules[resource]
            if resource.pattern is PatternType.PREFIXED:
                lengths = self._prefix_lengths[resource.type]
                lengths[len(resource.name)] -= 1
                if not lengths[len(resource.name)]:
                    del lengths[len(resource.name)]
        self.revision += 1

    # Decisions ------------------------------------------------------------------------------------------------------
    def decide(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        """`host` is the address of the client, as text; `operation` is one that a request needs, never ANY or ALL."""
        if principal in self._super_users:
            return Decision(True, is_super_user=True)
        principals = (str(principal), str(EVERY_USER))
        allowed: Rule | None = None
        has_rules = False
        for rule in self._about(resource_type, name):
            has_rules = True
            if rule.principal in principals and rule.host in (ANYTHING, host) and _includes(rule, operation):
                if rule.permission is Permission.DENY:
                    return Decision(False, rule)
                allowed = allowed or rule
        if allowed is not None:
            return Decision(True, allowed)
        return Decision(False) if has_rules else self._default

    def decide_for_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether the principal may do this to at least one resource of that type. As Kafka's
        `authorizeByResourceType`, it does not apply what operations imply."""
        if self.decide(principal, host, operation, resource_type, _ANY_NAME).is_allowed:
            return True
        principals = (str(principal), str(EVERY_USER))
        allowed: dict[Resource, None] = {}
        denied: set[Resource] = set()
        for resource, rules in self._rules.items():
            if resource.type is not resource_type:
                continue
            for rule in rules:
                if (
                    rule.principal not in principals
                    or rule.host not in (ANYTHING, host)
                    or rule.operation not in (operation, Operation.ALL)
                ):
                    continue
                if rule.permission is Permission.ALLOW:
                    allowed[resource] = None
                else:
                    denied.add(resource)
        if Resource(resource_type, ANYTHING) in denied:
            return False
        everything = Resource(resource_type, ANYTHING)
        return everything in allowed or any(not _is_covered(resource, denied) for resource in allowed)

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[Rule]:
        """The rules whose patterns match a resource."""
        rules = self._rules
        yield from rules.get(Resource(resource_type, name), ())
        if name != ANYTHING:
            yield from rules.get(Resource(resource_type, ANYTHING), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield from rules.get(Resource(resource_type, name[:length], PatternType.PREFIXED), ())

    # Rules ----------------------------------------------------------------------------------------------------------
    def find(self, wanted: RuleFilter) -> list[Rule]:
        """The rules that a filter names, in their order. Cost: a check of each resource that has rules."""
        return sorted(
            rule
            for resource, rules in self._rules.items()
            if _finds_resource(wanted, resource)
            for rule in rules
            if _finds_entry(wanted, rule)
        )


class DecisionCache:
    """Remembers decisions of an authorizer until a rule changes. Bounded: it starts empty again when it is full."""

    def __init__(self, authorizer: Authorizer, *, most: int = 100_000) -> None:
        self._authorizer = authorizer
        self._most = most
        self._revision = authorizer.revision
        self._known: dict[tuple[Principal, str, Operation, ResourceType, str], Decision] = {}

    def decide(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        if self._revision != self._authorizer.revision or len(self._known) >= self._most:
            self._known.clear()
            self._revision = self._authorizer.revision
        key = (principal, host, operation, resource_type, name)
        decision = self._known.get(key)
        if decision is None:
            decision = self._known[key] = self._authorizer.decide(principal, host, operation, resource_type, name)
        return decision


def check_rule(rule: Rule) -> None:
    """That a rule may be kept. Raises: InvalidRequest in Kafka's words."""
    resource = rule.resource
    if resource.type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidRequest(f"Invalid resourceType {resource.type.name}")
    if resource.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(f"Invalid patternType {resource.pattern.name}")
    if rule.operation in (Operation.UNKNOWN, Operation.ANY):
        raise InvalidRequest(f"Invalid operation {rule.operation.name}")
    if rule.permission not in (Permission.DENY, Permission.ALLOW):
        raise InvalidRequest(f"Invalid permissionType {rule.permission.name}")
    if not resource.name:
        raise InvalidRequest("Invalid empty resource name")
    if resource.type is ResourceType.CLUSTER and resource.name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    try:
        parse_principal(rule.principal)
    except ValueError as wrong:
        raise InvalidRequest(str(wrong)) from None


def check_filter(wanted: RuleFilter) -> None:
    """That a filter says what it means. Raises: InvalidRequest."""
    if wanted.resource_type is ResourceType.UNKNOWN or wanted.pattern is PatternType.UNKNOWN:
        raise InvalidRequest("Unknown patternFilter.")
    if wanted.operation is Operation.UNKNOWN or wanted.permission is Permission.UNKNOWN:
        raise InvalidRequest("Unknown entryFilter.")


def is_found(wanted: RuleFilter, rule: Rule) -> bool:
    """Whether the filter names the rule."""
    return _finds_resource(wanted, rule.resource) and _finds_entry(wanted, rule)


def _includes(rule: Rule, operation: Operation) -> bool:
    if rule.operation in (operation, Operation.ALL):
        return True
    return rule.permission is Permission.ALLOW and rule.operation in IMPLIED_BY.get(operation, ())


def _is_covered(resource: Resource, denied: set[Resource]) -> bool:
    """Whether a DENY has the same name, or a prefix of it. (A DENY of one literal name inside a prefixed ALLOW leaves
    other names.)"""
    if resource.pattern is PatternType.LITERAL and resource in denied:
        return True
    name, of_type = resource.name, resource.type
    return any(Resource(of_type, name[:end], PatternType.PREFIXED) in denied for end in range(1, len(name) + 1))


def _finds_resource(wanted: RuleFilter, resource: Resource) -> bool:
    if wanted.resource_type not in (ResourceType.ANY, resource.type):
        return False
    if wanted.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
        return False
    if wanted.name is None:
        return True
    if wanted.pattern is not PatternType.MATCH:
        return wanted.name == resource.name
    if resource.pattern is PatternType.LITERAL:
        return resource.name in (wanted.name, ANYTHING)
    return wanted.name.startswith(resource.name)


def _finds_entry(wanted: RuleFilter, rule: Rule) -> bool:
    return (
        wanted.principal in (None, rule.principal)
        and wanted.host in (None, rule.host)
        and wanted.operation in (Operation.ANY, rule.operation)
        and wanted.permission in (Permission.ANY, rule.permission)
    )
