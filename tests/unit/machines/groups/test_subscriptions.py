"""When the topics of a group's subscriptions are looked up: after changes that may give other ones, and never else."""

from __future__ import annotations

from stratalog.machines.groups.subscriptions import Subscriptions
from stratalog.model.groups.consumer_group import ConsumerMember
from support.seen_topics import Topics

MEMBERS = [ConsumerMember("regex", topic_regex="all"), ConsumerMember("name", topic_names=("a",))]


def updated(known: Subscriptions, topics: Topics) -> list[str]:
    """The expressions that are looked up for a heartbeat."""
    topics.lookups.clear()
    if not known.is_of(topics):
        known.update(MEMBERS, topics)
    return topics.lookups


def test_an_expression_is_looked_up_again_when_topics_change() -> None:
    known, topics = Subscriptions(), Topics()
    assert updated(known, topics) == ["all"]
    assert updated(known, topics) == []
    topics.version += 1
    assert updated(known, topics) == ["all"]


def test_an_expression_is_looked_up_again_when_a_client_that_asks_may_see_other_topics() -> None:
    known, topics = Subscriptions(), Topics()
    topics.view = "User:alice", 1
    assert updated(known, topics) == ["all"]
    assert updated(known, topics) == []
    topics.view = "User:alice", 2
    assert updated(known, topics) == ["all"]
    assert updated(known, topics) == []


def test_clients_with_different_rights_do_not_make_a_group_look_up_its_expressions_in_turn() -> None:
    known, topics = Subscriptions(), Topics()
    topics.view = "User:alice", 1
    updated(known, topics)
    for view in [("User:bob", 7), ("User:alice", 1)] * 5:
        topics.view = view
        assert updated(known, topics) == []
    topics.view = "User:bob", 8
    assert updated(known, topics) == ["all"]


def test_of_any_number_of_clients_that_ask_few_are_known() -> None:
    known, topics = Subscriptions(), Topics()
    for number in range(5_000):
        topics.view = f"User:{number}", 0
        updated(known, topics)
    assert len(known._views) <= 1_000
