"""What a principal may do: Kafka's rules, case by case."""

from __future__ import annotations

import pytest

from stratalog.machines.rights.authorizer import Authorizer, check_filter, check_rule
from stratalog.model.errors import InvalidRequest
from stratalog.model.rights import (
    CLUSTER_NAME,
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

ALICE = Principal("User", "alice")
BOB = Principal("User", "bob")
HERE = "10.0.0.1"
PREFIXED = PatternType.PREFIXED
TOPIC = ResourceType.TOPIC
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def allow(
    name: str,
    operation: Operation = READ,
    *,
    who: str = "User:alice",
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    of_type: ResourceType = TOPIC,
) -> Rule:
    return Rule(Resource(of_type, name, pattern), who, host, operation, permission)


def deny(name: str, operation: Operation = READ, **more: object) -> Rule:
    return allow(name, operation, permission=Permission.DENY, **more)  # type: ignore[arg-type]


def may(
    rules: list[Rule],
    operation: Operation,
    name: str,
    *,
    who: Principal = ALICE,
    host: str = HERE,
    of: ResourceType = TOPIC,
) -> bool:
    return Authorizer(rules).decide(who, host, operation, of, name).is_allowed


def may_any(rules: list[Rule], operation: Operation, *, who: Principal = ALICE) -> bool:
    return Authorizer(rules).decide_for_any(who, HERE, operation, TOPIC)


def test_what_no_rule_allows_is_denied() -> None:
    assert not may([], READ, "orders")
    assert not may([allow("orders")], READ, "payments")
    assert not may([allow("orders")], READ, "orders", who=BOB)
    assert not may([allow("orders")], READ, "orders", of=ResourceType.GROUP)


def test_a_literal_rule_is_about_its_own_name() -> None:
    assert may([allow("orders")], READ, "orders")
    assert not may([allow("orders")], READ, "orders-2")
    assert not may([allow("orders")], READ, "order")


def test_the_literal_name_of_a_star_is_every_name() -> None:
    assert may([allow("*")], READ, "orders")
    assert not may([allow("*", pattern=PREFIXED)], READ, "orders")
    assert may([allow("*", pattern=PREFIXED)], READ, "*x")


def test_a_prefixed_rule_is_about_each_name_that_begins_with_it() -> None:
    rules = [allow("order", pattern=PREFIXED)]
    assert may(rules, READ, "order") and may(rules, READ, "orders.eu")
    assert not may(rules, READ, "orde")
    assert not may([allow("orders.eu", pattern=PREFIXED)], READ, "orders.e")


def test_a_matching_deny_decides_before_every_allow() -> None:
    assert not may([allow("orders"), deny("*")], READ, "orders")
    assert not may([allow("*"), deny("ord", pattern=PREFIXED)], READ, "orders")
    assert not may([deny("orders"), allow("orders", Operation.ALL)], READ, "orders")
    assert not may([allow("orders"), deny("orders", who="User:*")], READ, "orders")
    assert may([allow("orders"), deny("orders", who="User:bob")], READ, "orders")
    assert may([allow("orders"), deny("orders", WRITE)], READ, "orders")


def test_a_rule_names_one_principal_or_all() -> None:
    everyone = [allow("orders", who="User:*")]
    assert may(everyone, READ, "orders") and may(everyone, READ, "orders", who=Principal("User", "ANONYMOUS"))
    assert may(everyone, READ, "orders", who=Principal("Group", "devs")), "of whatever type, as in Kafka"
    assert not may([allow("orders", who="Group:alice")], READ, "orders")


def test_a_rule_names_one_host_or_all() -> None:
    assert may([allow("orders", host=HERE)], READ, "orders")
    assert not may([allow("orders", host="10.0.0.2")], READ, "orders")
    assert not may([allow("orders"), deny("orders", host=HERE)], READ, "orders")
    assert may([allow("orders"), deny("orders", host="10.0.0.2")], READ, "orders")


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER, DESCRIBE])
def test_who_may_use_a_resource_may_describe_it(operation: Operation) -> None:
    assert may([allow("orders", operation)], DESCRIBE, "orders")
    assert not may([allow("orders", operation)], Operation.DESCRIBE_CONFIGS, "orders")


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS])
def test_other_rights_do_not_include_describing(operation: Operation) -> None:
    assert not may([allow("orders", operation)], DESCRIBE, "orders")


