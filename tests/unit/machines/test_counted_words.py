"""Numbers in messages are told as people say them."""

from __future__ import annotations

import pytest

from stratalog.model.counting import counted


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
def test_one_thing_is_not_told_as_many(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said


def test_the_verb_goes_with_the_number() -> None:
    waits = ("waits", "wait")
    assert counted(1, "shard", verb=waits) == "1 shard waits"
    assert counted(2, "shard", verb=waits) == "2 shards wait"
