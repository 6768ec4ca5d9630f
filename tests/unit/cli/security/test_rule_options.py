"""Options of `stratalog acls` become the rules that `kafka-acls.sh` makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.model.errors import InvalidRequest
from stratalog.model.rights import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType, RuleFilter
from stratalog_cli.security.rule_options import RuleOptions, filters_of, listed_by, operation_of, rules_of

ALICE = ("User:alice",)


def made(**options: Any) -> list[tuple[str, str, str]]:
    rules = rules_of(RuleOptions(allowed=ALICE, **options))
    return [(one.resource.type.name, one.resource.name, one.operation.name) for one in rules]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topics": ("t",)}, [("TOPIC", "t", "ALL")]),
        ({"is_cluster": True, "operations": ("alter",)}, [("CLUSTER", CLUSTER_NAME, "ALTER")]),
        (
            {"topics": ("t",), "is_producer": True},
            [("TOPIC", "t", "WRITE"), ("TOPIC", "t", "DESCRIBE"), ("TOPIC", "t", "CREATE")],
        ),
        (
            {"topics": ("t",), "groups": ("g",), "is_consumer": True},
            [("TOPIC", "t", "READ"), ("TOPIC", "t", "DESCRIBE"), ("GROUP", "g", "READ")],
        ),
        (
            {"topics": ("t",), "transactional_ids": ("x",), "is_producer": True, "is_idempotent": True},
            [
                ("TOPIC", "t", "WRITE"),
                ("TOPIC", "t", "DESCRIBE"),
                ("TOPIC", "t", "CREATE"),
                ("TRANSACTIONAL_ID", "x", "WRITE"),
                ("TRANSACTIONAL_ID", "x", "DESCRIBE"),
                ("CLUSTER", CLUSTER_NAME, "IDEMPOTENT_WRITE"),
            ],
        ),
        (
            {"topics": ("t",), "groups": ("g",), "is_producer": True, "is_consumer": True},
            [
                ("TOPIC", "t", "WRITE"),
                ("TOPIC", "t", "DESCRIBE"),
                ("TOPIC", "t", "CREATE"),
                ("TOPIC", "t", "READ"),
                ("GROUP", "g", "READ"),
            ],
        ),
        (
            {"topics": ("a", "b"), "operations": ("Read", "DescribeConfigs")},
            [
                ("TOPIC", "a", "READ"),
                ("TOPIC", "a", "DESCRIBE_CONFIGS"),
                ("TOPIC", "b", "READ"),
                ("TOPIC", "b", "DESCRIBE_CONFIGS"),
            ],
        ),
    ],
)
def test_rules_are_those_of_kafkas_tool(options: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert made(**options) == expected


def test_hosts_belong_to_their_principals() -> None:
    options = RuleOptions(
        topics=("t",),
        allowed=ALICE,
        denied=("User:bob", "User:carol"),
        allowed_hosts=("10.0.0.1", "10.0.0.2"),
        operations=("read",),
    )
    assert [(one.principal, one.host, one.permission) for one in rules_of(options)] == [
        ("User:alice", "10.0.0.1", Permission.ALLOW),
        ("User:alice", "10.0.0.2", Permission.ALLOW),
        ("User:bob", "*", Permission.DENY),
        ("User:carol", "*", Permission.DENY),
    ]


def test_a_prefix_is_never_one_of_the_cluster() -> None:
    rules = rules_of(
        RuleOptions(topics=("t",), is_cluster=True, allowed=ALICE, pattern="prefixed", operations=("create",))
    )
    assert [one.resource.pattern for one in rules] == [PatternType.PREFIXED, PatternType.LITERAL]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "say for whom"),
        ({"allowed": ALICE}, "say about what"),
        ({"allowed": ("alice",), "topics": ("t",)}, "as TYPE:NAME"),
        ({"allowed": ALICE, "topics": ("t",), "operations": ("reed",)}, "did you mean|expected one of"),
        ({"allowed": ALICE, "groups": ("g",), "operations": ("write",)}, "of a GROUP there are"),
        ({"allowed": ALICE, "is_cluster": True, "operations": ("read",)}, "of a CLUSTER there are"),
        ({"allowed": ALICE, "topics": ("t",), "pattern": "match"}, "expected literal, prefixed"),
        ({"allowed": ALICE, "is_producer": True}, "need --topic"),
        ({"allowed": ALICE, "is_consumer": True, "topics": ("t",)}, "needs --group"),
        ({"allowed": ALICE, "is_producer": True, "topics": ("t",), "groups": ("g",)}, "--group is for --consumer"),
        ({"allowed": ALICE, "is_producer": True, "topics": ("t",), "operations": ("read",)}, "leave out the others"),
        ({"denied": ALICE, "is_producer": True, "topics": ("t",)}, "and allow them"),
        ({"allowed": ALICE, "topics": ("t",), "is_idempotent": True}, "--idempotent is for --producer"),
        ({"allowed": ALICE, "topics": ("t",), "denied_hosts": ("10.0.0.1",)}, "give --deny-principal"),
    ],
)
def test_options_that_make_no_rule_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        rules_of(RuleOptions(**options))


@pytest.mark.parametrize("text", ["DescribeConfigs", "DESCRIBE_CONFIGS", "describe-configs", "describeconfigs"])
def test_operations_are_read_in_each_spelling_of_kafka(text: str) -> None:
    assert operation_of(text) is Operation.DESCRIBE_CONFIGS


def test_a_removal_with_principals_finds_exactly_the_rules_that_were_added() -> None:
    options = RuleOptions(topics=("t",), groups=("g",), allowed=ALICE, is_consumer=True)
    named = [(one.resource.type, one.resource.name, one.operation) for one in rules_of(options)]
    filters = filters_of(options)
    assert [(one.resource_type, one.name, one.operation) for one in filters] == named
    assert all(one.principal == "User:alice" and one.permission is Permission.ALLOW for one in filters)


def test_a_removal_without_principals_finds_all_rules_of_the_resources() -> None:
    assert filters_of(RuleOptions(topics=("t",))) == [RuleFilter(ResourceType.TOPIC, "t", PatternType.LITERAL)]


def test_a_removal_that_names_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="say which rules"):
        filters_of(RuleOptions())
    with pytest.raises(InvalidRequest, match="say whose rules"):
        filters_of(RuleOptions(topics=("t",), operations=("read",)))


def test_a_list_without_resources_finds_all_rules() -> None:
    assert listed_by(RuleOptions(pattern="match"), ()) == [RuleFilter()]
    assert listed_by(RuleOptions(pattern="match"), ALICE) == [RuleFilter(principal="User:alice")]
    assert listed_by(RuleOptions(topics=("t",), pattern="match"), ()) == [
        RuleFilter(ResourceType.TOPIC, "t", PatternType.MATCH)
    ]
