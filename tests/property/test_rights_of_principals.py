"""Decisions about rights are those of a plain model that looks at every rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.rights.authorizer import Authorizer
from stratalog.model.rights import (
    Operation,
    PatternType,
    Permission,
    Principal,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
)

NAMES = st.one_of(st.sampled_from(["*", "a", "ab", "abc", "b"]), st.text("ab*", min_size=1, max_size=4))
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
OPERATIONS = st.sampled_from([one for one in Operation if one > Operation.ALL])
HOSTS = st.sampled_from(["1.1.1.1", "2.2.2.2"])
PRINCIPALS = st.sampled_from([Principal("User", "a"), Principal("User", "b"), Principal("Other", "a")])
RULES = st.builds(
    Rule,
    st.builds(Resource, TYPES, NAMES, st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED])),
    st.one_of(PRINCIPALS.map(str), st.just("User:*")),
    st.one_of(HOSTS, st.just("*")),
    st.one_of(OPERATIONS, st.just(Operation.ALL)),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def matches(resource: Resource, of_type: ResourceType, name: str) -> bool:
    if resource.type is not of_type:
        return False
    if resource.pattern is PatternType.PREFIXED:
        return name.startswith(resource.name)
    return resource.name in (name, "*")


def implies(rule: Rule, operation: Operation) -> bool:
    if rule.operation is Operation.ALL or rule.operation is operation:
        return True
    if rule.permission is Permission.DENY:
        return False
    match operation:
        case Operation.DESCRIBE:
            return rule.operation.name in ("READ", "WRITE", "DELETE", "ALTER")
        case Operation.DESCRIBE_CONFIGS:
            return rule.operation is Operation.ALTER_CONFIGS
    return False


def expected(
    rules: list[Rule], who: Principal, host: str, operation: Operation, of_type: ResourceType, name: str, is_open: bool
) -> bool:
    about = [rule for rule in rules if matches(rule.resource, of_type, name)]
    if not about:
        return is_open
    applying = [
        rule
        for rule in about
        if (rule.principal == f"{who.type}:{who.name}" or rule.principal == "User:*")
        and rule.host in ("*", host)
        and implies(rule, operation)
    ]
    return bool(applying) and all(rule.permission is Permission.ALLOW for rule in applying)


@given(st.lists(RULES, max_size=12), PRINCIPALS, HOSTS, OPERATIONS, TYPES, NAMES, st.booleans())
def test_a_decision_is_that_of_all_rules_looked_at_one_by_one(
    rules: list[Rule], who: Principal, host: str, operation: Operation, of_type: ResourceType, name: str, is_open: bool
) -> None:
    decision = Authorizer(rules, is_open_without_rules=is_open).decide(who, host, operation, of_type, name)
    assert decision.is_allowed == expected(rules, who, host, operation, of_type, name, is_open)
    if decision.rule is not None:
        assert decision.rule in rules


@given(st.lists(RULES, max_size=8), st.lists(RULES, max_size=8), PRINCIPALS, HOSTS, OPERATIONS, TYPES, NAMES)
def test_rules_that_came_and_went_leave_nothing_behind(
    kept: list[Rule],
    gone: list[Rule],
    who: Principal,
    host: str,
    operation: Operation,
    of_type: ResourceType,
    name: str,
) -> None:
    authorizer = Authorizer([*gone, *kept])
    for rule in gone:
        if rule not in kept:
            authorizer.remove(rule)
    fresh = Authorizer(kept)
    assert authorizer.find(RuleFilter()) == fresh.find(RuleFilter()) == sorted(set(kept))
    asked = (who, host, operation, of_type, name)
    assert authorizer.decide(*asked).is_allowed == fresh.decide(*asked).is_allowed
    assert authorizer.decide_for_any(*asked[:4]) == fresh.decide_for_any(*asked[:4])


@given(st.lists(RULES, max_size=12), PRINCIPALS, HOSTS, OPERATIONS, TYPES)
def test_a_right_to_any_resource_is_one_to_some_name_that_the_rules_suggest(
    rules: list[Rule], who: Principal, host: str, operation: Operation, of_type: ResourceType
) -> None:
    """Where nothing is denied, it is just the question whether an ALLOW of that operation or of ALL exists."""
    allowing = [rule for rule in rules if rule.permission is Permission.ALLOW]
    can = Authorizer(allowing).decide_for_any(who, host, operation, of_type)
    names = [rule.resource.name for rule in allowing] + ["hardcode"]
    assert can <= any(expected(allowing, who, host, operation, of_type, name, False) for name in names)
    direct = [
        rule
        for rule in allowing
        if rule.resource.type is of_type
        and rule.principal in (str(who), "User:*")
        and rule.host in ("*", host)
        and rule.operation in (operation, Operation.ALL)
    ]
    assert can >= bool(direct)


@given(st.lists(RULES, max_size=12), TYPES, NAMES)
def test_a_match_finds_what_a_decision_looks_at(rules: list[Rule], of_type: ResourceType, name: str) -> None:
    found = Authorizer(rules).find(RuleFilter(of_type, name, PatternType.MATCH))
    assert found == sorted({rule for rule in rules if matches(rule.resource, of_type, name)})
