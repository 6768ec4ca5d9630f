"""Quotas in the table: what is kept, refused and removed, and how much."""

from __future__ import annotations

import math

import pytest

from stratalog.machines.table import rights
from stratalog.model.commands.rights_commands import AlterQuotas
from stratalog.model.errors import InvalidRequest, LimitExceeded
from stratalog.model.metadata import QuotasChanged, QuotasDeleted
from stratalog.model.quotas import (
    DEFAULT,
    EntityQuotas,
    QuotaAlteration,
    QuotaChange,
    QuotaEntity,
    QuotaKey,
    QuotaLimits,
)
from support.table_stories import NEW_ID, TableStory, state_of

ALICE = QuotaEntity(user="alice")
PRODUCE, FETCH = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
PERCENT, MUTATIONS = QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONTROLLER_MUTATION_RATE
CONNECTIONS = QuotaKey.CONNECTION_CREATION_RATE


def alter(entity: QuotaEntity, **limits: float | None) -> QuotaAlteration:
    return QuotaAlteration(entity, tuple(QuotaChange(QuotaKey(key), limit) for key, limit in limits.items()))


def test_limits_are_set_changed_and_removed_one_by_one() -> None:
    story = TableStory(nodes=0)
    done = story.do(AlterQuotas((alter(ALICE, producer_byte_rate=1_000, request_percentage=12.5),)))
    first = EntityQuotas(ALICE, QuotaLimits(producer_byte_rate=1_000, request_percentage=12.5))
    assert done.result == (None,)
    assert done.change_set is not None and done.change_set.changes == (QuotasChanged(first),)
    done = story.do(AlterQuotas((alter(ALICE, producer_byte_rate=None, consumer_byte_rate=7),)))
    second = EntityQuotas(ALICE, QuotaLimits(consumer_byte_rate=7, request_percentage=12.5))
    assert done.change_set is not None and done.change_set.changes == (QuotasChanged(second),)
    assert story.table.snapshot().quotas == (second,)
    done = story.do(AlterQuotas((alter(ALICE, consumer_byte_rate=None, request_percentage=None),)))
    assert done.change_set is not None and done.change_set.changes == (QuotasDeleted(ALICE),)
    assert story.table.snapshot().quotas == ()


def test_what_is_so_already_changes_nothing() -> None:
    story = TableStory(nodes=0)
    story.do(AlterQuotas((alter(ALICE, producer_byte_rate=1_000),)))
    again = story.do(AlterQuotas((alter(ALICE, producer_byte_rate=1_000, consumer_byte_rate=None), alter(ALICE))))
    assert again.result == (None, None) and again.change_set is None and not again.writes
    gone = story.do(AlterQuotas((alter(QuotaEntity("nobody"), producer_byte_rate=None),)))
    assert gone.result == (None,) and gone.change_set is None


@pytest.mark.parametrize(
    ("entity", "limits", "reason"),
    [
        (QuotaEntity(), {"producer_byte_rate": 1}, "Invalid empty client quota entity"),
        (QuotaEntity("a", ip="10.0.0.1"), {"connection_creation_rate": 1}, "should not be combined"),
        (QuotaEntity(ip="localhost"), {"connection_creation_rate": 1}, "not a valid IP"),
        (QuotaEntity(ip="10.0.0.1"), {"producer_byte_rate": 1}, "Invalid configuration key producer_byte_rate"),
        (ALICE, {"connection_creation_rate": 1}, "Invalid configuration key connection_creation_rate"),
        (ALICE, {"producer_byte_rate": 0}, "Quota producer_byte_rate must be greater than 0"),
        (ALICE, {"request_percentage": -1}, "must be greater than 0"),
        (ALICE, {"request_percentage": math.inf}, "must be greater than 0"),
        (ALICE, {"request_percentage": math.nan}, "must be greater than 0"),
        (ALICE, {"producer_byte_rate": 1.5}, "producer_byte_rate cannot be a fractional value."),
        (ALICE, {"consumer_byte_rate": 2.0**63}, "must be a whole number"),
        (QuotaEntity(ip=DEFAULT), {"connection_creation_rate": 2.0**31}, "must be a whole number"),
        (QuotaEntity("a" * 513), {"producer_byte_rate": 1}, "513 characters"),
    ],
)
def test_what_is_no_quota_is_refused_for_its_entity_alone(
    entity: QuotaEntity, limits: dict[str, float], reason: str
) -> None:
    story = TableStory(nodes=0)
    bob = QuotaEntity("bob")
    done = story.do(AlterQuotas((alter(entity, **limits), alter(bob, producer_byte_rate=1))))
    refused, kept = done.result
    assert isinstance(refused, InvalidRequest) and reason in str(refused)
    assert kept is None and [*story.table.state.quotas] == [bob]


def test_of_an_entity_all_changes_are_made_or_none() -> None:
    story = TableStory(nodes=0)
    story.do(AlterQuotas((alter(ALICE, producer_byte_rate=1, consumer_byte_rate=0),)))
    assert story.table.snapshot().quotas == ()
    twice = QuotaAlteration(ALICE, (QuotaChange(PRODUCE, 1), QuotaChange(PRODUCE, 2)))
    (refused,) = story.do(AlterQuotas((twice,))).result
    assert isinstance(refused, InvalidRequest) and "Duplicate quota key producer_byte_rate" in str(refused)


def test_a_number_that_is_nearly_whole_is_kept_as_the_whole_one() -> None:
    story = TableStory(nodes=0)
    story.do(AlterQuotas((alter(ALICE, producer_byte_rate=2.9999999, controller_mutation_rate=0.1),)))
    assert story.table.state.quotas[ALICE] == QuotaLimits(producer_byte_rate=3, controller_mutation_rate=0.1)


def test_entities_are_bounded_and_those_that_are_there_can_still_be_altered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MAX_QUOTA_ENTITIES", 2)
    story = TableStory(nodes=0)
    names = [QuotaEntity(None, name) for name in "abc"]
    outcomes = story.do(AlterQuotas(tuple(alter(one, producer_byte_rate=1) for one in names))).result
    assert outcomes[:2] == (None, None) and isinstance(outcomes[2], LimitExceeded)
    assert story.do(AlterQuotas((alter(names[0], producer_byte_rate=2),))).result == (None,)
    story.do(AlterQuotas((alter(names[0], producer_byte_rate=None),)))
    assert story.do(AlterQuotas((alter(names[2], producer_byte_rate=2),))).result == (None,)


def test_too_many_entities_in_one_command_are_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MAX_QUOTAS_NAMED", 1)
    story = TableStory(nodes=0)
    two = alter(ALICE, producer_byte_rate=1), alter(QuotaEntity("bob"), producer_byte_rate=1)
    with pytest.raises(LimitExceeded, match="ask in parts"):
        story.do(AlterQuotas(two))
    assert story.table.snapshot().quotas == ()


def test_a_command_that_is_taken_back_leaves_the_quotas_as_they_were() -> None:
    story = TableStory(nodes=0)
    story.do(AlterQuotas((alter(ALICE, producer_byte_rate=1),)))
    before = state_of(story.table)
    for changes in ({"producer_byte_rate": None}, {"producer_byte_rate": 2}, {"consumer_byte_rate": 1}):
        applied = story.table.apply(AlterQuotas((alter(ALICE, **changes),)), 5, NEW_ID)
        assert state_of(story.table) != before
        story.table.undo(applied)
        assert state_of(story.table) == before
