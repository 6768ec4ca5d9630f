"""Names of clients from their certificates, by the examples of Kafka's documentation and others."""

from __future__ import annotations

import pytest

from stratalog.machines.rights.principal_names import name_of, parse_name_rules

DN = "CN=kafka-1.example.com,OU=Servers,O=Example,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("", DN, DN),
        ("DEFAULT", DN, DN),
        ("RULE:^CN=(.*?),.*$/$1/", DN, "kafka-1.example.com"),
        ("RULE:^CN=(.*?),.*$/$1/U", DN, "KAFKA-1.EXAMPLE.COM"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L, DEFAULT", DN, "kafka-1.example.com@servers"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),.*$/x-$1/,DEFAULT", DN, "x-kafka-1.example.com"),
        ("RULE:^CN=(.*?)$/$1/L,DEFAULT", "CN=Duke", "duke"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", "OU=x,cn=A.b", "a.b"),
        ("RULE:^CN=(\\w+),O=a\\/b$/$1\\/$1/", "CN=x,O=a/b", "x/x"),
        ("RULE:CN=(.*)/$1$2$12/", "CN=x", "x$2x2"),
        ("RULE:.*//", DN, ""),
        ("RULE:(.*)/x$1/", "CN=x", "xCN=xx"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(rules: str, name: str, expected: str) -> None:
    assert name_of(parse_name_rules(rules), name) == expected


def test_a_name_that_no_rule_matches_is_no_name() -> None:
    assert name_of(parse_name_rules("RULE:^CN=(.*?)$/$1/"), "OU=x") is None
    assert name_of(parse_name_rules("RULE:CN=a/b/"), "CN=a,OU=x") is None


@pytest.mark.parametrize(
    "wrong",
    [
        "RULE:",
        "RULE:a/b",
        "default",
        "RULE:^CN=(.*?)/$1/X",
        "DEFAULT RULE:a/b/",
        "RULE:(/x/",
        "RULE:a/b/L/c",
        "RULE:a/$1/",
    ],
)
def test_what_is_no_rule_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_name_rules(wrong)


def test_rules_are_bounded() -> None:
    with pytest.raises(ValueError, match="16384"):
        parse_name_rules("DEFAULT," * 4_000)
