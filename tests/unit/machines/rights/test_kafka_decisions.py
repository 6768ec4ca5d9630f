"""The answers of Kafka's own authorizer to made-up rules and questions, compared with ours.

`kafka_decisions.txt` has what StandardAuthorizer of Kafka 4.3.1 answered, a case per line, fields between tabs: rules,
allow.everyone.if.no.acl.found, whether User:a is a super user, principal, host, operation, resource type, name; seven
fields of a filter, where \\0 stands for none; then Kafka's answers: allowed, allowed for any resource of the type, and
the rules found. No resource has a name that begins with a star: Kafka applies no rule for all names to it, and we do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.machines.rights.authorizer import Authorizer
from stratalog.model.rights import (
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
    RuleFilter,
    parse_principal,
)

CASES = (Path(__file__).parent / "kafka_decisions.txt").read_text("utf-8").splitlines()


def rules_of(text: str) -> list[Rule]:
    found = []
    for entry in filter(None, text.split(";")):
        of_type, name, pattern, principal, host, operation, permission = entry.split("|")
        resource = Resource(ResourceType(int(of_type)), name, PatternType(int(pattern)))
        found.append(Rule(resource, principal, host, Operation(int(operation)), Permission(int(permission))))
    return found


def filter_of(fields: list[str]) -> RuleFilter:
    of_type, name, pattern, who, host, operation, permission = fields
    name_, who_, host_ = (None if text == "\\0" else text for text in (name, who, host))
    return RuleFilter(
        ResourceType(int(of_type)),
        name_,
        PatternType(int(pattern)),
        who_,
        host_,
        Operation(int(operation)),
        Permission(int(permission)),
    )


@pytest.mark.parametrize("first", range(0, len(CASES), 60))
def test_every_decision_is_that_of_kafka(first: int) -> None:
    for line in CASES[first : first + 60]:
        rules, is_open, is_super, who, host, operation, of_type, name, *rest = line.split("\t")
        authorizer = Authorizer(
            rules_of(rules),
            super_users=frozenset([parse_principal("User:a")] if is_super == "true" else []),
            is_open_without_rules=is_open == "true",
        )
        asked = (parse_principal(who), host, Operation(int(operation)), ResourceType(int(of_type)))
        is_allowed, is_allowed_for_any, found = rest[7:]
        assert authorizer.decide(*asked, name).is_allowed == (is_allowed == "true"), line
        assert authorizer.decide_for_any(*asked) == (is_allowed_for_any == "true"), line
        assert set(authorizer.find(filter_of(rest[:7]))) == set(rules_of(found)), line


def test_the_cases_have_each_answer() -> None:
    assert {tuple(line.split("\t")[15:17]) for line in CASES} == {
        (one, other) for one in ("true", "false") for other in ("true", "false")
    }


def test_a_rule_for_all_names_is_about_a_name_that_begins_with_a_star() -> None:
    """Kafka 4.3 overlooks the DENY for such a group."""
    rules = rules_of("3|*|3|User:a|*|3|2;3|*a|3|User:a|*|3|3")
    assert (
        not Authorizer(rules)
        .decide(parse_principal("User:a"), "h", Operation.READ, ResourceType.GROUP, "*a")
        .is_allowed
    )
