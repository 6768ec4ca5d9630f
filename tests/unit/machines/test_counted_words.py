"""Numbers in messages read as people say them."""

from __future__ import annotations

import pytest

from stratalog.model.counting import counted, did_you_mean, joined, nodes_named


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [
        (0, "shard", "0 shards"),
        (1, "sealed segment", "1 sealed segment"),
        (1_200, "segment", "1,200 segments"),
        (2, "copy", "2 copies"),
        (1, "copy", "1 copy"),
        (2, "key", "2 keys"),
        (3, "batch", "3 batches"),
    ],
)
def test_one_thing_is_not_reported_as_many(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said


def test_the_verb_goes_with_the_number() -> None:
    waits = ("waits", "wait")
    assert counted(1, "shard", verb=waits) == "1 shard waits"
    assert counted(2, "shard", verb=waits) == "2 shards wait"


def test_a_list_ends_with_its_conjunction() -> None:
    assert [joined(things) for things in ([], ["A"], ["A", "B"], ["A", "B", "C"])] == ["", "A", "A and B", "A, B and C"]
    assert joined((1, 2, 3), "or") == "1, 2 or 3"
    assert (nodes_named([4]), nodes_named((1, 2))) == ("node 4", "nodes 1 and 2")


def test_a_mistyped_name_is_answered_with_those_that_are_near() -> None:
    known = ["flights", "orders", "orders-2024", "__consumer_offsets"]
    assert did_you_mean("flight", known) == " (did you mean 'flights'?)"
    assert did_you_mean("Orders", known) == " (did you mean 'orders'?)"
    assert did_you_mean("order-2024", known) == " (did you mean 'orders-2024'?)"
    assert did_you_mean("payments", known) == did_you_mean("", known) == did_you_mean("x" * 1_000_000, known) == ""
