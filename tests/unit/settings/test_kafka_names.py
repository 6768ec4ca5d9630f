"""Topic settings under Kafka's names: kept under ours, or refused with the reason."""

from __future__ import annotations

import pytest

from stratalog.model.errors import InvalidRequest
from stratalog.settings.describe import describe_topic
from stratalog.settings.kafka_names import WITHOUT_EFFECT, under_our_names, without
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog.settings.units import INT64_MAX
from stratalog.settings.wrong_values import fields_by_key


def kept(**wanted: str) -> dict[str, str]:
    return under_our_names({key.replace("_", "."): value for key, value in wanted.items()})


def test_a_name_of_kafkas_is_kept_under_our_name() -> None:
    assert kept(unclean_leader_election_enable="true") == {"uncleanSeal": "allow"}
    assert kept(unclean_leader_election_enable="False") == {"uncleanSeal": "deny"}
    assert kept(flush_messages="1") == {"flush.policy": "fsync"}
    assert kept(flush_messages=str(INT64_MAX)) == {"flush.policy": "replicated"}
    both = kept(message_timestamp_difference_max_ms="5000", retention_ms="1")
    assert both == {
        "retention.ms": "1",
        "message.timestamp.before.max.ms": "5000",
        "message.timestamp.after.max.ms": "5000",
    }
    TopicSettings.validate_overrides(both)


@pytest.mark.parametrize("wanted", [{"flush.messages": "17"}, {"unclean.leader.election.enable": "maybe"}])
def test_a_value_that_cannot_be_had_is_refused_with_those_that_can(wanted: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="must be one of"):
        under_our_names(wanted)


def test_both_names_must_not_say_different_things_at_once() -> None:
    with pytest.raises(InvalidRequest, match="contradict"):
        under_our_names({"unclean.leader.election.enable": "true", "uncleanSeal": "deny"})
    same = {"unclean.leader.election.enable": "true", "uncleanSeal": "allow"}
    assert under_our_names(same) == {"uncleanSeal": "allow"}


def test_what_is_sent_back_as_it_was_does_not_hold_up_a_change_under_the_other_name() -> None:
    present = {"uncleanSeal": "allow"}
    changed = under_our_names({**present, "unclean.leader.election.enable": "false"}, present)
    assert changed == {"uncleanSeal": "deny"}


@pytest.mark.parametrize("key", sorted(WITHOUT_EFFECT))
def test_a_key_without_meaning_is_refused_with_the_reason_or_kept_and_shown_as_such(key: str) -> None:
    with pytest.raises(InvalidRequest, match=r"has no effect here: .+topic\.settings\.without\.effect\.enable=true"):
        TopicSettings.validate_overrides({key: "1"})
    assert under_our_names({key: "1"}) == {key: "1"}
    process = ProcessSettings(topic_settings_without_effect_enable=True)
    TopicSettings.validate_overrides({key: "1"}, process)
    told = next(one for one in describe_topic(process, {key: "1"}) if one.key == key)
    assert told.description.startswith("No effect: ") and told.value == "1"
    assert TopicSettings.resolve(process, {key: "1"}) == TopicSettings.resolve(process, {})


def test_what_was_kept_without_effect_does_not_hold_up_later_changes_of_other_keys() -> None:
    present = {"preallocate": "true"}
    TopicSettings.validate_overrides({**present, "retention.ms": "1"}, present=present)
    with pytest.raises(InvalidRequest, match="no effect"):
        TopicSettings.validate_overrides({"preallocate": "false"}, present=present)


def test_none_of_them_is_one_of_our_names() -> None:
    assert not WITHOUT_EFFECT.keys() & fields_by_key(TopicSettings).keys()


def test_a_key_is_taken_back_by_either_name() -> None:
    present = {"uncleanSeal": "allow", "retention.ms": "1"}
    assert (
        without("unclean.leader.election.enable", present) == without("uncleanSeal", present) == {"retention.ms": "1"}
    )
    limits = {"message.timestamp.before.max.ms": "1", "message.timestamp.after.max.ms": "1"}
    assert without("message.timestamp.difference.max.ms", limits) == {}


def test_clients_find_what_they_set_under_the_name_by_which_they_set_it() -> None:
    told = {one.key: one for one in describe_topic(ProcessSettings(), {"uncleanSeal": "allow"})}
    assert told["unclean.leader.election.enable"].value == "true"
    assert not told["unclean.leader.election.enable"].is_default
    by_default = {one.key: one for one in describe_topic(ProcessSettings(), {})}
    assert by_default["unclean.leader.election.enable"].value == "false"
    assert by_default["unclean.leader.election.enable"].is_default
    assert by_default["flush.messages"].value == str(INT64_MAX)
