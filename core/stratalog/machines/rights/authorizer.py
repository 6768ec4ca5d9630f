"""Decides whether a principal may do something, from the rules that the metadata hold. Pure.

The decision is that of Kafka's StandardAuthorizer: super users first, then a DENY that matches, then an ALLOW. Where no
rule's pattern matches the resource at all, `allow.everyone.if.no.acl.found` decides; everything else is denied.

Cost of a decision: one lookup for the name, one for `*`, and one for each length that prefixed patterns of that type
have, however many rules other principals have; a caller that asks often keeps the answers until `revision` grows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
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
    host_of,
    parse_principal,
)

IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Which operations an ALLOW may name to include these two. A DENY includes no other operation than its own."""

_EVERY_USER: Final = str(EVERY_USER)
_ANY_NAME: Final = "hardcode"
"""Kafka's stand-in for "some resource": a right to a resource of this name is one to some resource."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an operation is allowed, and by what: `rule` is None for a super user and for a default."""

    is_allowed: bool
    rule: Rule | None = None
    is_super_user: bool = False


class Authorizer:
    """All rules of a cluster, by resource and by principal.

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
        self._rules: dict[Resource, dict[str, dict[Rule, None]]] = {}
        """Of each resource those of each principal."""
        self._resources: dict[str, dict[Resource, None]] = {}
        """Of each principal."""
        self._prefix_lengths: dict[ResourceType, dict[int, int]] = {}
        """For each type the lengths of its prefixed patterns, with the number of patterns of that length."""
        self.revision = 0
        """Grows with each change."""
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return sum(len(rules) for by_principal in self._rules.values() for rules in by_principal.values())

    def __contains__(self, rule: Rule) -> bool:
        return rule in self._of(rule.resource, rule.principal)

    def rules(self) -> Iterator[Rule]:
        """All of them. Requires: none is added or removed meanwhile."""
        for by_principal in self._rules.values():
            for rules in by_principal.values():
                yield from rules

    def add(self, rule: Rule) -> None:
        resource = rule.resource
        by_principal = self._rules.get(resource)
        if by_principal is None:
            by_principal = self._rules[resource] = {}
            if resource.pattern is PatternType.PREFIXED:
                lengths = self._prefix_lengths.setdefault(resource.type, {})
                lengths[len(resource.name)] = lengths.get(len(resource.name), 0) + 1
        by_principal.setdefault(rule.principal, {})[rule] = None
        self._resources.setdefault(rule.principal, {})[resource] = None
        self.revision += 1

    def remove(self, rule: Rule) -> None:
        """No effect if it is not there."""
        resource, principal = rule.resource, rule.principal
        if rule not in self:
            return
        by_principal = self._rules[resource]
        del by_principal[principal][rule]
        if not by_principal[principal]:
            del by_principal[principal]
            del self._resources[principal][resource]
            if not self._resources[principal]:
                del self._resources[principal]
        if not by_principal:
            del self._rules[resource]
            if resource.pattern is PatternType.PREFIXED:
                lengths = self._prefix_lengths[resource.type]
                lengths[len(resource.name)] -= 1
                if not lengths[len(resource.name)]:
                    del lengths[len(resource.name)]
        self.revision += 1

    def _of(self, resource: Resource, principal: str) -> Collection[Rule]:
        by_principal = self._rules.get(resource)
        return by_principal.get(principal, ()) if by_principal is not None else ()

    # Decisions ------------------------------------------------------------------------------------------------------
    def decide(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        """`host` is the client's address by `host_of`; `operation` is one that a request needs, never ANY or ALL."""
        if principal in self._super_users:
            return Decision(True, is_super_user=True)
        own, every = str(principal), _EVERY_USER
        allowed: Rule | None = None
        has_rules = False
        for by_principal in self._about(resource_type, name):
            has_rules = True
            for rule in (*by_principal.get(own, ()), *by_principal.get(every, ())):
                if _is_at(rule, host) and _includes(rule, operation):
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
        allowed: dict[Resource, None] = {}
        denied: set[Resource] = set()
        for who in {str(principal), _EVERY_USER}:
            for resource in self._resources.get(who, ()):
                if resource.type is not resource_type:
                    continue
                for rule in self._of(resource, who):
                    if not _is_at(rule, host) or rule.operation not in (operation, Operation.ALL):
                        continue
                    if rule.permission is Permission.ALLOW:
                        allowed[resource] = None
                    else:
                        denied.add(resource)
        if Resource(resource_type, ANYTHING) in denied:
            return False
        everything = Resource(resource_type, ANYTHING)
        return everything in allowed or any(not _is_covered(resource, denied) for resource in allowed)

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[Mapping[str, Collection[Rule]]]:
        """The rules whose patterns match a resource, by principal."""
        rules = self._rules
        if (found := rules.get(Resource(resource_type, name))) is not None:
            yield found
        if name != ANYTHING and (found := rules.get(Resource(resource_type, ANYTHING))) is not None:
            yield found
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                found = rules.get(Resource(resource_type, name[:length], PatternType.PREFIXED))
                if found is not None:
                    yield found

    # Rules ----------------------------------------------------------------------------------------------------------
    def find(self, wanted: RuleFilter) -> list[Rule]:
        """The rules that a filter names, in their order. Cost: a check of each resource that has rules."""
        return sorted(
            rule
            for resource, by_principal in self._rules.items()
            if _finds_resource(wanted, resource)
            for rules in by_principal.values()
            for rule in rules
            if _finds_entry(wanted, rule)
        )


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


def _is_at(rule: Rule, host: str) -> bool:
    return rule.host == ANYTHING or host_of(rule.host) == host


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
