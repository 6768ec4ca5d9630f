"""Lines of the audit log: their form, and their bounds."""

from __future__ import annotations

import json

import pytest

from stratalog.machines.audit.lines import LONGEST_TEXT, MOST_DETAILS, Asker, AuditLine, Change, Outcome

ALICE = Asker("User:alice", "10.0.0.7")


def test_a_line_says_when_who_what_and_how_it_ended() -> None:
    change = Change("CreateTopics", "TOPIC", "orders", {"shards": 3, "settings": {"retention.ms": "1000"}})
    line = AuditLine(1_700_000_000_123, ALICE, change, Outcome.DONE)
    assert json.loads(line.as_json("c-1", "node 1")) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "info",
        "event": "audit",
        "cluster": "c-1",
        "part": "node 1",
        "principal": "User:alice",
        "address": "10.0.0.7",
        "action": "CreateTopics",
        "resource_type": "TOPIC",
        "resource": "orders",
        "outcome": "done",
        "error": None,
        "details": {"shards": 3, "settings": {"retention.ms": "1000"}},
    }


def test_a_line_about_several_events_has_their_number_and_the_time_of_the_last() -> None:
    change = Change("READ", "TOPIC", "orders")
    line = AuditLine(1_000, ALICE, change, Outcome.DENIED, "NO_RIGHT", count=7, until_ms=61_000)
    said = json.loads(line.as_json("c", "meta"))
    assert (said["time"], said["until"], said["count"]) == ("1970-01-01T00:00:01.000Z", "1970-01-01T00:01:01.000Z", 7)
    assert (said["outcome"], said["error"]) == ("denied", "NO_RIGHT")


@pytest.mark.parametrize("hostile", ["two\nlines", "\x1b[31mred", "a\u2028b", '","outcome":"done'])
def test_no_name_can_begin_another_line_or_steer_a_terminal(hostile: str) -> None:
    change = Change(hostile, "GROUP", hostile, {hostile: [hostile]})
    text = AuditLine(0, Asker(hostile, hostile), change, Outcome.FAILED, hostile).as_json("c", "p")
    assert text.endswith("\n") and text.count("\n") == 1
    assert text[:-1].isascii() and text[:-1].isprintable()
    said = json.loads(text)
    assert (said["resource"], said["outcome"], said["details"]) == (hostile, "failed", {hostile: [hostile]})


def test_what_others_named_is_bounded_and_its_size_is_said() -> None:
    long = "x" * 100_000
    details = {"many": [long] * 1_000, "map": {f"{number} {long}": long for number in range(1_000)}}
    text = AuditLine(0, Asker(long, long), Change(long, "T", long, details), Outcome.FAILED, long).as_json("c", "p")
    assert len(text) < 40_000
    said = json.loads(text)
    assert said["resource"] == "x" * LONGEST_TEXT + "... (100000 characters)"
    assert said["details"]["many"][MOST_DETAILS] == "... 1000 in all" and len(said["details"]["many"]) == 21
    assert said["details"]["map"]["..."] == "1000 in all" and len(said["details"]["map"]) == 21