def test_the_first_rule_that_allows_something_decides_about_any_resource_however_many_others_there_are() -> None:
    rules = [
        Rule(Resource(TOPIC, f"topic-{number}"), "User:*", "*", operation, Permission.ALLOW)
        for number in range(1_000)
        for operation in (READ, Operation.DESCRIBE)
    ]
    authorizer = Authorizer(rules)
    before = authorizer.effort
    assert not authorizer.decide_for_any(ALICE, HERE, WRITE, TOPIC)
    authorizer.add(Rule(Resource(TOPIC, "one"), "User:*", HERE, WRITE, Permission.ALLOW))
    assert authorizer.decide_for_any(ALICE, HERE, WRITE, TOPIC)
    assert authorizer.decide_for_any(ALICE, HERE, READ, TOPIC)
    assert authorizer.effort - before < 50


def test_who_may_alter_settings_may_describe_them() -> None:
    assert may([allow("orders", Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "orders")
    assert not may([allow("orders", Operation.DESCRIBE_CONFIGS)], Operation.ALTER_CONFIGS, "orders")


def test_a_deny_includes_no_other_operation() -> None:
    rules = [allow("orders", DESCRIBE), deny("orders", READ)]
    assert may(rules, DESCRIBE, "orders") and not may(rules, READ, "orders")


def test_all_includes_each_operation_also_in_a_deny() -> None:
    for operation in Operation:
        if operation > Operation.ALL:
            assert may([allow("orders", Operation.ALL)], operation, "orders")
            assert not may([allow("*", operation), deny("orders", Operation.ALL)], operation, "orders")


def test_a_super_user_may_do_what_is_denied() -> None:
    authorizer = Authorizer([deny("orders", Operation.ALL)], super_users=frozenset({ALICE}))
    decision = authorizer.decide(ALICE, HERE, WRITE, TOPIC, "orders")
    assert decision.is_allowed and decision.is_super_user
    assert authorizer.decide_for_any(ALICE, HERE, WRITE, TOPIC)


def test_without_a_rule_about_a_resource_the_default_decides() -> None:
    authorizer = Authorizer([allow("orders", who="User:bob")], is_open_without_rules=True)
    assert authorizer.decide(ALICE, HERE, READ, TOPIC, "payments").is_allowed
    assert not authorizer.decide(ALICE, HERE, READ, TOPIC, "orders").is_allowed
    assert authorizer.decide(ALICE, HERE, READ, ResourceType.GROUP, "orders").is_allowed


def test_a_decision_names_the_rule_that_made_it() -> None:
    rules = [allow("orders"), deny("o", WRITE, pattern=PREFIXED)]
    authorizer = Authorizer(rules)
    assert authorizer.decide(ALICE, HERE, READ, TOPIC, "orders").rule == rules[0]
    assert authorizer.decide(ALICE, HERE, WRITE, TOPIC, "orders").rule == rules[1]
    assert authorizer.decide(BOB, HERE, WRITE, TOPIC, "orders").rule is None


def test_a_right_to_any_resource_is_a_right_to_one_that_no_deny_covers() -> None:
    assert not may_any([], WRITE)
    assert may_any([allow("orders", WRITE)], WRITE)
    assert not may_any([allow("orders", WRITE), deny("orders", WRITE)], WRITE)
    assert not may_any([allow("orders", WRITE), deny("ord", WRITE, pattern=PREFIXED)], WRITE)
    assert may_any([allow("orders", WRITE), deny("orders.eu", WRITE, pattern=PREFIXED)], WRITE)
    assert may_any([allow("ord", WRITE, pattern=PREFIXED), deny("ord", WRITE)], WRITE)
    assert not may_any([allow("ord", WRITE, pattern=PREFIXED), deny("o", WRITE, pattern=PREFIXED)], WRITE)
    assert not may_any([allow("orders", WRITE), deny("*", WRITE)], WRITE)
    assert may_any([allow("*", WRITE), deny("orders", WRITE)], WRITE)


def test_a_right_to_any_resource_is_not_implied_by_another_one() -> None:
    assert not may_any([allow("orders", READ)], DESCRIBE)
    assert may_any([allow("orders", Operation.ALL)], DESCRIBE)


def test_a_rule_is_held_once_and_is_gone_once_it_is_removed() -> None:
    authorizer = Authorizer([allow("ord", pattern=PREFIXED)])
    authorizer.add(allow("ord", pattern=PREFIXED))
    authorizer.add(allow("ord", WRITE, pattern=PREFIXED))
    assert len(authorizer) == 2
    authorizer.remove(allow("ord", pattern=PREFIXED))
    authorizer.remove(allow("ord", pattern=PREFIXED))
    assert len(authorizer) == 1
    assert not authorizer.decide(ALICE, HERE, READ, TOPIC, "orders").is_allowed
    assert authorizer.decide(ALICE, HERE, WRITE, TOPIC, "orders").is_allowed


# Filters ------------------------------------------------------------------------------------------------------------
RULES = [
    allow("orders"),
    allow("orders", WRITE),
    allow("*", DESCRIBE),
    allow("ord", pattern=PREFIXED),
    allow("orders", of_type=ResourceType.GROUP),
    deny("payments", who="User:bob", host=HERE),
]


def found(**wanted: object) -> list[Rule]:
    return Authorizer(RULES).find(RuleFilter(**wanted))  # type: ignore[arg-type]


def test_a_filter_without_a_field_finds_all() -> None:
    assert set(found()) == set(RULES)


def test_a_name_finds_its_own_patterns_whatever_their_type() -> None:
    assert set(found(name="orders")) == {RULES[0], RULES[1], RULES[4]}
    assert found(name="ord") == [RULES[3]]
    assert found(name="ord", pattern=PatternType.LITERAL) == []


def test_a_match_finds_the_patterns_that_apply_to_a_name() -> None:
    assert set(found(resource_type=TOPIC, name="orders", pattern=PatternType.MATCH)) == set(RULES[:4])
    assert set(found(resource_type=TOPIC, name="ordinary", pattern=PatternType.MATCH)) == {RULES[2], RULES[3]}
    assert set(found(resource_type=TOPIC, pattern=PatternType.MATCH)) == {*RULES[:4], RULES[5]}


def test_a_star_in_a_filter_is_the_pattern_of_that_name() -> None:
    assert found(name="*") == [RULES[2]]
    assert found(name="*", pattern=PatternType.MATCH) == [RULES[2]]


def test_the_fields_of_an_entry_are_compared_as_they_are() -> None:
    assert found(principal="User:bob") == [RULES[5]]
    assert found(host=HERE) == [RULES[5]]
    assert found(permission=Permission.DENY) == [RULES[5]]
    assert found(operation=WRITE) == [RULES[1]]
    assert found(principal="User:*") == []


# What may be kept ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (allow("t", of_type=ResourceType.ANY), "resourceType"),
        (allow("t", of_type=ResourceType.UNKNOWN), "resourceType"),
        (allow("t", pattern=PatternType.MATCH), "patternType"),
        (allow("t", pattern=PatternType.ANY), "patternType"),
        (allow("t", Operation.ANY), "operation"),
        (allow("t", Operation.UNKNOWN), "operation"),
        (allow("t", permission=Permission.ANY), "permissionType"),
        (allow(""), "empty resource name"),
        (allow("other", of_type=ResourceType.CLUSTER), CLUSTER_NAME),
        (allow("t", who="alice"), "TYPE:NAME"),
    ],
)
def test_a_rule_that_could_match_nothing_is_refused(rule: Rule, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        check_rule(rule)


def test_a_rule_of_each_type_is_taken() -> None:
    for of_type in ResourceType:
        if of_type > ResourceType.ANY:
            check_rule(allow(CLUSTER_NAME, of_type=of_type))


@pytest.mark.parametrize(
    "wanted",
    [
        RuleFilter(resource_type=ResourceType.UNKNOWN),
        RuleFilter(pattern=PatternType.UNKNOWN),
        RuleFilter(operation=Operation.UNKNOWN),
        RuleFilter(permission=Permission.UNKNOWN),
    ],
)
def test_a_filter_with_an_unknown_field_is_refused(wanted: RuleFilter) -> None:
    with pytest.raises(InvalidRequest, match="Unknown"):
        check_filter(wanted)


def test_a_principal_is_a_type_and_a_name() -> None:
    assert parse_principal("User:CN=a:b,O=c") == Principal("User", "CN=a:b,O=c")
    assert str(ALICE) == "User:alice"
    for wrong in ("alice", ":alice", ""):
        with pytest.raises(ValueError, match="TYPE:NAME"):
            parse_principal(wrong)
