"""Decides whether a principal may do something, from the rules that the metadata hold. Pure.

The decision is that of Kafka's StandardAuthorizer: super users first, then a DENY that matches, then an ALLOW. Where no
rule's pattern matches the resource at all, `allow.everyone.if.no.acl.found` decides; everything else is denied.

Cost of a decision: one lookup for the name, one for `*`, and one for each length that prefixed patterns of that type
have, however many rules other principals have; a caller that asks often keeps the answers until `revision` grows. A
decision about any resource begins at the rules that allow the operation and ends at the first that no DENY covers.
`effort` adds up lookups and compared rules, so that callers divide their work by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

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
_ByPrincipal: TypeAlias = dict[str, dict[Rule, None]]
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
        self._is_open = is_open_without_rules
        self._rules: dict[Resource, _ByPrincipal] = {}
        """Of each resource those of each principal."""
        self._prefixed: dict[ResourceType, dict[str, _ByPrincipal]] = {}
        """The same of prefixed patterns, by prefix."""
        self._allowed: dict[tuple[str, ResourceType, Operation, str], dict[Resource, int]] = {}
        """By principal, type, operation and host: the resources with an ALLOW of that, and how many rules say so."""
        self._resources: dict[str, dict[Resource, None]] = {}
        """Of each principal."""
        self._prefix_lengths: dict[ResourceType, dict[int, int]] = {}
        """For each type the lengths of its prefixed patterns, with the number of patterns of that length."""
        self.revision = 0
        """Grows with each change."""
        self._topics_seen: dict[str, int] = {}
        """Of each principal: the revision of the last change that may show it other topics."""
        self.effort = 0
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
                self._prefixed.setdefault(resource.type, {})[resource.name] = by_principal
        if rule not in (own := by_principal.setdefault(rule.principal, {})) and rule.permission is Permission.ALLOW:
            allowed = self._allowed.setdefault(_allows(rule), {})
            allowed[resource] = allowed.get(resource, 0) + 1
        own[rule] = None
        self._resources.setdefault(rule.principal, {})[resource] = None
        self._changed(rule)

    def remove(self, rule: Rule) -> None:
        """No effect if it is not there."""
        resource, principal = rule.resource, rule.principal
        if rule not in self:
            return
        by_principal = self._rules[resource]
        del by_principal[principal][rule]
        if rule.permission is Permission.ALLOW:
            allowed = self._allowed[_allows(rule)]
            allowed[resource] -= 1
            if not allowed[resource]:
                del allowed[resource]
            if not allowed:
                del self._allowed[_allows(rule)]
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
                del self._prefixed[resource.type][resource.name]
        self._changed(rule)

    def _changed(self, rule: Rule) -> None:
        self.revision += 1
        if rule.resource.type is ResourceType.TOPIC and (self._is_open or _includes(rule, Operation.DESCRIBE)):
            # Where everything is open without rules, the first rule about a topic concerns all.
            self._topics_seen[_EVERY_USER if self._is_open else rule.principal] = self.revision

    def topics_seen(self, principal: Principal) -> tuple[int, int]:
        """Changes when a rule was added or removed that may show the principal other topics."""
        return self._topics_seen.get(str(principal), 0), self._topics_seen.get(_EVERY_USER, 0)

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
                self.effort += 1
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
        everything = Resource(resource_type, ANYTHING)
        callers = tuple({str(principal), _EVERY_USER})
        if self._is_denied(callers, host, operation, everything):
            return False
        allowed = [
            resources
            for who in callers
            for at in {host, ANYTHING}
            for of in (operation, Operation.ALL)
            if (resources := self._allowed.get((who, resource_type, of, at)))
        ]
        if any(everything in resources for resources in allowed):
            return True
        return any(
            not self._is_covered(callers, host, operation, resource) for resources in allowed for resource in resources
        )

    def _is_covered(self, callers: Iterable[str], host: str, operation: Operation, resource: Resource) -> bool:
        """Whether a DENY has the same name, or a prefix of it. (A DENY of one literal name inside a prefixed ALLOW
        leaves other names.)"""
        if resource.pattern is PatternType.LITERAL and self._is_denied(callers, host, operation, resource):
            return True
        prefixed, name = self._prefixed.get(resource.type, {}), resource.name
        lengths = self._prefix_lengths.get(resource.type, ())
        self.effort += len(lengths)
        return any(
            _denies(prefixed.get(name[:length], {}), callers, host, operation)
            for length in lengths
            if length <= len(name)
        )

    def _is_denied(self, callers: Iterable[str], host: str, operation: Operation, resource: Resource) -> bool:
        self.effort += 1
        return _denies(self._rules.get(resource, {}), callers, host, operation)

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[Mapping[str, Collection[Rule]]]:
        """The rules whose patterns match a resource, by principal."""
        rules = self._rules
        if (found := rules.get(Resource(resource_type, name))) is not None:
            yield found
        if name != ANYTHING and (found := rules.get(Resource(resource_type, ANYTHING))) is not None:
            yield found
        prefixed, lengths = self._prefixed.get(resource_type), self._prefix_lengths.get(resource_type)
        if prefixed and lengths:
            self.effort += len(lengths)
            for length in lengths:
                if length <= len(name) and (found := prefixed.get(name[:length])) is not None:
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


def _allows(rule: Rule) -> tuple[str, ResourceType, Operation, str]:
    return rule.principal, rule.resource.type, rule.operation, host_of(rule.host)


def _denies(by_principal: Mapping[str, Collection[Rule]], callers: Iterable[str], host: str, of: Operation) -> bool:
    """Whether one of the rules denies the operation itself, or all."""
    return any(
        rule.permission is Permission.DENY and rule.operation in (of, Operation.ALL) and _is_at(rule, host)
        for who in callers
        for rule in by_principal.get(who, ())
    )


def _includes(rule: Rule, operation: Operation) -> bool:
    if rule.operation in (operation, Operation.ALL):
        return True
    return rule.permission is Permission.ALLOW and rule.operation in IMPLIED_BY.get(operation, ())


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
