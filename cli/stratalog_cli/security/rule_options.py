"""From the options of `stratalog acls`, which are those of `kafka-acls.sh`, to rules and filters. Pure.

`--producer` and `--consumer` stand for what such a client needs, as there: a producer WRITE, DESCRIBE and CREATE of the
topic, a consumer READ and DESCRIBE of the topic and READ of the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from stratalog.model.counting import did_you_mean
from stratalog.model.errors import InvalidRequest
from stratalog.model.rights import (
    ANYTHING,
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
    parse_principal,
)
from stratalog.telemetry.printable import printable

OPERATIONS: Final = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
"""What can be done with a resource, besides ALL. Source: Kafka's `AclEntry.supportedOperations`."""
PATTERNS: Final = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
PATTERNS_OF_FILTERS: Final = PATTERNS | {"any": PatternType.ANY, "match": PatternType.MATCH}


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """As they were given. Empty: not given."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    delegation_tokens: Sequence[str] = ()
    users: Sequence[str] = ()
    is_cluster: bool = False
    pattern: str = "literal"
    allowed: Sequence[str] = ()
    denied: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    denied_hosts: Sequence[str] = ()
    operations: Sequence[str] = ()
    is_producer: bool = False
    is_consumer: bool = False
    is_idempotent: bool = False

    @property
    def resources(self) -> list[tuple[ResourceType, str]]:
        named = {
            ResourceType.TOPIC: self.topics,
            ResourceType.GROUP: self.groups,
            ResourceType.TRANSACTIONAL_ID: self.transactional_ids,
            ResourceType.DELEGATION_TOKEN: self.delegation_tokens,
            ResourceType.USER: self.users,
        }
        found = [(kind, name) for kind, names in named.items() for name in names]
        return [*found, (ResourceType.CLUSTER, CLUSTER_NAME)] if self.is_cluster else found

    @property
    def has_entry(self) -> bool:
        """Whether more than resources is named."""
        return bool(self.allowed or self.denied or self.operations or self.is_producer or self.is_consumer)


def rules_of(options: RuleOptions) -> list[Rule]:
    """Those to add. Raises: InvalidRequest with what is missing or does not go together."""
    if not options.allowed and not options.denied:
        raise InvalidRequest("say for whom: --allow-principal User:NAME, or --deny-principal User:NAME")
    return _rules(options)


def filters_of(options: RuleOptions) -> list[RuleFilter]:
    """What removes rules: exactly those that `rules_of` makes, or without principals all of the resources.

    Raises: InvalidRequest.
    """
    if not options.has_entry:
        if not options.resources:
            raise InvalidRequest("say which rules: name a resource, such as --topic NAME, or --cluster")
        pattern = _pattern(options, PATTERNS_OF_FILTERS)
        return [RuleFilter(kind, name, _of_resource(kind, pattern)) for kind, name in options.resources]
    if not options.allowed and not options.denied:
        raise InvalidRequest("say whose rules: --allow-principal User:NAME, or --deny-principal User:NAME")
    return [
        RuleFilter(
            one.resource.type,
            one.resource.name,
            one.resource.pattern,
            one.principal,
            one.host,
            one.operation,
            one.permission,
        )
        for one in _rules(options)
    ]


def listed_by(options: RuleOptions, principals: Sequence[str]) -> list[RuleFilter]:
    """What finds the rules to list: any of these resources, any of these principals. Raises: InvalidRequest."""
    pattern = _pattern(options, PATTERNS_OF_FILTERS)
    places = [RuleFilter(kind, name, _of_resource(kind, pattern)) for kind, name in options.resources]
    if not places:
        # A name is needed to match one.
        kind = PatternType.ANY if pattern is PatternType.MATCH else pattern
        places = [RuleFilter(pattern=kind)]
    whom: list[str | None] = [_principal(one) for one in principals]
    return [
        RuleFilter(place.resource_type, place.name, place.pattern, principal)
        for place, principal in product(places, whom or [None])
    ]


def _rules(options: RuleOptions) -> list[Rule]:
    pattern = _pattern(options, PATTERNS)
    wanted = _for_clients(options) if options.is_producer or options.is_consumer else _for_operations(options)
    entries = [
        (principal, host, permission)
        for principals, hosts, permission in (
            (options.allowed, options.allowed_hosts, Permission.ALLOW),
            (options.denied, options.denied_hosts, Permission.DENY),
        )
        for principal in principals
        for host in (hosts or (ANYTHING,))
    ]
    for hosts, principals, kind in (
        (options.allowed_hosts, options.allowed, "allow"),
        (options.denied_hosts, options.denied, "deny"),
    ):
        if hosts and not principals:
            raise InvalidRequest(f"--{kind}-host is about principals: give --{kind}-principal, too")
    found = [
        Rule(Resource(kind, name, _of_resource(kind, pattern)), _principal(principal), host, operation, permission)
        for (kind, name), operations in wanted
        for principal, host, permission in entries
        for operation in operations
    ]
    return list(dict.fromkeys(found))


_Wanted = list[tuple[tuple[ResourceType, str], Collection[Operation]]]


def _for_clients(options: RuleOptions) -> _Wanted:
    if options.operations or options.denied:
        raise InvalidRequest("--producer and --consumer name the operations, and allow them: leave out the others")
    if not options.topics:
        raise InvalidRequest("--producer and --consumer need --topic NAME")
    if options.is_consumer != bool(options.groups):
        raise InvalidRequest(
            "--consumer needs --group NAME" if options.is_consumer else "--group is for --consumer: a producer has none"
        )
    if options.is_cluster or options.delegation_tokens or options.users:
        raise InvalidRequest("--producer and --consumer are about topics and groups: add the other rules by themselves")
    found: _Wanted = []
    if options.is_producer:
        operations = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
        found += [((ResourceType.TOPIC, name), operations) for name in options.topics]
        ids = ((ResourceType.TRANSACTIONAL_ID, name) for name in options.transactional_ids)
        found += [(one, (Operation.WRITE, Operation.DESCRIBE)) for one in ids]
        if options.is_idempotent:
            found.append(((ResourceType.CLUSTER, CLUSTER_NAME), (Operation.IDEMPOTENT_WRITE,)))
    elif options.transactional_ids:
        raise InvalidRequest("--transactional-id is for --producer: a consumer has none")
    if options.is_consumer:
        found += [((ResourceType.TOPIC, name), (Operation.READ, Operation.DESCRIBE)) for name in options.topics]
        found += [((ResourceType.GROUP, name), (Operation.READ,)) for name in options.groups]
    return found


def _for_operations(options: RuleOptions) -> _Wanted:
    if options.is_idempotent:
        raise InvalidRequest("--idempotent is for --producer")
    if not options.resources:
        raise InvalidRequest("say about what: name a resource, such as --topic NAME, --group NAME, or --cluster")
    operations = [operation_of(one) for one in options.operations] or [Operation.ALL]
    for kind, _ in options.resources:
        wrong = [one for one in operations if one is not Operation.ALL and one not in OPERATIONS[kind]]
        if wrong:
            known = ", ".join(sorted(one.name for one in OPERATIONS[kind]))
            raise InvalidRequest(f"--operation {wrong[0].name}: of a {kind.name} there are {known}, and ALL")
    return [(one, operations) for one in options.resources]


def operation_of(text: str) -> Operation:
    """In Kafka's spellings: `Read`, `DescribeConfigs`, `DESCRIBE_CONFIGS`. Raises: InvalidRequest."""
    known = {one.name.replace("_", ""): one for one in Operation if one not in (Operation.UNKNOWN, Operation.ANY)}
    found = known.get(text.upper().replace("_", "").replace("-", ""))
    if found is None:
        hint = did_you_mean(text.upper(), (one.name for one in known.values()))
        raise InvalidRequest(f"--operation {text[:40]!r}{hint}: expected one of {_names(known.values())}")
    return found


def _names(operations: Iterable[Operation]) -> str:
    return ", ".join(one.name for one in operations)


def _principal(text: str) -> str:
    try:
        return str(parse_principal(text))
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _pattern(options: RuleOptions, known: dict[str, PatternType]) -> PatternType:
    found = known.get(options.pattern.lower())
    if found is None:
        raise InvalidRequest(f"--resource-pattern-type {options.pattern[:40]!r}: expected {', '.join(known)}")
    return found


def _of_resource(kind: ResourceType, pattern: PatternType) -> PatternType:
    """The cluster has one name, which is never a prefix."""
    return PatternType.LITERAL if kind is ResourceType.CLUSTER and pattern is PatternType.PREFIXED else pattern


def rule_words(one: Rule) -> str:
    """On one line; names of others do not steer a terminal."""
    name = printable(one.resource.name)
    of = f"{one.resource.type.name} {name}{'*' if one.resource.pattern is PatternType.PREFIXED else ''}"
    where = "" if one.host == "*" else f" from {printable(one.host)}"
    return f"{one.permission.name} {printable(one.principal)} {one.operation.name} of {of}{where}"
