"""Which objects of a topic are to be restored: by their names alone, and by what a listing says of them."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.ids import SegmentKey
from stratalog.objects import ClassedObject, Restore
from stratalog.stored.restores import RestorePlan, WantedRange, plan_restore, price_of

NAMES = ObjectNames("", "cluster")
TOPIC, OTHER = UUID(int=1), UUID(int=2)
WRITER = {"node_id": 1, "lock_epoch": 2, "attempt": 3}
BUNDLE = NAMES.bundle(node_id=1, lock_epoch=2, number=4, attempt=3)


def chunk(start: int, end: int, *, topic: UUID = TOPIC, shard: int = 0) -> str:
    return NAMES.chunk(SegmentKey(topic, shard, 0, 0), start, end, **WRITER)


def planned(wanted: WantedRange, *objects: ClassedObject) -> RestorePlan:
    return plan_restore(NAMES, wanted, objects)


def archived(*keys: str, restore: Restore = Restore.NONE, size: int = 100) -> list[ClassedObject]:
    return [ClassedObject(key, size, "GLACIER", restore) for key in keys]


def asked_for(plan: RestorePlan) -> list[str]:
    return [one.key for one in plan.to_ask]


def test_all_kinds_of_objects_of_the_topic_are_needed_and_nothing_of_others() -> None:
    """A lifecycle rule may have moved manifests and indexes as well."""
    segment = SegmentKey(TOPIC, 0, 0, 0)
    names = [
        chunk(0, 10),
        NAMES.packed(segment, 10, 20, **WRITER),
        NAMES.index(segment, 0, 20, **WRITER),
        NAMES.keys(segment, 0, 20, **WRITER),
        NAMES.manifest(segment, 0, 20, **WRITER),
        BUNDLE,
    ]
    others = [chunk(0, 10, topic=OTHER), NAMES.claim(node_id=1, lock_epoch=2), "cluster/foreign", "elsewhere/x.chunk"]
    plan = planned(WantedRange(TOPIC), *archived(*names, *others))
    assert asked_for(plan) == names
    assert plan.bytes_to_ask == 100 * len(names)


@pytest.mark.parametrize(
    ("first", "end", "needed"),
    [
        (0, None, [0, 10, 20]),
        (9, None, [0, 10, 20]),
        (10, None, [10, 20]),
        (0, 10, [0]),
        (0, 11, [0, 10]),
        (15, 16, [10]),
    ],
)
def test_a_range_needs_the_objects_that_have_records_of_it(first: int, end: int | None, needed: list[int]) -> None:
    objects = archived(*(chunk(start, start + 10) for start in (0, 10, 20)))
    plan = planned(WantedRange(TOPIC, from_offset=first, to_offset=end), *objects)
    assert asked_for(plan) == [chunk(start, start + 10) for start in needed]


def test_only_the_shards_that_are_named_are_needed_and_every_bundle() -> None:
    plan = planned(WantedRange(TOPIC, frozenset({1})), *archived(chunk(0, 1), chunk(0, 1, shard=1), BUNDLE))
    assert asked_for(plan) == [chunk(0, 1, shard=1), BUNDLE]


def test_what_is_readable_or_asked_for_already_is_counted_and_not_asked_for() -> None:
    plan = planned(
        WantedRange(TOPIC),
        ClassedObject(chunk(0, 1), 1, "STANDARD"),
        ClassedObject(chunk(1, 2), 2, "GLACIER_IR"),
        *archived(chunk(2, 3), size=4),
        *archived(chunk(3, 4), restore=Restore.UNDER_WAY, size=8),
        *archived(chunk(4, 5), restore=Restore.DONE, size=16),
    )
    assert asked_for(plan) == [chunk(2, 3)]
    assert {place: (one.objects, one.bytes) for place, one in plan.amounts.items()} == {
        ("STANDARD", "readable"): (1, 1),
        ("GLACIER_IR", "readable"): (1, 2),
        ("GLACIER", "archived"): (1, 4),
        ("GLACIER", "restoring"): (1, 8),
        ("GLACIER", "restored"): (1, 16),
    }
    assert not plan.is_readable


def test_all_is_readable_once_each_restore_is_done() -> None:
    assert not planned(WantedRange(TOPIC), *archived(chunk(0, 1), restore=Restore.UNDER_WAY)).is_readable
    assert planned(WantedRange(TOPIC), *archived(chunk(0, 1), restore=Restore.DONE)).is_readable


def test_the_price_is_that_of_bytes_and_requests_which_are_still_to_be_made() -> None:
    plan = planned(
        WantedRange(TOPIC),
        *archived(chunk(0, 1), chunk(1, 2), size=1 << 30),
        *archived(chunk(2, 3), restore=Restore.UNDER_WAY, size=1 << 30),
    )
    assert price_of(plan, per_gib=0.5, per_1000=10.0) == 1.0 + 0.02


def test_where_no_object_is_found_nothing_is_taken_for_readable() -> None:
    assert not planned(WantedRange(TOPIC)).is_readable
    assert not planned(WantedRange(TOPIC), ClassedObject(chunk(0, 9, topic=OTHER), 100, "STANDARD")).is_readable
    assert planned(WantedRange(TOPIC), ClassedObject(chunk(0, 9), 100, "STANDARD")).is_readable
